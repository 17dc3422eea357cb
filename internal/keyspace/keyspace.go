// Package keyspace says where everything of one Name is kept in Redis, and
// which names are allowed there. It is the only place that builds a key.
//
// All keys of a shard share one hash tag, {name:shard}, so that every script
// touches a single slot of a Redis Cluster. User input stands only behind the
// tag: a brace in a resource cannot move it.
package keyspace

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// Bounds on what users may name, checked before anything is sent to Redis.
const (
	MaxName     = 128
	MaxResource = 1024
	MaxID       = 256
	MaxShards   = 1024
)

// ErrInvalid is wrapped by every error about a name that is not allowed.
var ErrInvalid = errors.New("not a valid name")

// sep ends the resource in a reference. Neither a resource nor an ID may
// contain it, so a reference can be taken apart in one way only.
const sep = "\x00"

// Space is the key space of one Name.
type Space struct {
	name   string
	shards []Shard
}

// Shard holds the keys of one shard that do not depend on a resource.
type Shard struct {
	// Prefix is what every key of the shard begins with, "{name:0}:".
	Prefix string

	Due, Later, Clock, Tries, Dead, Graves, Paused, Alive string

	// Nudge is the channel on which a lane that became due is announced.
	Nudge string
}

// New returns the key space of name, cut into shards.
func New(name string, shards int) (*Space, error) {
	if err := checkText(name, MaxName); err != nil {
		return nil, fmt.Errorf("Name %w", err)
	}
	if strings.ContainsAny(name, "{}") {
		return nil, fmt.Errorf("Name %w: it contains a brace", ErrInvalid)
	}
	if shards < 1 || shards > MaxShards {
		return nil, fmt.Errorf("Shards is %d: want 1 to %d", shards, MaxShards)
	}
	s := &Space{name: name, shards: make([]Shard, shards)}
	for i := range s.shards {
		p := "{" + name + ":" + strconv.Itoa(i) + "}:"
		s.shards[i] = Shard{
			Prefix: p,
			Due:    p + "due", Later: p + "later", Clock: p + "clock", Tries: p + "tries",
			Dead: p + "dead", Graves: p + "graves", Paused: p + "paused", Alive: p + "alive",
			Nudge: p + "nudge",
		}
	}
	return s, nil
}

// Name returns the Name the space was made for.
func (s *Space) Name() string { return s.name }

// Shards returns how many shards the space has.
func (s *Space) Shards() int { return len(s.shards) }

// Shard returns the keys of shard i.
func (s *Space) Shard(i int) *Shard { return &s.shards[i] }

// ShardsKey is where the number of shards is remembered for other processes.
func (s *Space) ShardsKey() string { return s.shards[0].Prefix + "shards" }

// Of returns the shard that keeps lane.
func (s *Space) Of(lane string) *Shard { return &s.shards[s.Index(lane)] }

// Index returns the number of the shard that keeps lane.
func (s *Space) Index(lane string) int {
	if len(s.shards) == 1 {
		return 0
	}
	return int(xxhash.Sum64String(lane) % uint64(len(s.shards)))
}

// Lock is the key of lane's lock.
func (h *Shard) Lock(lane string) string { return h.Prefix + "lock:" + lane }

// Lane is the key of the ZSET in which lane's writes wait.
func (h *Shard) Lane(lane string) string { return h.Prefix + "lane:" + lane }

// Write is the key of the payload that ref refers to.
func (h *Shard) Write(ref string) string { return h.Prefix + "write:" + ref }

// LaneOf names the lane of a write: its resource, or for a write without one
// a lane of its own.
func LaneOf(resource, id string) string {
	if resource == "" {
		return sep + id
	}
	return resource
}

// Ref names one write: its resource and its ID.
func Ref(resource, id string) string { return resource + sep + id }

// Split is the inverse of [Ref].
func Split(ref string) (resource, id string) {
	resource, id, _ = strings.Cut(ref, sep)
	return resource, id
}

// ResourceOf is the resource whose writes wait in lane, "" for the lane of a
// write that stands alone.
func ResourceOf(lane string) string {
	if strings.HasPrefix(lane, sep) {
		return ""
	}
	return lane
}

// CheckResource refuses what cannot be the name of a resource: an empty one,
// one over [MaxResource] bytes, one that is not UTF-8 or has a zero byte.
// Everything else is kept exactly, byte for byte.
func CheckResource(r string) error { return checkText(r, MaxResource) }

// CheckID refuses what cannot be the ID of a write, by the rules of
// [CheckResource] and at most [MaxID] bytes.
func CheckID(id string) error { return checkText(id, MaxID) }

func checkText(s string, most int) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: it is empty", ErrInvalid)
	case len(s) > most:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrInvalid, len(s), most)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: it is not UTF-8", ErrInvalid)
	case strings.Contains(s, sep):
		return fmt.Errorf("%w: it contains a zero byte", ErrInvalid)
	}
	return nil
}
