package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
	"github.com/deferlock/deferlock/bench/report"
)

// section is what the report says of a group of workloads.
type section struct {
	group, title string
	columns      []report.Column
	charts       []chart
}

var (
	ratio    = report.Column{Head: "× BASE", Metrics: []measure.Metric{measure.Rate}, Ratio: true, Spread: true}
	rate     = report.Column{Head: "writes/s", Metrics: []measure.Metric{measure.Rate}, Spread: true}
	bound    = report.Column{Head: "of what is possible", Metrics: []measure.Metric{measure.Bound}, Spread: true}
	cost     = report.Column{Head: "round trips", Metrics: []measure.Metric{measure.RoundTrips}}
	commands = report.Column{Head: "commands", Metrics: []measure.Metric{measure.Commands}}
	cpu      = report.Column{Head: "CPU µs, Redis / here", Metrics: []measure.Metric{measure.RedisCPU, measure.ClientCPU}}
	objects  = report.Column{Head: "allocations", Metrics: []measure.Metric{measure.Allocations}}
	refused  = report.Column{Head: "refused", Metrics: []measure.Metric{measure.Refused}}
	deferred = report.Column{Head: "deferred", Metrics: []measure.Metric{measure.Deferred}}
	handover = report.Column{Head: "hand-over µs, p50 / p99 / max", Metrics: []measure.Metric{measure.HandoverP50, measure.HandoverP99, measure.HandoverMax}}
	latency  = report.Column{Head: "call to done ms, p50 / p99", Metrics: []measure.Metric{measure.DoneP50, measure.DoneP99}}
	overtook = report.Column{Head: "overtaken", Metrics: []measure.Metric{measure.Overtakings}}
	bad      = report.Column{Head: "overlaps / twice / failed / unfinished", Metrics: []measure.Metric{measure.Overlaps, measure.Twice, measure.Failed, measure.Unfinished}}

	pings = report.Column{Head: "of 2 PINGs", Metrics: []measure.Metric{measure.Rate}, Ratio: true, Base: peers.Ping.Name}

	apart    = []report.Column{ratio, rate, pings, cost, commands, cpu, objects, latency, bad}
	together = []report.Column{ratio, rate, pings, bound, cost, commands, cpu, refused, deferred, handover, latency, overtook, bad}
)

// sections are in the order of the report.
var sections = []section{
	{group: "uncontended", title: "Nobody in the way", columns: apart, charts: []chart{writesByWriters}},
	{group: "hot", title: "One hot resource", columns: together, charts: []chart{hotRate}},
	{group: "paced", title: "One resource that is busy, but not too busy", columns: together, charts: []chart{pacedLatency}},
	{group: "zipf", title: "Some resources hotter than others", columns: together, charts: []chart{zipfRate}},
	{group: "delay", title: "A network between", columns: together, charts: []chart{delayRate("uncontended"), delayRate("hot")}},
	{group: "processes", title: "Several processes", columns: together},
	{group: "backlog", title: "While many others wait", charts: []chart{backlogTime}, columns: []report.Column{
		{Head: "µs × BASE", Metrics: []measure.Metric{measure.StepTime}, Ratio: true, Spread: true},
		{Head: "µs", Metrics: []measure.Metric{measure.StepTime}, Spread: true}, timesCPU, cost, commands, cpu,
	}},
	{group: "memory", title: "What waits in Redis", charts: []chart{memoryBytes}, columns: []report.Column{
		{Head: "× BASE", Metrics: []measure.Metric{measure.Bytes}, Ratio: true}, {Head: "bytes", Metrics: []measure.Metric{measure.Bytes}},
	}},
	{group: "idle", title: "Nothing to do", columns: []report.Column{
		{Head: "commands/s sent", Metrics: []measure.Metric{measure.Sent}},
		{Head: "executed, those in scripts included", Metrics: []measure.Metric{measure.Executed}},
	}},
}

// write writes the report, its plots and the figures of all rounds.
func (b *bench) write(ctx context.Context, set settings, out io.Writer) error {
	if err := os.MkdirAll(set.out, 0o755); err != nil {
		return err
	}
	about, err := b.about(ctx)
	if err != nil {
		return err
	}
	if err := b.writeFigures(filepath.Join(set.out, "figures.json"), about); err != nil {
		return err
	}
	text, err := b.report(set, about, set.out, "")
	if err != nil {
		return err
	}
	name := filepath.Join(set.out, "report.md")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return err
	}
	if set.page != "" {
		if err := b.writePage(set, about); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, name)
	return err
}

// writePage puts the report into a page and its plots into a directory beside
// it that is named like it.
func (b *bench) writePage(set settings, about []string) error {
	folder := strings.TrimSuffix(filepath.Base(set.page), filepath.Ext(set.page))
	plots := filepath.Join(filepath.Dir(set.page), folder)
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	text, err := b.report(set, about, plots, folder+"/")
	if err != nil {
		return err
	}
	return report.ReplaceIn(set.page, text)
}

