package lock

import (
	"crypto/rand"
	"encoding/base64"
)

// newToken returns 22 random characters, as many as redislock's own tokens
// have: redislock compares a token as the beginning of the lock's value, so a
// shorter one could be the beginning of another.
func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return base64.RawURLEncoding.EncodeToString(b[:])
}
