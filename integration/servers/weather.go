package servers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Weather is the network between clients and a server, which can be made bad.
type Weather struct {
	proxy *toxiproxy.Proxy
}

// NewWeather starts a proxy before a server's address. It ends with the test.
func NewWeather(t testing.TB, upstream string) *Weather {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(server, "weather", "127.0.0.1:0", upstream)
	if err := p.Start(); err != nil {
		t.Fatalf("servers: %v", err)
	}
	t.Cleanup(p.Stop)
	return &Weather{proxy: p}
}

// Addr is where clients connect.
func (w *Weather) Addr() string { return w.proxy.Listen }

// Bad makes the weather bad: one of toxiproxy's toxics, such as latency,
// timeout, slicer or reset_peer, with its attributes as JSON, on what flows
// upstream or downstream.
func (w *Weather) Bad(t testing.TB, toxic, stream, attributes string) {
	t.Helper()
	text := fmt.Sprintf(`{"name": %q, "type": %q, "stream": %q, "attributes": {%s}}`, toxic+stream, toxic, stream, attributes)
	if _, err := w.proxy.Toxics.AddToxicJson(strings.NewReader(text)); err != nil {
		t.Fatalf("servers: %s: %v", text, err)
	}
}

// Good ends all that is bad.
func (w *Weather) Good(t testing.TB) {
	t.Helper()
	w.proxy.Toxics.ResetToxics(t.Context())
}
