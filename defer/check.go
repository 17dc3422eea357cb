package deferral

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	// Warning is for what may be meant so, and for what could not be checked.
	Warning Severity = "warning"

	// Problem is for what breaks a promise of this package.
	Problem Severity = "problem"
)

// Finding is one thing that [Queue.Check] found.
type Finding struct {
	Severity Severity

	// Code names the kind of finding; it does not change between releases.
	Code string

	// Text says what was found and what follows from it. It may name resources
	// and IDs, never a payload.
	Text string
}

// The codes of what Check finds. What is a [Problem] may come as a [Warning]
// where less is at stake.
const (
	CodeNotChecked     = "not-checked"     // Redis does not let us see it
	CodeVersion        = "redis-version"   // older than 6.2
	CodeEviction       = "eviction"        // Redis may throw writes and locks away when memory is full
	CodeNoPersistence  = "no-persistence"  // a restart loses what is stored, or the last minutes of it
	CodeFsync          = "fsync"           // a power cut loses up to half a minute
	CodePersistFailing = "persist-failing" // the disk does not take what Redis writes
	CodeReplicas       = "replicas"        // fewer replicas than Config.Replicas
	CodeMinReplicas    = "min-replicas"    // a primary that is cut off goes on, or a healthy one refuses writes
	CodeReadOnly       = "read-only"       // the server is a replica
	CodeShards         = "shards"          // other processes use another number of shards
	CodeRights         = "rights"          // the user may not do what the queue does
	CodeRefused        = "refused"         // a script is refused for another reason
	CodeClockOffset    = "clock-offset"    // Redis's clock and this process's differ
	CodeClockAhead     = "clock-ahead"     // Redis's clock was set back, or the queue was moved here
	CodeContextTimeout = "context-timeout" // calls may outlast their context
	CodeClusterReload  = "cluster-reload"  // the client learns late of a failover
	CodeEndlessLock    = "endless-lock"    // a lock that never expires
	CodeStrayPayload   = "stray-payload"   // a payload that belongs to no write
	CodeMissingPayload = "missing-payload" // a write that cannot run
	CodeNotIndexed     = "not-indexed"     // a lane that nobody looks at
)

// What Check holds to be in order.
const (
	maxOffset          = time.Second     // between the clocks
	maxReload          = 5 * time.Second // between a cluster client's looks at the cluster
	minMajor, minMinor = 6, 2            // of Redis
	persistOK          = "ok"            // in INFO
)

// Check looks for whatever may break the promises of this queue: how Redis is
// set up, what its user may do, the client's options, the clocks, and every key
// of the queue. What is in order is not mentioned. It looks at each server that
// keeps a part of the queue, and at every key in the database, in steps that do
// not hold Redis up: it takes time in proportion to all keys there, so it is for
// an operator and not for every start; see [Queue.CheckSetup].
//
// It tries the scripts in a key space of its own whose Name begins like the
// queue's, "name:check-…", and leaves nothing behind. What Redis does not let it
// see is a [Warning]. An error means that Redis could not be reached, or that
// ctx has ended; what was found until then is returned with it.
func (q *Queue) Check(ctx context.Context) ([]Finding, error) {
	c := &checkup{q: q}
	if err := c.setup(ctx); err != nil || c.otherShards {
		return c.result(err)
	}
	return c.result(c.keys(ctx))
}

// CheckSetup is Check without a look at the queue's keys. What it costs does
// not depend on how much waits: about a hundred small commands, in some 40 round
// trips, for each server.
func (q *Queue) CheckSetup(ctx context.Context) ([]Finding, error) {
	c := &checkup{q: q}
	return c.result(c.setup(ctx))
}

func isProblem(f Finding) bool { return f.Severity == Problem }

// checkup collects findings.
type checkup struct {
	q        *Queue
	findings []Finding
	where    string // before each text, when there are several servers

	// otherShards says that the keys are not where this process looks.
	otherShards bool
}

func (c *checkup) result(err error) ([]Finding, error) {
	if err != nil {
		return c.findings, fmt.Errorf("deferral: check: %w", err)
	}
	return c.findings, nil
}

func (c *checkup) add(s Severity, code, format string, args ...any) {
	c.findings = append(c.findings, Finding{Severity: s, Code: code, Text: c.where + fmt.Sprintf(format, args...)})
}

