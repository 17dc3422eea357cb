package tune

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Plot draws writes a second at full load, and below it p50 and p99 at the
// user's rate, over the batch, with a line for each lookback. The file's name
// ends with .svg or .png.
func Plot(res Result, file string) (err error) {
	ticks := batchTicks(res.Points)
	above, err := throughput(res, ticks)
	if err != nil {
		return err
	}
	below, err := latency(res, ticks)
	if err != nil {
		return err
	}
	const width, height = 18 * vg.Centimeter, 22 * vg.Centimeter
	canvas, err := draw.NewFormattedCanvas(width, height, strings.TrimPrefix(filepath.Ext(file), "."))
	if err != nil {
		return err
	}
	plots := [][]*plot.Plot{{above}, {below}}
	const edge = 5 * vg.Millimeter
	tiles := draw.Tiles{Cols: 1, Rows: 2, PadTop: edge, PadBottom: edge, PadLeft: edge, PadRight: edge, PadY: 2 * edge}
	for i, c := range plot.Align(plots, tiles, draw.New(canvas)) {
		plots[i][0].Draw(c[0])
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = canvas.WriteTo(f)
	return err
}

func throughput(res Result, ticks plot.ConstantTicks) (*plot.Plot, error) {
	p := newPlot("Full load", "writes a second", ticks)
	most := 0.0
	for i, lookback := range lookbacks(res.Points) {
		values := curve(res.Points, lookback, func(m Measured) float64 { return typical(m.Full).Writes })
		for _, v := range values {
			most = max(most, v.Y)
		}
		if err := addCurve(p, values, i, 0, "lookback "+human(lookback)); err != nil {
			return nil, err
		}
	}
	p.Y.Min, p.Y.Max = 0, max(1, 1.2*most)
	p.Y.Tick.Marker = countTicks{}
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Millimeter // the lines are high on the right
	return p, nil
}

func latency(res Result, ticks plot.ConstantTicks) (*plot.Plot, error) {
	p := newPlot(fmt.Sprintf("At %s writes a second: p99, and p50 dashed", number(res.Rate)), "from due to done", ticks)
	least, most := time.Duration(0), time.Duration(0)
	// A logarithmic scale has no 0, which is what a run without writes has.
	milliseconds := func(d time.Duration) float64 { return max(d, 10*time.Microsecond).Seconds() * 1000 }
	for i, lookback := range lookbacks(res.Points) {
		for dashes, of := range []func(Figures) time.Duration{
			func(f Figures) time.Duration { return f.P99 },
			func(f Figures) time.Duration { return f.P50 },
		} {
			values := curve(res.Points, lookback, func(m Measured) float64 {
				d := of(typical(m.Rate))
				if least == 0 || d < least {
					least = d
				}
				most = max(most, d)
				return milliseconds(d)
			})
			if err := addCurve(p, values, i, dashes, ""); err != nil { // the legend above has the colours
				return nil, err
			}
		}
	}
	p.Y.Scale = plot.LogScale{}
	p.Y.Min, p.Y.Max = 0.7*milliseconds(least), 1.5*milliseconds(most)
	p.Y.Tick.Marker = timeTicks{}
	return p, nil
}

// newPlot has a logarithmic axis for the batch.
func newPlot(title, y string, ticks plot.ConstantTicks) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text, p.Y.Label.Text = "batch", y
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks
	p.X.Min, p.X.Max = 0.8*ticks[0].Value, 1.25*ticks[len(ticks)-1].Value
	for _, f := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		f.Variant = "Sans"
	}
	p.Add(plotter.NewGrid())
	return p
}

// addCurve adds a line with its points. Without a name it has no place in the
// legend.
func addCurve(p *plot.Plot, values plotter.XYs, colour, dashes int, name string) error {
	line, points, err := plotter.NewLinePoints(values)
	if err != nil {
		return err
	}
	line.Color, line.Dashes, line.Width = plotutil.DarkColors[colour%len(plotutil.DarkColors)], plotutil.Dashes(dashes), vg.Points(1.5)
	points.Color, points.Shape = line.Color, plotutil.Shape(colour)
	p.Add(line, points)
	if name != "" {
		p.Legend.Add(name, line, points)
	}
	return nil
}

func curve(ms []Measured, lookback time.Duration, of func(Measured) float64) plotter.XYs {
	var values plotter.XYs
	for _, m := range ms {
		if m.Lookback == lookback {
			values = append(values, plotter.XY{X: float64(m.Batch), Y: of(m)})
		}
	}
	return values
}

func lookbacks(ms []Measured) []time.Duration {
	var all []time.Duration
	for _, m := range ms {
		all = append(all, m.Lookback)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func batchTicks(ms []Measured) plot.ConstantTicks {
	var batches []int
	for _, m := range ms {
		batches = append(batches, m.Batch)
	}
	slices.Sort(batches)
	var ticks plot.ConstantTicks
	for _, b := range slices.Compact(batches) {
		ticks = append(ticks, plot.Tick{Value: float64(b), Label: strconv.Itoa(b)})
	}
	return ticks
}

// countTicks marks whole numbers.
type countTicks struct{}

// Ticks returns those between two values.
func (countTicks) Ticks(least, most float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(least, most)
	for i, t := range ticks {
		if t.Label != "" {
			ticks[i].Label = number(t.Value)
		}
	}
	return ticks
}

// timeTicks marks milliseconds at 1, 2 and 5 times the powers of ten.
type timeTicks struct{}

// Ticks returns those between two values.
func (timeTicks) Ticks(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	for power := 0.01; power <= most; power *= 10 {
		for _, digit := range []float64{1, 2, 5} {
			if v := digit * power; v >= least && v <= most {
				ticks = append(ticks, plot.Tick{Value: v, Label: human(time.Duration(v * float64(time.Millisecond)))})
			}
		}
	}
	return ticks
}
