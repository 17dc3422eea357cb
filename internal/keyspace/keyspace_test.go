package keyspace_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/deferlock/deferlock/internal/keyspace"
)

func mustNew(t *testing.T, name string, shards int) *keyspace.Space {
	t.Helper()
	s, err := keyspace.New(name, shards)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// resources are allowed ones that have been trouble somewhere.
var resources = []string{
	"account:42", "a", " ", "\t\n", "}", "{", "{}", "}{", "{other:0}:due", "lock:", "Ünïcode", "日本語", "\u202e", "\x01", "\x7f",
	strings.Repeat("x", keyspace.MaxResource),
}

func TestResourcesAndIDsThatCannotBeKeptExactlyAreRefused(t *testing.T) {
	long := func(n int) string { return strings.Repeat("é", n/2) + strings.Repeat("x", n%2) }
	tests := []struct {
		why, resource, id string
	}{
		{"empty", "", ""},
		{"over-long", long(keyspace.MaxResource + 1), long(keyspace.MaxID + 1)},
		{"not UTF-8", "a\xff", "a\xff"},
		{"a lone surrogate", "\xed\xa0\x80", "\xed\xa0\x80"},
		{"a zero byte", "a\x00b", "a\x00b"},
		{"only a zero byte", "\x00", "\x00"},
	}
	for _, tt := range tests {
		t.Run(tt.why, func(t *testing.T) {
			if err := keyspace.CheckResource(tt.resource); !errors.Is(err, keyspace.ErrInvalid) {
				t.Errorf("CheckResource: %v, want ErrInvalid", err)
			}
			if err := keyspace.CheckID(tt.id); !errors.Is(err, keyspace.ErrInvalid) {
				t.Errorf("CheckID: %v, want ErrInvalid", err)
			}
		})
	}
	for _, r := range append(resources, long(keyspace.MaxResource)) {
		if err := keyspace.CheckResource(r); err != nil {
			t.Errorf("CheckResource(%q): %v", r, err)
		}
	}
	if err := keyspace.CheckID(long(keyspace.MaxID)); err != nil {
		t.Errorf("CheckID of the greatest length: %v", err)
	}
}

func TestNamesThatCouldMoveTheHashTagAreRefused(t *testing.T) {
	for _, name := range []string{
		"", "{", "}", "a{b", "a}b", "{a}", "a\x00", "a\xff", strings.Repeat("x", keyspace.MaxName+1),
	} {
		if _, err := keyspace.New(name, 1); !errors.Is(err, keyspace.ErrInvalid) || !strings.HasPrefix(err.Error(), "Name ") {
			t.Errorf("New(%q): %v, want an ErrInvalid that names the Name", name, err)
		}
	}
	for _, name := range []string{"accounts", "a:0", ":", "日本語", strings.Repeat("x", keyspace.MaxName)} {
		if got := mustNew(t, name, 1).Name(); got != name {
			t.Errorf("the space of %q is called %q", name, got)
		}
	}
}

func TestAnImpossibleNumberOfShardsIsRefused(t *testing.T) {
	for _, n := range []int{-1, 0, keyspace.MaxShards + 1} {
		if _, err := keyspace.New("n", n); err == nil || !strings.Contains(err.Error(), "Shards") {
			t.Errorf("New with %d shards: %v, want an error that names Shards", n, err)
		}
	}
	if got := mustNew(t, "n", keyspace.MaxShards).Shards(); got != keyspace.MaxShards {
		t.Errorf("%d shards, want %d", got, keyspace.MaxShards)
	}
}

// slot is the slot of a key as the cluster specification defines it, computed
// here independently of the client's code.
func slot(key string) uint16 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

func TestSlotIsTheOneOfTheSpecification(t *testing.T) {
	for key, want := range map[string]uint16{"123456789": 0x31C3, "foo": 12182, "{foo}:due": 12182, "{}foo": slot("{}foo")} {
		if got := slot(key); got != want {
			t.Errorf("slot(%q) is %d, want %d", key, got, want)
		}
	}
}

// keysOf returns every key of lane's shard that a script about lane and the
// write ref may touch.
func keysOf(h *keyspace.Shard, lane, ref string) []string {
	return []string{
		h.Due, h.Later, h.Clock, h.Tries, h.Dead, h.Graves, h.Paused, h.Alive, h.Nudge,
		h.Lock(lane), h.Lane(lane), h.Write(ref),
	}
}

func TestAllKeysOfAShardAreInOneSlotWhateverTheResource(t *testing.T) {
	s := mustNew(t, "accounts", 7)
	for _, r := range resources {
		for _, id := range []string{"1", "{x}", "}"} {
			h := s.Of(keyspace.LaneOf(r, id))
			for _, k := range keysOf(h, keyspace.LaneOf(r, id), keyspace.Ref(r, id)) {
				if got, want := slot(k), slot(h.Prefix); got != want {
					t.Errorf("key %q is in slot %d, its shard in %d", k, got, want)
				}
			}
		}
	}
	if got, want := slot(s.ShardsKey()), slot(s.Shard(0).Prefix); got != want {
		t.Errorf("the number of shards is in slot %d, shard 0 in %d", got, want)
	}
}

func TestKeysOfAShardAreAllDifferent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z:0-9]{1,6}`).Draw(t, "name")
		shards := rapid.IntRange(1, 3).Draw(t, "shards")
		s, err := keyspace.New(name, shards)
		if err != nil {
			t.Fatal(err)
		}
		lane := text(keyspace.MaxResource).Draw(t, "lane")
		seen := map[string]bool{s.ShardsKey(): true}
		for i := range shards {
			for _, k := range keysOf(s.Shard(i), lane, keyspace.Ref(lane, "1")) {
				if seen[k] {
					t.Fatalf("key %q has two meanings", k)
				}
				seen[k] = true
			}
		}
	})
}

func TestSpacesOfDifferentNamesHaveNoKeyInCommon(t *testing.T) {
	// With "a" cut into shards and another one called "a:0" the prefixes come
	// as near to each other as they can.
	a, b := mustNew(t, "a", 12), mustNew(t, "a:0", 12)
	seen := map[string]bool{}
	for i := range a.Shards() {
		seen[a.Shard(i).Prefix] = true
	}
	for i := range b.Shards() {
		if p := b.Shard(i).Prefix; seen[p] {
			t.Errorf("both names use %q", p)
		}
	}
}

func TestEveryResourceHasOneShardAndAllShardsAreUsed(t *testing.T) {
	s, again := mustNew(t, "accounts", 8), mustNew(t, "accounts", 8)
	used := map[string]int{}
	for i := range 4000 {
		r := fmt.Sprintf("account:%d", i)
		h := s.Of(r)
		used[h.Prefix]++
		if other := again.Of(r); other.Prefix != h.Prefix {
			t.Fatalf("%q is in %q here and in %q in another process", r, h.Prefix, other.Prefix)
		}
	}
	for i := range s.Shards() {
		if n := used[s.Shard(i).Prefix]; n < 250 || n > 1000 { // 500 on average
			t.Errorf("shard %d has %d of 4000 resources", i, n)
		}
	}
}

// A change of the hash would move every resource to another shard, away from
// its lock and its lane.
func TestTheShardOfAResourceIsTheSameInEveryRelease(t *testing.T) {
	s := mustNew(t, "accounts", 16)
	for r, want := range map[string]string{
		"account:42": "{accounts:10}:", "日本語": "{accounts:1}:", "\x00alone": "{accounts:0}:",
	} {
		if got := s.Of(r).Prefix; got != want {
			t.Errorf("%q is in %q, was in %q", r, got, want)
		}
	}
}

// text draws what is allowed as a resource or an ID.
func text(most int) *rapid.Generator[string] {
	return rapid.StringN(1, -1, most).Filter(func(s string) bool { return keyspace.CheckResource(s) == nil })
}

func TestReferenceIsTakenApartAsItWasMade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		resource := rapid.OneOf(rapid.Just(""), rapid.SampledFrom(resources), text(40)).Draw(t, "resource")
		id := text(40).Draw(t, "id")
		splitsExactly(t, resource, id)
	})
}

func FuzzReference(f *testing.F) {
	for _, r := range resources {
		f.Add(r, "1")
	}
	f.Add("", "}:{")
	f.Add("a\x00b", "c")
	f.Fuzz(func(t *testing.T, resource, id string) {
		if resource != "" && keyspace.CheckResource(resource) != nil || keyspace.CheckID(id) != nil {
			if utf8.ValidString(resource) && utf8.ValidString(id) && !strings.Contains(resource+id, "\x00") && id != "" &&
				len(resource) <= keyspace.MaxResource && len(id) <= keyspace.MaxID {
				t.Fatalf("%q and %q are refused for nothing", resource, id)
			}
			return
		}
		splitsExactly(t, resource, id)
	})
}

type fataler interface {
	Fatalf(format string, args ...any)
}

// splitsExactly fails unless resource and id can be had back from all names
// that are made of them.
func splitsExactly(t fataler, resource, id string) {
	if r, i := keyspace.Split(keyspace.Ref(resource, id)); r != resource || i != id {
		t.Fatalf("Split(Ref(%q, %q)) is %q, %q", resource, id, r, i)
	}
	lane := keyspace.LaneOf(resource, id)
	if got := keyspace.ResourceOf(lane); got != resource {
		t.Fatalf("the lane of %q, %q belongs to %q", resource, id, got)
	}
	if resource != "" && lane != resource {
		t.Fatalf("the lane of %q is %q", resource, lane)
	}
	if resource == "" && lane != keyspace.Ref("", id) {
		t.Fatalf("the lane of the lone %q is %q, its reference %q", id, lane, keyspace.Ref("", id))
	}
	if resource == "" && keyspace.CheckResource(lane) == nil {
		t.Fatalf("the lane %q of a write that stands alone could be a resource's", lane)
	}
}