// report returns the report; its plots are drawn into a directory, and linked
// to with a prefix.
func (b *bench) report(set settings, about []string, plots, prefix string) (string, error) {
	var t strings.Builder
	t.WriteString(set.repeat() + "\n\n")
	for _, line := range about {
		fmt.Fprintf(&t, "- %s\n", line)
	}
	t.WriteString("\n" + explanation + "\n\n")
	b.writePeers(&t)
	t.WriteString(b.goals())
	for _, s := range sections {
		tables := b.tables(s)
		if len(tables) == 0 {
			continue
		}
		fmt.Fprintf(&t, "### %s\n\n", s.title)
		for _, c := range s.charts {
			name, drawn, err := c.draw(tables, plots)
			if err != nil {
				return "", err
			}
			if drawn {
				fmt.Fprintf(&t, "![%s](%s%s)\n\n", s.title, prefix, name)
			}
		}
		for _, table := range tables {
			t.WriteString(table.Markdown() + "\n")
		}
	}
	return t.String(), nil
}

const explanation = "Figures are medians of the rounds, with the least and the greatest in parentheses; ratios are worked out " +
	"round by round, each peer beside the base of the same round. Round trips, commands (those within scripts included), CPU, " +
	"allocations and refused locks are per write. *Hand-over* is how long the resource lay idle after a write although another one " +
	"had been handed over; *refused* counts attempts at a lock that found it taken (for deferlock the same script then stored the write; " +
	"what its Run finds locked is not counted); *overtaken* counts writes that were done after one which was handed over only when they had been accepted."

// writePeers says what is set side by side.
func (b *bench) writePeers(t *strings.Builder) {
	t.WriteString("| | what it is | what it does not promise that deferlock does |\n|---|---|---|\n")
	for _, k := range peers.All {
		if b.has(k) {
			fmt.Fprintf(t, "| %s | %s | %s |\n", k.Name, k.About, k.Lacks)
		}
	}
	t.WriteString("\n")
}

func (b *bench) has(k peers.Kind) bool {
	return slices.ContainsFunc(b.results, func(o outcome) bool {
		return slices.ContainsFunc(o.Workload.Cases, func(c testCase) bool { return c.Kind.Name == k.Name })
	})
}

// tables are those of a section's workloads.
func (b *bench) tables(s section) []report.Table {
	var tables []report.Table
	for _, o := range b.results {
		if o.Workload.Group != s.group {
			continue
		}
		about := o.Workload.About
		if o.Workload.Fewer && b.size.rounds > 1 {
			about += fmt.Sprintf(" (%s.)", plural(o.Workload.roundsOf(b.size.rounds), "round"))
		}
		t := report.Table{Title: o.Workload.Name, About: about, Base: o.Workload.Base, Columns: s.columns}
		for _, c := range o.Workload.Cases {
			t.Rows = append(t.Rows, report.Row{Name: c.Name, Rounds: o.Rounds[c.Name]})
		}
		tables = append(tables, t)
	}
	return tables
}

// repeat is the command that does the same again.
func (s settings) repeat() string {
	var b strings.Builder
	b.WriteString("    cd bench && go run .")
	if s.quick {
		b.WriteString(" -quick")
	}
	for _, f := range []struct{ name, value string }{{"only", s.only}, {"peers", s.peers}} {
		if f.value != "" {
			fmt.Fprintf(&b, " -%s %q", f.name, f.value)
		}
	}
	if s.rounds > 0 {
		fmt.Fprintf(&b, " -rounds %d", s.rounds)
	}
	return b.String()
}

// about says where it was measured.
func (b *bench) about(ctx context.Context) ([]string, error) {
	info, err := b.admin(0).InfoMap(ctx, "server").Result()
	if err != nil {
		return nil, err
	}
	trip, err := b.ping(ctx)
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version()),
		fmt.Sprintf("Redis %s, %s; a PING takes %s µs (median)", info["Server"]["redis_version"], b.server.about,
			report.Number(float64(trip.Nanoseconds())/1e3)),
		fmt.Sprintf("%s, %d connections a peer, %v in all", plural(b.size.rounds, "round"), b.pool, time.Since(b.began).Round(time.Second)),
	}, nil
}

// ping is the median of some round trips, one after the other.
func (b *bench) ping(ctx context.Context) (time.Duration, error) {
	trips := make([]time.Duration, 1001)
	for i := range trips {
		began := time.Now()
		if err := b.admin(0).Ping(ctx).Err(); err != nil {
			return 0, err
		}
		trips[i] = time.Since(began)
	}
	slices.Sort(trips)
	return trips[len(trips)/2], nil
}

// writeFigures keeps the figures of every round.
func (b *bench) writeFigures(path string, about []string) error {
	type row struct {
		Group, Workload, Case string
		Rounds                []measure.Figures
	}
	var rows []row
	for _, o := range b.results {
		for _, c := range o.Workload.Cases {
			rows = append(rows, row{o.Workload.Group, o.Workload.Name, c.Name, o.Rounds[c.Name]})
		}
	}
	text, err := json.MarshalIndent(map[string]any{"about": about, "rows": rows}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
