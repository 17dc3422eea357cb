package integration_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/integration/fleet"
	"github.com/deferlock/deferlock/integration/servers"
	"github.com/deferlock/deferlock/worker"
)

// The user of the workers loses a right in mid-run, each of those that scripts
// need in turn, and is given it back. What stands after a script that was
// stopped half way is whole.
func TestRow33UserLosesARight(t *testing.T) {
	rights := []string{
		"get", "set", "exists", "pexpire", "pttl", "del", "zadd", "zcard", "zrange", "zrevrange", "zrangebyscore",
		"zrank", "zscore", "zmscore", "zrem", "hset", "hget", "hmget", "hexists", "hdel", "time", "evalsha", "publish", "mget",
	}
	r := newRig(t)
	all := "+@connection +@pubsub +eval +scan +zscan +hscan +hlen +getrange +msetnx +mset +setnx +wait +info +config|get +cluster"
	for _, right := range rights {
		all += " +" + right
	}
	setuser := []any{"acl", "setuser", "worker", "reset", "on", ">secret", "~{" + r.Name() + ":*", "&{" + r.Name() + ":*"}
	for _, rule := range strings.Fields(all) {
		setuser = append(setuser, rule)
	}
	r.redis.Do(t, setuser...)
	target := fleet.Single(r.redis.Addr())
	target.Username, target.Password = "worker", "secret"
	pair(r, func(s *fleet.Spec) { s.Redis = target })
	for _, right := range rights {
		r.redis.Do(t, "acl", "setuser", "worker", "-"+right)
		<-time.After(100 * time.Millisecond)
		r.redis.Do(t, "acl", "setuser", "worker", "+"+right)
		r.more(5)
	}
	r.Finish()
}

// TLS with the wrong authority, the wrong name, an old certificate, or none at
// all: nothing is accepted, it is said, and it is said soon.
func TestRow34TLS(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t), newAuthority(t)
	good := ca.issue(t, "127.0.0.1", time.Now().Add(time.Hour))
	s := tlsRedis(t, ca, good)
	old := tlsRedis(t, ca, ca.issue(t, "127.0.0.1", time.Now().Add(-time.Hour)))
	named := tlsRedis(t, ca, ca.issue(t, "127.0.0.2", time.Now().Add(time.Hour)))
	for name, c := range map[string]struct {
		addr string
		tls  *tls.Config
		ok   bool
	}{
		"right":           {s, &tls.Config{RootCAs: ca.pool()}, true},
		"wrong authority": {s, &tls.Config{RootCAs: other.pool()}, false},
		"wrong name":      {named, &tls.Config{RootCAs: ca.pool()}, false},
		"expired":         {old, &tls.Config{RootCAs: ca.pool()}, false},
		"plaintext":       {s, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{Addr: c.addr, TLSConfig: c.tls, ContextTimeoutEnabled: true, ReadTimeout: time.Second})
			t.Cleanup(func() { _ = rdb.Close() })
			out, err := submitOne(t, rdb)
			if c.ok && (err != nil || !out.Ran) {
				t.Errorf("%+v, %v", out, err)
			}
			if !c.ok && (!errors.Is(err, worker.ErrNotAccepted) || out.Ran || out.Deferred) {
				t.Errorf("%+v, %v: want not accepted", out, err)
			}
		})
	}
}

func submitOne(t *testing.T, rdb *redis.Client) (worker.Outcome, error) {
	t.Helper()
	w, err := worker.New(rdb, worker.Config{Name: "tls"})
	if err != nil {
		t.Fatal(err)
	}
	x, err := worker.Wrap(w, func(context.Context, string) error { return nil },
		worker.Kind[string]{Name: "write", Resource: func(s string) string { return s }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return x.Do(ctx, "r")
}

// tlsRedis starts a Redis that speaks TLS, and returns where.
func tlsRedis(t *testing.T, ca *authority, cert certificate) string {
	t.Helper()
	return servers.NewTLSRedis(t, map[string][]byte{"ca.crt": ca.pem(), "redis.crt": cert.cert, "redis.key": cert.key})
}

type authority struct {
	cert *x509.Certificate
	der  []byte
	key  *ecdsa.PrivateKey
}

type certificate struct{ cert, key []byte }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert: cert, der: der, key: key}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.der})
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(a.pem())
	return p
}

func (a *authority) issue(t *testing.T, ip string, until time.Time) certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: ip}, IPAddresses: []net.IP{net.ParseIP(ip)},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: until,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return certificate{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}),
	}
}
