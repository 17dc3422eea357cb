package report

import (
	"errors"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/deferlock/deferlock/bench/measure"
)

// Chart is a plot of lines, or of bars.
type Chart struct {
	Title, X, Y string
	Ticks       []string // what stands below the 1st, 2nd … value of each series
	Series      []Series
	Bars        bool
}

// Series is one line, or the bars of one colour. A value that is missing is
// the zero Spread.
type Series struct {
	Name   string
	Values []measure.Spread
}

const (
	width  = 8 * vg.Inch
	height = 3.8 * vg.Inch
	margin = 10            // all around, in points
	names  = 1.7 * vg.Inch // at the right, for the legend
)

// Write draws the chart into a file in SVG.
func (c Chart) Write(path string) (err error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.BackgroundColor = color.White // or it cannot be read on a dark page
	legend := plot.NewLegend()
	legend.Top, legend.Left, legend.Padding = true, true, vg.Points(3)
	plain(p, &legend)
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	p.Add(grid)
	p.NominalX(c.Ticks...)
	for i, s := range c.Series {
		add := c.line
		if c.Bars {
			add = c.bars
		}
		if err := add(p, &legend, i, s); err != nil {
			return err
		}
	}
	p.Y.Min, p.Y.Max = 0, max(p.Y.Max*1.05, 1e-9)
	p.Y.Tick.Marker = plot.TickerFunc(ticks)
	p.X.Min, p.X.Max = -0.5, float64(len(c.Ticks))-0.5
	canvas := vgsvg.New(width, height)
	all := draw.Crop(draw.New(canvas), margin, -margin, margin, -margin)
	p.Draw(draw.Crop(all, 0, -names, 0, 0))
	legend.Draw(draw.Crop(all, width-2*margin-names+margin, 0, 0, -2*margin))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = canvas.WriteTo(f)
	return err
}

// ticks are gonum's, written as figures are in tables.
func ticks(lo, hi float64) []plot.Tick {
	all := plot.DefaultTicks{}.Ticks(lo, hi)
	for i := range all {
		if !all[i].IsMinor() {
			all[i].Label = Number(all[i].Value)
		}
	}
	return all
}

// plain has everything written in a font that has its like on every system.
func plain(p *plot.Plot, legend *plot.Legend) {
	for _, s := range []*text.Style{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &legend.TextStyle,
	} {
		s.Font.Variant = "Sans"
	}
}

// points are the values of a series at 0, 1, 2 …, with how far they spread.
type points struct {
	plotter.XYs
	plotter.YErrors
}

func (c Chart) line(p *plot.Plot, legend *plot.Legend, i int, s Series) error {
	var at points
	for x, v := range s.Values {
		if v == (measure.Spread{}) {
			continue
		}
		at.XYs = append(at.XYs, plotter.XY{X: float64(x), Y: v.Median})
		at.YErrors = append(at.YErrors, struct{ Low, High float64 }{v.Median - v.Min, v.Max - v.Median})
	}
	if len(at.XYs) == 0 {
		return nil
	}
	line, dots, err := plotter.NewLinePoints(at.XYs)
	if err != nil {
		return err
	}
	spread, err := plotter.NewYErrorBars(at)
	if err != nil {
		return err
	}
	line.Color, dots.Color, spread.Color = plotutil.Color(i), plotutil.Color(i), plotutil.Color(i)
	line.Width = vg.Points(1.5)
	dots.Shape = plotutil.Shape(i)
	p.Add(line, dots, spread)
	legend.Add(s.Name, line, dots)
	return nil
}

func (c Chart) bars(p *plot.Plot, legend *plot.Legend, i int, s Series) error {
	wide := (width - names) * 0.7 / vg.Length(len(c.Series)*len(s.Values)+1)
	values := make(plotter.Values, len(s.Values))
	for x, v := range s.Values {
		values[x] = v.Median
	}
	bars, err := plotter.NewBarChart(values, wide)
	if err != nil {
		return err
	}
	bars.Color, bars.LineStyle.Width = plotutil.Color(i), 0
	bars.Offset = wide * (vg.Length(i) - vg.Length(len(c.Series)-1)/2)
	p.Add(bars)
	legend.Add(s.Name, bars)
	return nil
}
