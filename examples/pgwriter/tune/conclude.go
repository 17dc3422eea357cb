package tune

import (
	"fmt"
	"io"
	"time"
)

// String says what is going to be done.
func (s *Settings) String() string {
	l := s.Load
	how := "Do"
	if l.Push {
		how = "Push"
	}
	what := "a transaction in Postgres"
	if l.Work > 0 {
		what = "nothing but wait, " + human(l.Work)
		if l.Each > 0 {
			what += " and " + human(l.Each) + " for each write"
		}
	}
	return fmt.Sprintf("%d writers submit with %s to %d accounts, skew %.3g; a batch is %s, %d at once at most.\n"+
		"%d settings, %d runs of each under two loads: %v, and longer where the hottest account takes its time.",
		l.Writers, how, l.Resources, l.Skew, what, l.Connections,
		len(s.points()), s.Rounds, s.estimate().Round(time.Second))
}

// Conclude writes what follows from a result: that nothing was lost on the way,
// what is recommended, and the plot.
func (s *Settings) Conclude(res Result, out io.Writer) error {
	c := res.Counts
	fmt.Fprintf(out, "\n%d writes were accepted, and each took effect once: %d effects in %d transactions.\n\n",
		c.Accepted, c.Effects.Writes, c.Effects.Transactions)
	fmt.Fprint(out, Recommend(res, s.P99).Text)
	if s.Plot == "" {
		return nil
	}
	if err := Plot(res, s.Plot); err != nil {
		return fmt.Errorf("draw the plot: %w", err)
	}
	fmt.Fprintln(out, "Drawn:", s.Plot)
	return nil
}
