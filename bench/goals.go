package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/peers"
	"github.com/deferlock/deferlock/bench/report"
)

// goal is what deferlock is meant to reach in one figure of one workload.
type goal struct {
	about           string
	group, workload string
	row             string // "" for deferlock
	column          report.Column
	least, most     float64 // what is not 0 counts
}

var (
	timesBytes = report.Column{Metrics: []measure.Metric{measure.Bytes}, Ratio: true}
	timesCPU   = report.Column{Head: "Redis µs × BASE", Metrics: []measure.Metric{measure.RedisCPU}, Ratio: true, Spread: true}
	timesStep  = report.Column{Metrics: []measure.Metric{measure.StepTime}, Ratio: true}
	handoverAt = report.Column{Metrics: []measure.Metric{measure.HandoverP99}}
)

var goals = []goal{
	{about: "uncontended, 1 writer: times redislock", group: "uncontended", workload: "1 writer", column: ratio, least: 0.95},
	{about: "uncontended, 64 writers: times redislock", group: "uncontended", workload: "64 writers", column: ratio, least: 1.5},
	{about: "uncontended, 256 writers: times redislock", group: "uncontended", workload: "256 writers", column: ratio, least: 2},
	{about: "hot, 1 ms of work: of what is possible", group: "hot", workload: "1 ms of work", column: bound, least: 0.97},
	{about: "hot, 1 ms of work: round trips a write", group: "hot", workload: "1 ms of work", column: cost, most: 1.1},
	{about: "hot, 1 ms of work: hand-over p99, µs", group: "hot", workload: "1 ms of work", column: handoverAt, most: 1000},
	{about: "a write of a million in one lane: times one of a thousand", group: "backlog", workload: "deferlock, one lane",
		row: "1,000,000 wait", column: timesStep, most: 1.2},
	{about: "a write of a million in cold lanes: times one of a thousand", group: "backlog", workload: "deferlock, cold lanes",
		row: "1,000,000 wait", column: timesStep, most: 1.2},
	{about: "the same in one lane, Redis's CPU time only", group: "backlog", workload: "deferlock, one lane",
		row: "1,000,000 wait", column: timesCPU, most: 1.2},
	{about: "the same in cold lanes, Redis's CPU time only", group: "backlog", workload: "deferlock, cold lanes",
		row: "1,000,000 wait", column: timesCPU, most: 1.2},
	{about: "bytes of a write in one lane: times kaito", group: "memory", workload: "one lane", column: timesBytes, most: 1},
	{about: "bytes of a write in a cold lane: times kaito", group: "memory", workload: "cold lanes", column: timesBytes, most: 1.3},
}

// goals returns a table of the goals that this run says something of.
func (b *bench) goals() string {
	var t strings.Builder
	for _, g := range goals {
		v, ok := b.reached(g)
		if !ok {
			continue
		}
		wanted, met := "at least "+report.Number(g.least), v >= g.least
		if g.most != 0 {
			wanted, met = "at most "+report.Number(g.most), v <= g.most
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %s |\n", g.about, wanted, report.Number(v), answer(met))
	}
	if t.Len() == 0 {
		return ""
	}
	return "| goal | wanted | median | met |\n|---|--:|--:|---|\n" + t.String() + "\n"
}

func (b *bench) reached(g goal) (float64, bool) {
	tables := b.tables(section{group: g.group})
	i := slices.IndexFunc(tables, func(t report.Table) bool { return t.Title == g.workload })
	if i < 0 {
		return 0, false
	}
	row := g.row
	if row == "" {
		row = peers.Deferlock.Name
	}
	return tables[i].Figure(row, g.column)
}

func answer(met bool) string {
	if met {
		return "yes"
	}
	return "**no**"
}
