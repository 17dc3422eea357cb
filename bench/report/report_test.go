package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/deferlock/deferlock/bench/measure"
	"github.com/deferlock/deferlock/bench/report"
)

func TestNumbersHaveThreeDigitsThatCount(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.004: "0.004", 0.0123: "0.01", 0.97: "0.97", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234.5: "1,235",
		1234567: "1,234,567", -2.5: "-2.50", 999.7: "1000", 1_000_001: "1,000,001",
	} {
		if got := report.Number(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
}

func rounds(m measure.Metric, values ...float64) []measure.Figures {
	var all []measure.Figures
	for _, v := range values {
		all = append(all, measure.Figures{m: v})
	}
	return all
}

func TestTables(t *testing.T) {
	rate := report.Column{Head: "writes/s", Metrics: []measure.Metric{measure.Rate}, Spread: true}
	ratio := report.Column{Head: "× BASE", Metrics: []measure.Metric{measure.Rate}, Ratio: true, Spread: true}
	other := report.Column{Head: "of c", Metrics: []measure.Metric{measure.Rate}, Ratio: true, Base: "c"}
	both := report.Column{Head: "p50 / p99", Metrics: []measure.Metric{measure.DoneP50, measure.DoneP99}}
	never := report.Column{Head: "overlaps", Metrics: []measure.Metric{measure.Overlaps}}
	for name, c := range map[string]struct {
		table report.Table
		want  string
	}{
		"ratios are worked out round by round, not of medians": {
			report.Table{Title: "T", About: "A.", Base: "a", Columns: []report.Column{ratio, rate}, Rows: []report.Row{
				{Name: "a", Rounds: rounds(measure.Rate, 100, 10, 50)}, {Name: "b", Rounds: rounds(measure.Rate, 200, 30, 50)},
			}},
			"**T.** A.\n\n|  | × a | writes/s |\n|---|--:|--:|\n" +
				"| a | 1.00 (1.00–1.00) | 50.0 (10.0–100) |\n| b | 2.00 (1.00–3.00) | 50.0 (30.0–200) |\n",
		},
		"one round has no spread": {
			report.Table{Title: "T", About: "A.", Base: "a", Columns: []report.Column{rate}, Rows: []report.Row{{Name: "a", Rounds: rounds(measure.Rate, 7)}}},
			"**T.** A.\n\n|  | writes/s |\n|---|--:|\n| a | 7.00 |\n",
		},
		"a column of nothing, or of zeros, or beside nobody, is left out": {
			report.Table{Title: "T", About: "A.", Base: "a", Columns: []report.Column{rate, both, never, other}, Rows: []report.Row{
				{Name: "a", Rounds: []measure.Figures{{measure.Rate: 7, measure.Overlaps: 0}}},
			}},
			"**T.** A.\n\n|  | writes/s |\n|---|--:|\n| a | 7.00 |\n",
		},
		"a row without a figure has a dash": {
			report.Table{Title: "T", About: "A.", Base: "a", Columns: []report.Column{both}, Rows: []report.Row{
				{Name: "a", Rounds: []measure.Figures{{measure.DoneP50: 1.5, measure.DoneP99: 20}}}, {Name: "b", Rounds: rounds(measure.Rate, 1)},
			}},
			"**T.** A.\n\n|  | p50 / p99 |\n|---|--:|\n| a | 1.50 / 20.0 |\n| b | – |\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.table.Markdown(); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}

func TestReportGoesBetweenThePagesMarks(t *testing.T) {
	page := "before\n" + report.Begin + "\nold\n" + report.End + "\nafter\n"
	first, err := report.Replace(page, "new\n")
	if err != nil || first != "before\n"+report.Begin+"\n\nnew\n\n"+report.End+"\nafter\n" {
		t.Errorf("%q, %v", first, err)
	}
	if again, err := report.Replace(first, "new"); again != first || err != nil {
		t.Errorf("the second time: %q, %v", again, err)
	}
	for _, bad := range []string{"", "no marks\n", report.Begin + "\nonly one\n"} {
		if _, err := report.Replace(bad, "new"); !errors.Is(err, report.ErrNoMarks) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestChartsAreWellFormedAndNameTheirSeries(t *testing.T) {
	some := []measure.Spread{{Median: 2, Min: 1, Max: 4}, {}, {Median: 3, Min: 3, Max: 3}}
	for name, c := range map[string]report.Chart{
		"lines":    {Title: "T", X: "x", Y: "y", Ticks: []string{"1", "2", "3"}, Series: []report.Series{{Name: "ours", Values: some}, {Name: "theirs", Values: some}}},
		"bars":     {Title: "T", Y: "y", Ticks: []string{"1", "2", "3"}, Bars: true, Series: []report.Series{{Name: "ours", Values: some}, {Name: "theirs", Values: some}}},
		"nothing":  {Title: "T", X: "x", Y: "y", Ticks: []string{"1", "2", "3"}, Series: []report.Series{{Name: "ours and theirs", Values: some}, {Name: "nobody's", Values: make([]measure.Spread, 3)}}},
		"all zero": {Title: "T", Y: "y", Ticks: []string{"1"}, Bars: true, Series: []report.Series{{Name: "ours", Values: make([]measure.Spread, 1)}, {Name: "theirs", Values: make([]measure.Spread, 1)}}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "plot.svg")
			if err := c.Write(path); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
				_, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if !strings.Contains(string(text), "ours") || !strings.Contains(string(text), "theirs") {
				t.Error("the legend is not there")
			}
		})
	}
}
