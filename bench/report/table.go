package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/deferlock/deferlock/bench/measure"
)

// Table is what one workload gave.
type Table struct {
	Title, About string
	Base         string // the row that the others are set beside
	Rows         []Row
	Columns      []Column
}

// Row is one peer, or one case, with what each of its rounds gave.
type Row struct {
	Name   string
	Rounds []measure.Figures
}

// Column is one figure, or several behind one another.
type Column struct {
	Head    string
	Metrics []measure.Metric
	Ratio   bool   // to the base, round by round
	Base    string // of the ratio, if it is not the table's
	Spread  bool   // with the least and the greatest
}

// Markdown returns the table. A column that would say nothing, or 0, of every
// row is left out.
func (t Table) Markdown() string {
	columns := slices.DeleteFunc(slices.Clone(t.Columns), func(c Column) bool { return t.empty(c) })
	var b strings.Builder
	fmt.Fprintf(&b, "**%s.** %s\n\n|  |", t.Title, t.About)
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", strings.ReplaceAll(c.Head, "BASE", t.Base))
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(columns)) + "\n")
	for _, r := range t.Rows {
		fmt.Fprintf(&b, "| %s |", r.Name)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", t.cell(r, c))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Figure is the median of a column's first figure in one row, and false if there
// is none.
func (t Table) Figure(row string, c Column) (float64, bool) {
	i := slices.IndexFunc(t.Rows, func(r Row) bool { return r.Name == row })
	if i < 0 {
		return 0, false
	}
	s, ok := measure.Summarise(t.rounds(t.Rows[i], c))[c.Metrics[0]]
	return s.Median, ok
}

func (t Table) empty(c Column) bool {
	for _, r := range t.Rows {
		for _, f := range t.rounds(r, c) {
			if slices.ContainsFunc(c.Metrics, func(m measure.Metric) bool { return f[m] != 0 }) {
				return false
			}
		}
	}
	return true
}

// rounds are the figures of a row that a column is about.
func (t Table) rounds(r Row, c Column) []measure.Figures {
	if c.Ratio {
		return t.ratios(r, c.Metrics[0], cmp.Or(c.Base, t.Base))
	}
	return r.Rounds
}

func (t Table) cell(r Row, c Column) string {
	rounds := t.rounds(r, c)
	spreads := measure.Summarise(rounds)
	var parts []string
	for _, m := range c.Metrics {
		s, ok := spreads[m]
		switch {
		case !ok:
		case c.Spread && len(rounds) > 1:
			parts = append(parts, fmt.Sprintf("%s (%s–%s)", Number(s.Median), Number(s.Min), Number(s.Max)))
		default:
			parts = append(parts, Number(s.Median))
		}
	}
	return cmp.Or(strings.Join(parts, " / "), "–")
}

// ratios returns a figure of each round over that of the base in the same
// round, which came a moment before or after it.
func (t Table) ratios(r Row, m measure.Metric, base string) []measure.Figures {
	i := slices.IndexFunc(t.Rows, func(r Row) bool { return r.Name == base })
	if i < 0 {
		return nil
	}
	var ratios []measure.Figures
	for n, f := range r.Rounds {
		if n >= len(t.Rows[i].Rounds) {
			break
		}
		v, ok := f[m]
		base := t.Rows[i].Rounds[n][m]
		if ok && base != 0 {
			ratios = append(ratios, measure.Figures{m: v / base})
		}
	}
	return ratios
}

// Number writes a figure with three digits that count, and whole from 100 on.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "0"
	case a >= 1000:
		return thousands(int64(math.Round(v)))
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.01:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.1g", v)
}

func thousands(n int64) string {
	if n < 0 {
		return "-" + thousands(-n)
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}
