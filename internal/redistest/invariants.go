package redistest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const nul = "\x00"

// shard is the content of one shard's keys.
type shard struct {
	lanes  map[string]map[string]string // lane → write ID → stamp
	writes map[string]bool              // REF
	due    map[string]string            // lane → moment
	later  map[string]string            // REF → moment
	dead   map[string]string            // REF → moment
	graves map[string]string            // REF → details
	tries  map[string]string            // REF → text
	clock  string
}

// audit collects what is wrong.
type audit struct {
	prefix   string
	shards   map[string]*shard
	problems []string
}

func (a *audit) complain(shard, format string, args ...any) {
	a.problems = append(a.problems, "shard "+shard+": "+fmt.Sprintf(format, args...))
}

// sort puts a key where it belongs and judges it by itself: its name, its type,
// its life-time.
func (a *audit) sort(k key) {
	id, rest, ok := strings.Cut(strings.TrimPrefix(k.name, a.prefix), "}:")
	if ok && strings.Contains(id, ":") {
		return // of another name, which begins like this one and goes on with a colon
	}
	if _, isNumber := number(id); !ok || !isNumber {
		a.complain("?", "unknown key %q", k.name)
		return
	}
	s := a.shards[id]
	if s == nil {
		s = &shard{lanes: map[string]map[string]string{}, writes: map[string]bool{}}
		a.shards[id] = s
	}
	kind, mayExpire, known := s.take(k, rest)
	switch {
	case !known || rest == "shards" && id != "0":
		a.complain(id, "unknown key %q", k.name)
	case kind != k.kind:
		a.complain(id, "key %q is a %s, not a %s", k.name, k.kind, kind)
	case mayExpire && k.ttl < 0:
		a.complain(id, "key %q has no TTL", k.name)
	case !mayExpire && k.ttl >= 0:
		a.complain(id, "key %q has a TTL", k.name)
	}
}

// take stores the content of a key and returns which type it has to be and
// whether it has to have a TTL. A key may only lose its content by expiry if
// nothing accepted is lost with it.
func (s *shard) take(k key, rest string) (kind string, mayExpire, known bool) {
	topic, operand, isOne := strings.Cut(rest, ":")
	if isOne {
		switch topic {
		case "lock":
			return "string", true, true
		case "lane":
			s.lanes[operand] = k.pairs()
			return "zset", false, true
		case "write":
			s.writes[operand] = true
			return "string", false, true
		}
		return "", false, false
	}
	switch topic {
	case "due":
		s.due = k.pairs()
		return "zset", false, true
	case "later":
		s.later = k.pairs()
		return "zset", false, true
	case "dead":
		s.dead = k.pairs()
		return "zset", false, true
	case "graves":
		s.graves = k.pairs()
		return "hash", false, true
	case "tries":
		s.tries = k.pairs()
		return "hash", false, true
	case "paused":
		return "hash", false, true
	case "clock":
		s.clock = strings.Join(k.content, "")
		return "string", false, true
	case "alive":
		return "string", true, true
	case "shards":
		return "string", false, true
	}
	return "", false, false
}

// check judges how the keys of a shard fit together.
func (a *audit) check(id string, s *shard) {
	places := map[string][]string{} // REF → where it is
	for _, lane := range slices.Sorted(maps.Keys(s.lanes)) {
		a.checkLane(id, s, lane, places)
	}
	a.checkMoments(id, "due", s.due)
	for _, lane := range slices.Sorted(maps.Keys(s.due)) {
		if len(s.lanes[lane]) == 0 {
			a.complain(id, "due has lane %q, which is empty", lane)
		}
	}
	a.checkMoments(id, "later", s.later)
	a.checkMoments(id, "dead", s.dead)
	for ref := range s.later {
		places[ref] = append(places[ref], "later")
	}
	for ref := range s.dead {
		places[ref] = append(places[ref], "dead")
	}
	a.checkPlaces(id, s, places)
	for _, ref := range difference(s.dead, s.graves) {
		a.complain(id, "write %q is dead and has no grave", ref)
	}
	for _, ref := range difference(s.graves, s.dead) {
		a.complain(id, "grave %q has nobody dead", ref)
	}
	for _, ref := range slices.Sorted(maps.Keys(s.tries)) {
		if !slices.ContainsFunc(places[ref], func(place string) bool { return place != "dead" }) {
			a.complain(id, "tries has %q, which is neither in a lane nor in later", ref)
		}
	}
}

// checkLane judges one lane and notes its writes in places.
func (a *audit) checkLane(id string, s *shard, lane string, places map[string][]string) {
	if _, indexed := s.due[lane]; !indexed {
		a.complain(id, "lane %q is not in due", lane)
	}
	clock, _, _ := strings.Cut(s.clock, " ")
	last, isClock := number(clock)
	if !isClock {
		a.complain(id, "lane %q has stamps and the clock says %q", lane, s.clock)
	}
	owner := map[int64]string{}
	for _, write := range slices.Sorted(maps.Keys(s.lanes[lane])) {
		ref := lane + nul + write
		if strings.HasPrefix(lane, nul) { // a write without a resource, alone in its lane
			ref = nul + write
			if ref != lane {
				a.complain(id, "lane %q has write %q, which does not belong there", lane, write)
			}
		}
		places[ref] = append(places[ref], fmt.Sprintf("lane %q", lane))

		stamp, isStamp := number(s.lanes[lane][write])
		if !isStamp {
			a.complain(id, "lane %q: write %q has the stamp %q", lane, write, s.lanes[lane][write])
			continue
		}
		if other, taken := owner[stamp]; taken {
			a.complain(id, "lane %q: writes %q and %q both have the stamp %d", lane, other, write, stamp)
		}
		owner[stamp] = write
		if isClock && stamp > last {
			a.complain(id, "lane %q: write %q has the stamp %d, after the clock's %d", lane, write, stamp, last)
		}
	}
}

// checkMoments judges the scores of an index.
func (a *audit) checkMoments(id, index string, moments map[string]string) {
	for _, member := range slices.Sorted(maps.Keys(moments)) {
		if _, ok := number(moments[member]); !ok {
			a.complain(id, "%s has %q at %q, which is no moment", index, member, moments[member])
		}
	}
}

// checkPlaces judges that a payload is there for every place and a place for
// every payload.
func (a *audit) checkPlaces(id string, s *shard, places map[string][]string) {
	for _, ref := range slices.Sorted(maps.Keys(places)) {
		slices.SortFunc(places[ref], cmp.Compare)
		where := strings.Join(places[ref], " and ")
		if !s.writes[ref] {
			a.complain(id, "write %q is in %s and has no payload", ref, where)
		}
		if len(places[ref]) > 1 {
			a.complain(id, "write %q is in %s", ref, where)
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(s.writes)) {
		if !strings.Contains(ref, nul) {
			a.complain(id, "payload key %q names no write", ref)
		}
		if len(places[ref]) == 0 {
			a.complain(id, "write %q has a payload and no place", ref)
		}
	}
}

// difference returns the keys of m that n does not have, in order.
func difference(m, n map[string]string) []string {
	var missing []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if _, ok := n[k]; !ok {
			missing = append(missing, k)
		}
	}
	return missing
}
