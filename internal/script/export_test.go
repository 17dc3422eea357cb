package script

// What tests of the Sender need to know.
const (
	Crowd        = crowd
	MostFlights  = mostFlights
	MostTogether = mostTogether
	Shareable    = shareable
	WayFlights   = wayFlights
)

// Queued is how many calls wait for a flight.
func (p *Sender) Queued() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queued)
}

// Idle says that nothing waits and nothing flies.
func (p *Sender) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls == 0 && p.flying == 0 && len(p.queued) == 0
}

// Enough is how many flights there are before anybody waits.
func (p *Sender) Enough() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.enough
}