// refused notes that Redis did not let us see something, and returns the errors
// that are not Redis's answer.
func (c *checkup) refused(what string, err error) error {
	if !isAnswer(err) {
		return err
	}
	c.add(Warning, CodeNotChecked, "%s could not be checked: %v", what, err)
	return nil
}

// isAnswer tells a reply of Redis's from a failure to reach it.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

func (c *checkup) setup(ctx context.Context) error {
	c.client()
	switch err := c.q.agree(ctx); {
	case errors.Is(err, ErrShards):
		c.otherShards = true
		c.add(Problem, CodeShards, "%v: nothing can be pushed or popped", err)
	case err != nil:
		if err := c.refused("the number of shards", err); err != nil {
			return err
		}
	}
	nodes, err := c.q.nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if c.where = ""; len(nodes) > 1 {
			c.where = n.rdb.Options().Addr + ": "
		}
		if err := c.node(ctx, n); err != nil {
			return err
		}
	}
	c.where = ""
	return nil
}

func (c *checkup) node(ctx context.Context, n node) error {
	if err := n.rdb.Ping(ctx).Err(); err != nil && !isAnswer(err) {
		return err
	}
	writable, err := c.server(ctx, n)
	if err != nil {
		return err
	}
	if err := c.clock(ctx, n); err != nil {
		return err
	}
	if !writable {
		return nil
	}
	return c.rights(ctx, n)
}

// client looks at the options of this process's client.
func (c *checkup) client() {
	honours := true
	switch rdb := c.q.rdb.(type) {
	case *redis.Client:
		honours = rdb.Options().ContextTimeoutEnabled
	case *redis.Ring:
		honours = rdb.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		honours = rdb.Options().ContextTimeoutEnabled
		if every := rdb.Options().ClusterStateReloadInterval; every > maxReload {
			c.add(Warning, CodeClusterReload, "the client's ClusterStateReloadInterval is %v: after a failover it may go on for that long "+
				"asking a master that is dead; %v or less finds the new one sooner", every, maxReload)
		}
	}
	if !honours {
		c.add(Warning, CodeContextTimeout, "the client's ContextTimeoutEnabled is off: a call may outlast the deadline of its context "+
			"by the client's read timeout and retries")
	}
}

// clock compares the clocks of Redis, of this process and of the queue.
func (c *checkup) clock(ctx context.Context, n node) error {
	before := time.Now()
	theirs, err := n.rdb.Time(ctx).Result()
	if err != nil {
		return c.refused("the server's clock", err)
	}
	// The server read its clock at some moment of the round trip.
	half := time.Since(before) / 2
	offset := theirs.Sub(before.Add(half))
	if offset.Abs()-half > maxOffset {
		c.add(Warning, CodeClockOffset, "the clock of Redis is %v off the clock of this process: the queue goes by that of Redis, "+
			"so Write.At means another moment than this process may think", offset.Round(time.Millisecond))
	}
	for shards := range slices.Chunk(n.shards, scanCount) {
		if err := c.clocks(ctx, n, shards, theirs); err != nil {
			return err
		}
	}
	return nil
}

// clocks looks at the last stamps that some shards have given.
func (c *checkup) clocks(ctx context.Context, n node, shards []int, now time.Time) error {
	pipe := n.rdb.Pipeline()
	last := make([]*redis.StringCmd, len(shards))
	for i, s := range shards {
		last[i] = pipe.Get(ctx, c.q.space.Shard(s).Clock)
	}
	if _, err := pipe.Exec(ctx); err != nil && !isAnswer(err) {
		return err
	}
	for i, cmd := range last {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return c.refused("the queue's clock", err)
		}
		text, _, _ := strings.Cut(cmd.Val(), " ")
		stamp, err := strconv.ParseInt(text, 10, 64)
		if ahead := time.UnixMicro(stamp).Sub(now); err == nil && ahead > maxOffset {
			c.add(Warning, CodeClockAhead, "the queue's clock (shard %d) is %v ahead of Redis's, which was set back: the order of writes "+
				"is kept, and delays take up to twice as long until Redis's clock has caught up", shards[i], ahead.Round(time.Millisecond))
		}
	}
	return nil
}
