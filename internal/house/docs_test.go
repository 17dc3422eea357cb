package house_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// goBlock is a block of Go in a page, and the comment behind it that names the
// file it comes from.
var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```(?:\n<!-- code: (\\S+) -->)?")

// What the pages show is part of a file that is compiled with all others, so it
// compiles too.
func TestGoInThePagesIsPartOfAFileThatCompiles(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, page := range append(pages, "../../README.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range goBlock.FindAllStringSubmatch(string(text), -1) {
			blocks++
			if why := notShown(m[1], m[2]); why != "" {
				t.Errorf("%s: %s:\n%s", page, why, m[1])
			}
		}
	}
	if blocks == 0 {
		t.Error("found no Go in the pages: this test looks in the wrong place")
	}
}

func TestCodeThatIsNowhereIsFound(t *testing.T) {
	if notShown("this is not Go\n", "internal/house/doc.go") == "" || notShown("package house\n", "") == "" {
		t.Error("a block that is in no file was accepted")
	}
	if why := notShown("package house\n", "internal/house/doc.go"); why != "" {
		t.Error(why)
	}
}

func notShown(block, file string) string {
	if file == "" {
		return "a block of Go without the file it comes from"
	}
	source, err := os.ReadFile(filepath.Join("../..", file))
	if err != nil {
		return err.Error()
	}
	if !strings.Contains(flush(string(source)), flush(block)) {
		return "not in " + file
	}
	return ""
}

// flush takes the indentation off every line: a page shows the inside of a
// function flush left.
func flush(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSpace(l)
	}
	return strings.Join(lines, "\n")
}
