package main

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/report"
)

// chart makes a plot of a section's tables, with a line or a colour for each peer
// and a place along x for each table.
type chart struct {
	file        string
	title, x, y string
	bars        bool
	metric      measure.Metric
	only        string // tables whose title ends like this
	byRow       bool   // the other way round: a line for each table, its rows along x
}

var (
	writesByWriters = chart{file: "uncontended.svg", title: "Writes per second, nobody in the way", x: "writers", y: "writes/s", metric: measure.Rate}
	hotRate         = chart{file: "hot.svg", title: "One hot resource", y: "writes/s", bars: true, metric: measure.Rate, only: "1 ms of work"}
	pacedLatency    = chart{file: "paced.svg", title: "One resource at 0.4 of what is possible: call to done, p99", y: "ms", bars: true, metric: measure.DoneP99}
	zipfRate        = chart{file: "zipf.svg", title: "Writes per second, Zipf 1.1", x: "resources", y: "writes/s", bars: true, metric: measure.Rate}
	backlogTime     = chart{file: "backlog.svg", title: "One write of a backlog", x: "backlog", y: "µs", metric: measure.StepTime, byRow: true}
	memoryBytes     = chart{file: "memory.svg", title: "What a write that waits takes in Redis", y: "bytes", bars: true, metric: measure.Bytes}
)

func delayRate(which string) chart {
	return chart{file: "delay-" + which + ".svg", title: "Writes per second with a network between, " + which, x: "delay, ms", y: "writes/s",
		metric: measure.Rate, only: ", " + which}
}

// draw draws the chart into a directory, unless there is too little to show.
func (c chart) draw(tables []report.Table, folder string) (name string, drawn bool, err error) {
	kept := slices.DeleteFunc(slices.Clone(tables), func(t report.Table) bool { return !strings.HasSuffix(t.Title, c.only) })
	p := report.Chart{Title: c.title, X: c.x, Y: c.y, Bars: c.bars}
	if c.byRow {
		p.Ticks, p.Series = c.rows(kept)
	} else {
		p.Ticks, p.Series = c.columns(kept)
	}
	if len(p.Series) == 0 || !c.bars && len(p.Ticks) < 2 {
		return "", false, nil
	}
	return c.file, true, p.Write(filepath.Join(folder, c.file))
}

// columns has a series for each peer and a tick for each table.
func (c chart) columns(tables []report.Table) (ticks []string, series []report.Series) {
	for n, t := range tables {
		ticks = append(ticks, tick(strings.TrimSuffix(t.Title, c.only)))
		for _, r := range t.Rows {
			i := slices.IndexFunc(series, func(s report.Series) bool { return s.Name == r.Name })
			if i < 0 {
				i = len(series)
				series = append(series, report.Series{Name: r.Name, Values: make([]measure.Spread, len(tables))})
			}
			series[i].Values[n] = measure.Summarise(r.Rounds)[c.metric]
		}
	}
	return ticks, series
}

// rows has a series for each table and a tick for each row.
func (c chart) rows(tables []report.Table) (ticks []string, series []report.Series) {
	for _, t := range tables {
		s := report.Series{Name: t.Title}
		ticks = ticks[:0]
		for _, r := range t.Rows {
			ticks = append(ticks, r.Name)
			s.Values = append(s.Values, measure.Summarise(r.Rounds)[c.metric])
		}
		series = append(series, s)
	}
	return ticks, series
}

// tick shortens "16 writers" to "16", and leaves other titles as
// they are.
func tick(title string) string {
	number, rest, ok := strings.Cut(title, " ")
	if _, err := strconv.Atoi(number); ok && err == nil && !strings.Contains(rest, " ") {
		return number
	}
	return title
}
