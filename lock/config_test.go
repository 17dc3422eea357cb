package lock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/lock"
)

func TestEveryBadFieldIsNamed(t *testing.T) {
	c := redistest.Mini(t).Client(t)
	tests := []struct {
		field string
		cfg   lock.Config
	}{
		{"Config.Name", lock.Config{}},
		{"Config.Name", lock.Config{Name: "a{b"}},
		{"Config.Name", lock.Config{Name: "a}b"}},
		{"Config.Name", lock.Config{Name: "a\x00"}},
		{"Config.Name", lock.Config{Name: "\xff"}},
		{"Config.Name", lock.Config{Name: strings.Repeat("x", 129)}},
		{"Config.Shards", lock.Config{Name: "n", Shards: -1}},
		{"Config.Shards", lock.Config{Name: "n", Shards: 1025}},
		{"Config.TTL", lock.Config{Name: "n", TTL: -time.Second}},
		{"Config.TTL", lock.Config{Name: "n", TTL: 50*time.Millisecond - 1}},
		{"Config.TTL", lock.Config{Name: "n", TTL: time.Hour + 1}},
		{"Config.MaxHold", lock.Config{Name: "n", MaxHold: -time.Second}},
		{"Config.MaxHold", lock.Config{Name: "n", MaxHold: lock.DefaultTTL - 1}},
		{"Config.MaxHold", lock.Config{Name: "n", TTL: time.Minute, MaxHold: time.Minute - 1}},
		{"Config.MaxHold", lock.Config{Name: "n", MaxHold: 24*time.Hour + 1}},
	}
	for _, tt := range tests {
		l, err := lock.New(c, tt.cfg)
		if l != nil || err == nil || !strings.Contains(err.Error(), tt.field) {
			t.Errorf("%+v: %v, %v, want an error that names %s", tt.cfg, l, err, tt.field)
		}
	}
}

func TestBoundsAndDefaultsAreAccepted(t *testing.T) {
	c := redistest.Mini(t).Client(t)
	for _, cfg := range []lock.Config{
		{Name: "n"},
		{Name: strings.Repeat("x", 128), Shards: 1024, TTL: lock.MinTTL, MaxHold: lock.MinTTL},
		{Name: "n", TTL: lock.MaxTTL}, // longer than the default MaxHold
		{Name: "n", TTL: lock.MaxTTL, MaxHold: lock.MaxMaxHold},
	} {
		if _, err := lock.New(c, cfg); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestNoClientIsRefused(t *testing.T) {
	for _, c := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil)} {
		if l, err := lock.New(c, lock.Config{Name: "n"}); l != nil || err == nil {
			t.Errorf("%T: %v, %v, want an error", c, l, err)
		}
	}
}

func TestNewSendsNothing(t *testing.T) {
	s := redistest.Mini(t)
	c := s.Client(t)
	s.Kill(t)
	if _, err := lock.New(c, lock.Config{Name: "n"}); err != nil {
		t.Error(err)
	}
}
