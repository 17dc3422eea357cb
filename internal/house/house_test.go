package house_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module   = "github.com/deferlock/deferlock"
	root     = "../.."
	maxLines = 450
)

// pkg is a package of the root module as go list describes it.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Deps       []string
}

// isLibrary tells what users import.
func (p pkg) isLibrary() bool {
	path := strings.TrimPrefix(p.ImportPath, module+"/")
	return path == "lock" || path == "defer" || path == "worker" || strings.HasPrefix(path, "worker/")
}

// parse returns the package's files without its tests.
func (p pkg) parse(t *testing.T, fset *token.FileSet) []*ast.File {
	t.Helper()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// packages returns the packages of the root module that are more than tests.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Dir,GoFiles,Deps", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			all = append(all, p)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range packages(t) {
		documented := func(f *ast.File) bool { return f.Doc != nil }
		if !slices.ContainsFunc(p.parse(t, token.NewFileSet()), documented) {
			t.Errorf("package %s has no doc comment", p.ImportPath)
		}
	}
}

func TestEveryExportedIdentifierIsDocumented(t *testing.T) {
	for _, p := range packages(t) {
		if !p.isLibrary() {
			continue
		}
		fset := token.NewFileSet()
		for _, f := range p.parse(t, fset) {
			for _, decl := range f.Decls {
				for _, id := range undocumented(fset, decl) {
					t.Errorf("%v: %s has no doc comment", fset.Position(id.Pos()), id.Name)
				}
			}
		}
	}
}

func TestLayersPointDownwardsAndTestsStayOutside(t *testing.T) {
	const lock, deferral, worker = module + "/lock", module + "/defer", module + "/worker"
	above := map[string][]string{lock: {deferral, worker}, deferral: {worker}}
	testCode := []string{
		"testing", "net/http/httptest", module + "/internal/redistest", module + "/internal/pgtest", "github.com/alicebob/miniredis",
		"go.uber.org/goleak", "pgregory.net/rapid", "github.com/ory/dockertest", "github.com/stretchr/testify",
	}
	for _, p := range packages(t) {
		if !p.isLibrary() {
			continue
		}
		for _, dep := range p.Deps {
			if is(dep, above[p.ImportPath]) {
				t.Errorf("%s depends on %s, which is a layer above", p.ImportPath, dep)
			}
			if is(dep, testCode) {
				t.Errorf("%s depends on %s, which is for tests", p.ImportPath, dep)
			}
		}
	}
}

// is says whether path is one of the packages or inside one.
func is(path string, of []string) bool {
	return slices.ContainsFunc(of, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

func TestLibraryCodeDoesNotDoWhatItMustNot(t *testing.T) {
	all := packages(t)
	for _, p := range all {
		// What a library package is made of has to keep its rules as well.
		partOf := func(library pkg) bool { return library.isLibrary() && slices.Contains(library.Deps, p.ImportPath) }
		if !p.isLibrary() && !slices.ContainsFunc(all, partOf) {
			continue
		}
		fset := token.NewFileSet()
		for _, f := range p.parse(t, fset) {
			ast.Inspect(f, func(n ast.Node) bool {
				if sin := forbidden(n); sin != "" {
					t.Errorf("%v: %s", fset.Position(n.Pos()), sin)
				}
				return true
			})
		}
	}
}

// forbidden says what is wrong with n, or "".
func forbidden(n ast.Node) string {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		x, ok := n.X.(*ast.Ident)
		if !ok {
			return ""
		}
		switch x.Name + "." + n.Sel.Name {
		case "context.Background", "context.TODO":
			return "a context out of nothing: take the caller's, or context.WithoutCancel of it"
		case "time.Sleep":
			return "time.Sleep cannot be cancelled: select on a timer and the context"
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "panic" {
			return "the library does not panic: return an error"
		}
	case *ast.BasicLit:
		if n.Kind == token.STRING && (strings.Contains(n.Value, "redis.call(") || strings.Contains(n.Value, "redis.pcall(")) {
			return "Lua in a Go string: put it into a .lua file and embed it"
		}
	}
	return ""
}

func TestNoFileIsTooLong(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".lua" {
			return nil
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an editor's temporary file
		}
		if n := bytes.Count(text, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, at most %d are allowed: it tells more than one thing", path, n, maxLines)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// undocumented returns the exported identifiers that decl declares and that
// have no comment.
func undocumented(fset *token.FileSet, decl ast.Decl) []*ast.Ident {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && (d.Recv == nil || isExportedType(d.Recv.List[0].Type)) {
			return []*ast.Ident{d.Name}
		}
	case *ast.GenDecl:
		var missing []*ast.Ident
		for _, spec := range d.Specs {
			missing = append(missing, undocumentedSpec(fset, d, spec)...)
		}
		return missing
	}
	return nil
}

func undocumentedSpec(fset *token.FileSet, d *ast.GenDecl, spec ast.Spec) []*ast.Ident {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		// A group of constants or variables may share one comment.
		if d.Doc == nil && s.Doc == nil && s.Comment == nil {
			return exported(s.Names)
		}
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return nil
		}
		var missing []*ast.Ident
		if s.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
			missing = append(missing, s.Name)
		}
		// A field of a Config has to say its default. Other types may say all
		// there is to say about their fields in their own comment.
		if config, ok := s.Type.(*ast.StructType); ok && s.Name.Name == "Config" {
			missing = append(missing, undocumentedFields(fset, config.Fields)...)
		}
		return missing
	}
	return nil
}

