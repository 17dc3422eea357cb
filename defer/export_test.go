package deferral

// For fuzzing, which without a Redis tries a thousand times as much.
var (
	SealEnvelope = sealEnvelope
	OpenEnvelope = openEnvelope
)
