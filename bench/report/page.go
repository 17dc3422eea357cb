package report

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// The marks between which a page has what is made by a run.
const (
	Begin = "<!-- bench: begin -->"
	End   = "<!-- bench: end -->"
)

// ErrNoMarks is returned for a page that has no place for a report.
var ErrNoMarks = errors.New("report: the page has no place for a report, which is between the lines " + Begin + " and " + End)

// Replace returns page with text between its marks, in the place of what was
// there.
func Replace(page, text string) (string, error) {
	before, rest, ok := strings.Cut(page, Begin+"\n")
	if !ok {
		return "", ErrNoMarks
	}
	_, after, ok := strings.Cut(rest, End)
	if !ok {
		return "", ErrNoMarks
	}
	return before + Begin + "\n\n" + strings.TrimSpace(text) + "\n\n" + End + after, nil
}

// ReplaceIn does the same to a file.
func ReplaceIn(path, text string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	replaced, err := Replace(string(page), text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(replaced), 0o644)
}
