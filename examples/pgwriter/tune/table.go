package tune

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// table shows the figures of one load, a row for each point.
type table struct {
	title string
	full  bool // else at the user's rate
}

// of is where the figures of the table's load are.
func (t table) of(m *Measured) *[]Figures {
	if t.full {
		return &m.Full
	}
	return &m.Rate
}

func fullTitle(s *Settings) string {
	return fmt.Sprintf("Full load: as fast as %d writers can submit, at most %d writes unfinished", s.Load.Writers, s.Load.Outstanding)
}

func rateTitle(rate float64) string {
	return fmt.Sprintf("Your rate: %s writes a second, at random moments", number(rate))
}

const (
	fullColumns = "%8s  %5s  %8s  %5s  %7s  %9s  %6s  %8s%s\n"
	rateColumns = "%8s  %5s  %8s  %9s  %6s  %8s  %8s  %8s%s\n"
	behind      = "  behind: it cannot do this rate"
	throttled   = "  perhaps held back by -outstanding"
)

func (t table) begin(out io.Writer) {
	fmt.Fprintf(out, "\n%s\n", t.title)
	if t.full {
		fmt.Fprintf(out, fullColumns, "lookback", "batch", "writes/s", "±", "× first", "writes/tx", "tx/s", "deferred", "")
	} else {
		fmt.Fprintf(out, rateColumns, "lookback", "batch", "writes/s", "writes/tx", "tx/s", "deferred", "p50", "p99", "")
	}
}

// status says what is being done, on a terminal, until it is called with "" or a
// row follows.
func (t table) status(at Place, text string) {
	if at.Terminal {
		fmt.Fprintf(at.Out, "\r\x1b[K%s", text)
	}
}

func (t table) row(out io.Writer, s *Settings, m, first Measured) {
	lookback, batch := human(m.Lookback), strconv.Itoa(m.Batch)
	f, one, note := typical(*t.of(&m)), typical(*t.of(&first)), ""
	writes, perTransaction, transactions := fmt.Sprintf("%.0f", f.Writes), fmt.Sprintf("%.2f", f.PerTransaction()), fmt.Sprintf("%.0f", f.Transactions)
	if !t.full {
		if f.Behind {
			note = behind
		}
		fmt.Fprintf(out, rateColumns, lookback, batch, writes, perTransaction, transactions, percent(f.Deferred), human(f.P50), human(f.P99), note)
		return
	}
	apart := "?"
	if len(m.Full) > 1 {
		apart = percent(spread(writesOf(m.Full)) / 2)
	}
	if isThrottled(s.Load, m.Point, f) {
		note = throttled
	}
	fmt.Fprintf(out, fullColumns, lookback, batch, writes, apart, ratio(f.Writes, one.Writes), perTransaction, transactions, percent(f.Deferred), note)
}

// isThrottled says that it may have been -outstanding that kept a point from
// doing more, not the setting: so many writes at a time waited for their lookback
// that there was no room for more. A write waits for half of it on the average.
func isThrottled(l Load, p Point, f Figures) bool {
	return f.Writes*f.Deferred*p.Lookback.Seconds()/2 > 0.7*float64(l.Outstanding)
}

// String says which point it is, as in the recommendation.
func (p Point) String() string {
	return fmt.Sprintf("lookback %s, batch %d", human(p.Lookback), p.Batch)
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// human has three digits at the most below 10 seconds: nothing here is more
// exact.
func human(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d < time.Second:
		return number(d.Seconds()*1000) + " ms"
	default:
		return number(d.Seconds()) + " s"
	}
}

// number has three digits, or all before the point, and no zeros at its end.
func number(v float64) string {
	decimals := 2
	switch {
	case v >= 100:
		decimals = 0
	case v >= 10:
		decimals = 1
	}
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}