// undocumentedFields returns the exported fields without a comment.
// One comment may stand above several lines, up to the next blank one.
// Embedded fields are documented where they are declared.
func undocumentedFields(fset *token.FileSet, fields *ast.FieldList) []*ast.Ident {
	var missing []*ast.Ident
	above, covered := 0, false // the last line of the field above, and whether its comment goes on
	for _, f := range fields.List {
		next := fset.Position(f.Pos()).Line == above+1
		covered = f.Doc != nil || covered && next
		if !covered && f.Comment == nil {
			missing = append(missing, exported(f.Names)...)
		}
		above = fset.Position(f.End()).Line
	}
	return missing
}

func exported(names []*ast.Ident) []*ast.Ident {
	return slices.DeleteFunc(slices.Clone(names), func(id *ast.Ident) bool { return !id.IsExported() })
}

// isExportedType tells whether a method's receiver is visible to users.
func isExportedType(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.StarExpr:
		return isExportedType(e.X)
	case *ast.IndexExpr:
		return isExportedType(e.X)
	case *ast.IndexListExpr:
		return isExportedType(e.X)
	case *ast.Ident:
		return e.IsExported()
	}
	return false
}

// The rules above are worth something only if they find what they are there to
// find.
func TestTheRulesFindWhatTheyLookFor(t *testing.T) {
	const source = `package p

import ("context"; "time")

func Bad() { context.Background(); context.TODO(); time.Sleep(1); panic("redis.call(") }

// Good is documented.
func Good() {}

func (t *T[A]) Bad2() {}
func (t unseen) Fine() {}

type T[A any] struct { Fine int }

// Config is documented.
type Config struct {
	Bad3, bad int
	// Good is documented.
	Good int
	AsGood int

	Bad4 int
	Fine int // is documented
}

// These are documented.
const (
	A = 1
	B = 2
)

var Bad5 = 1
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, decl := range f.Decls {
		for _, id := range undocumented(fset, decl) {
			names = append(names, id.Name)
		}
	}
	if want := []string{"Bad", "Bad2", "T", "Bad3", "Bad4", "Bad5"}; !slices.Equal(names, want) {
		t.Errorf("found %v undocumented, want %v", names, want)
	}
	sins := 0
	ast.Inspect(f, func(n ast.Node) bool {
		if forbidden(n) != "" {
			sins++
		}
		return true
	})
	if sins != 5 {
		t.Errorf("found %d of 5 forbidden things", sins)
	}
}
