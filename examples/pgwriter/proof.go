package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed checks/*.sql
var checks embed.FS

// finding is what one check has found: nothing, if all is well.
type finding struct {
	good, bad string // what it says when all is well, and when it is not
	count     int
	examples  []string
}

// theChecks are the queries of which every row is a violation. Each needs no
// more than to read the entries once, in order.
var theChecks = []struct{ file, good, bad string }{
	{"lost", "every accepted write took effect", "accepted writes were lost"},
	{"twice", "none took effect twice", "writes took effect more than once"},
	{"foreign", "nothing took effect that was not submitted", "effects nobody asked for"},
	{"sequence", "each writer's writes to an account are in the order it submitted them", "writes came behind later ones of the same writer"},
	{"overtaken", "no write overtook one accepted before it was submitted, in whatever process", "writes overtook others that were accepted before"},
	{"overlap", "no two writes to an account overlapped", "writes began before their predecessor had ended"},
	{"chain", "each write found the balance its predecessor left", "writes started from a stale balance: an update was lost"},
	{"fence", "on each account the fences only rose", "fences went back"},
	{"balance", "the balances are the sums of what was accepted", "accounts hold a wrong balance"},
}

// saveSubmissions puts what was submitted beside what took effect.
func saveSubmissions(ctx context.Context, db *pgxpool.Pool, c *credits, submissions [][]submission) error {
	var rows [][]any
	for writer, subs := range submissions {
		for i, s := range subs {
			if s.called == 0 {
				continue
			}
			var returned any
			if s.returned != 0 {
				returned = s.returned
			}
			w := c.of(writer, i+1)
			rows = append(rows, []any{w.ID, writer, i + 1, w.Account, w.Amount, s.called, returned})
		}
	}
	columns := []string{"write", "writer", "seq", "account", "amount", "called", "returned"}
	if _, err := db.CopyFrom(ctx, pgx.Identifier{"submitted"}, columns, pgx.CopyFromRows(rows)); err != nil {
		return fmt.Errorf("save what was submitted: %w", err)
	}
	return nil
}

// prove runs the checks. The plain recipe has no fences to look at.
func prove(ctx context.Context, db *pgxpool.Pool, naive bool) ([]finding, error) {
	var findings []finding
	for _, c := range theChecks {
		if naive && c.file == "fence" {
			continue
		}
		query, err := checks.ReadFile("checks/" + c.file + ".sql")
		if err != nil {
			return nil, err
		}
		rows, err := db.Query(ctx, string(query))
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", c.file, err)
		}
		bad, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("check %s: %w", c.file, err)
		}
		findings = append(findings, finding{c.good, c.bad, len(bad), bad[:min(len(bad), 2)]})
	}
	return findings, nil
}

// introduce says what will be done.
func introduce(out io.Writer, c *credits) {
	how := "through deferlock"
	if c.Naive {
		how = "with the plain recipe: lock, push on conflict, pop; no order, no fence"
	}
	fmt.Fprintf(out, "%d writes to %d accounts, %s.\n%d processes with %d writers each; %.0f %% of the writes go to account-1 (skew %g); "+
		"the handler takes %v; %d processes will be killed (seed %d).\n",
		c.Writes, c.Resources, how, c.Processes, c.Writers, 100*c.hottest(), c.Skew, c.Takes, c.Kill, c.Seed)
}

// report says what was done and what was found, and whether nothing was found.
func report(out io.Writer, c *credits, t tally, took time.Duration, findings []finding) (proved bool) {
	fmt.Fprintf(out, "%d writes were accepted: %d ran at once, %d were deferred. Nothing waited any more after %.1f s: %.0f writes a second.\n",
		t.accepted, t.accepted-t.deferred, t.deferred, took.Seconds(), float64(t.accepted)/took.Seconds())
	fmt.Fprintf(out, "Processes killed and replaced: %d. Writes that were being submitted by them, and were submitted again under the same IDs: %d.\n",
		t.killed, t.again)
	if c.Naive {
		fmt.Fprintf(out, "Times a deferred write was popped, found its lock taken and was pushed again: %d.\n\n", t.retried)
	} else {
		fmt.Fprintf(out, "Deferred writes that were fetched again, for the process that had fetched them was dead: %d.\n\n", t.retried)
	}
	fmt.Fprintln(out, "The database says:")
	wrong := 0
	for _, f := range findings {
		if f.count == 0 {
			fmt.Fprintln(out, "  ok    ", f.good)
			continue
		}
		wrong++
		fmt.Fprintf(out, "  WRONG  %d %s, e.g. %s\n", f.count, f.bad, strings.Join(f.examples, "; "))
	}
	fmt.Fprintln(out, verdict(c, wrong))
	return wrong == 0
}

func verdict(c *credits, wrong int) string {
	switch {
	case c.Naive && wrong > 0:
		return "This is what the plain recipe does under this load. Run it without -naive to see what deferlock does."
	case c.Naive:
		return "Nothing went wrong this time, by luck: nothing in the plain recipe prevents it. Try more writes, or a larger -kill."
	case wrong > 0:
		return "NOT PROVED: this should not happen. Please report it, with the lines above."
	}
	return "Proved: every accepted write is there exactly once, in order, and no two overlapped."
}
