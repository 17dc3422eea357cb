package fleet

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// gates stops a process at one step.
type gates struct {
	gate Gate
	say  *sayer
	open chan struct{} // closed when the gate is opened

	// mu guards passed, how often the process came to the gate, and names: the
	// step of each script, by the hash that Redis knows it by.
	mu     sync.Mutex
	passed int
	names  map[string]string
}

func newGates(g Gate, say *sayer) *gates {
	if g.Nth == 0 {
		g.Nth = 1
	}
	return &gates{gate: g, say: say, open: make(chan struct{}), names: map[string]string{}}
}

// pass says that the process has come to a step, and stays there if that is its
// gate.
func (g *gates) pass(step string) {
	if step != g.gate.At {
		return
	}
	g.mu.Lock()
	g.passed++
	hit := g.passed == g.gate.Nth
	g.mu.Unlock()
	if hit {
		g.say.say(record{Event: saidGate, Text: step})
		<-g.open
	}
}

// hook finds the steps of a Redis client. It learns the name of each script from
// its text: the first time it sees the hash alone it answers for Redis that the
// script is not known there, and so is shown the text.
type hook struct{ *gates }

type unknownScript struct{}

func (unknownScript) Error() string { return "NOSCRIPT not known to the gates yet" }
func (unknownScript) RedisError()   {}

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		step, known := h.step(cmd)
		if !known {
			cmd.SetErr(unknownScript{})
			return unknownScript{}
		}
		if step == "" {
			return next(ctx, cmd)
		}
		h.pass("before " + step)
		err := next(ctx, cmd)
		h.pass("after " + step)
		return err
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var steps []string
		for _, cmd := range cmds {
			step, known := h.step(cmd)
			if !known {
				for _, cmd := range cmds {
					cmd.SetErr(unknownScript{})
				}
				return unknownScript{}
			}
			if step != "" {
				steps = append(steps, step)
			}
		}
		for _, s := range steps {
			h.pass("before " + s)
		}
		err := next(ctx, cmds)
		for _, s := range steps {
			h.pass("after " + s)
		}
		return err
	}
}

// header finds the first lines of the .lua files that a script is made of.
var header = regexp.MustCompile(`(?m)^-- ([a-z]+)\.lua:`)

// step names what a command is, "" for nothing of interest. It reports false for
// the hash of a script that it has never seen.
func (g *gates) step(cmd redis.Cmder) (string, bool) {
	args := cmd.Args()
	if len(args) < 3 {
		return "", true
	}
	name, text := cmd.Name(), fmt.Sprint(args[1])
	g.mu.Lock()
	defer g.mu.Unlock()
	switch name {
	case "eval":
		step := stepOf(text)
		g.names[redis.NewScript(text).Hash()] = step
		return detail(step, args), true
	case "evalsha":
		step, known := g.names[text]
		return detail(step, args), known
	}
	return "", true
}

// stepOf names a script by the last file it is made of, which is the one that
// runs; redislock's, which has no such line, by what it does.
func stepOf(text string) string {
	files := header.FindAllStringSubmatch(text, -1)
	switch {
	case len(files) > 0:
		return files[len(files)-1][1]
	case strings.Contains(text, "pexpire"):
		return "refresh"
	}
	return "other"
}

// detail tells the two uses of leave.lua apart: the end of writes of a lane, and
// the end of a direct write, which has no verdicts.
func detail(step string, args []any) string {
	const dones = 10 // ARGV[10] is the number of writes that are done, the last of what is always there
	if step != "leave" {
		return step
	}
	keys, err := strconv.Atoi(fmt.Sprint(args[2]))
	if err != nil || len(args) < 3+keys+dones {
		return step
	}
	if len(args) == 3+keys+dones && fmt.Sprint(args[len(args)-1]) == "0" {
		return "release"
	}
	return "ack"
}

// sha returns the hash of the script that does a step, "" if it was not seen.
func (g *gates) sha(step string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for sha, name := range g.names {
		if name == step {
			return sha
		}
	}
	return ""
}

// tracer finds the steps of a transaction.
type tracer struct{ *gates }

type tracedStep struct{}

func (t tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return t.begin(ctx, data.SQL)
}

func (t tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) { t.end(ctx) }

func (t tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	if len(data.Batch.QueuedQueries) == 0 {
		return ctx
	}
	return t.begin(ctx, data.Batch.QueuedQueries[0].SQL)
}

func (t tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (t tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) { t.end(ctx) }

func (t tracer) begin(ctx context.Context, sql string) context.Context {
	step, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(sql)), " ")
	if step != "begin" && step != "commit" {
		return ctx
	}
	t.pass("before " + step)
	return context.WithValue(ctx, tracedStep{}, step)
}

func (t tracer) end(ctx context.Context) {
	if step, ok := ctx.Value(tracedStep{}).(string); ok {
		t.pass("after " + step)
	}
}
