// Package report turns the figures of a run into tables in Markdown and plots
// in SVG.
package report
