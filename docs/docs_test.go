// Package docs holds the documentation. Its tests keep what the documents say about the
// sources true.
package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated parts of ARCHITECTURE.md again")

const (
	root     = ".."
	maxAbout = 160 // characters of a package's line
)

// layers are the top folders with packages, in the order of the package table.
var layers = []string{"cmd", "transport", "actors", "scheduler", "stages", "kernels", "models", "bench", "docs"}

// sources lists the packages, declarations and members that the documents may refer to.
type sources struct {
	about    map[string]string          // by folder: the first sentence of the package comment
	names    map[string]map[string]bool // by name of a package: its declarations
	members  map[string]map[string]bool // by name of a type: its fields and methods
	packages map[string]bool            // folders with Go files
}

func readSources(t *testing.T) *sources {
	t.Helper()
	s := &sources{map[string]string{}, map[string]map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}}
	for _, layer := range layers {
		err := filepath.WalkDir(filepath.Join(root, layer), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if name := d.Name(); d.IsDir() && (name == "testdata" || name == "node_modules" || strings.HasPrefix(name, "_")) {
				return filepath.SkipDir
			}
			if !strings.HasSuffix(path, ".go") {
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			s.declarations(f)
			dir, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil || strings.HasSuffix(path, "_test.go") {
				return err
			}
			s.packages[dir] = true
			if f.Doc != nil {
				s.about[dir] = new(doc.Package).Synopsis(f.Doc.Text())
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *sources) declarations(f *ast.File) {
	add := func(m map[string]map[string]bool, key, name string) {
		if m[key] == nil {
			m[key] = map[string]bool{}
		}
		m[key][name] = true
	}
	pkg := strings.TrimSuffix(f.Name.Name, "_test")
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				add(s.names, pkg, d.Name.Name)
				continue
			}
			receiver := d.Recv.List[0].Type
			if p, ok := receiver.(*ast.StarExpr); ok {
				receiver = p.X
			}
			if x, ok := receiver.(*ast.IndexExpr); ok {
				receiver = x.X
			}
			if id, ok := receiver.(*ast.Ident); ok {
				add(s.members, id.Name, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						add(s.names, pkg, n.Name)
					}
				case *ast.TypeSpec:
					add(s.names, pkg, spec.Name.Name)
					var fields *ast.FieldList
					switch x := spec.Type.(type) {
					case *ast.StructType:
						fields = x.Fields
					case *ast.InterfaceType:
						fields = x.Methods
					}
					if fields == nil {
						continue
					}
					for _, field := range fields.List {
						for _, n := range field.Names {
							add(s.members, spec.Name.Name, n.Name)
						}
					}
				}
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// generated compares a part of ARCHITECTURE.md with what it is made from, or writes it.
func generated(t *testing.T, name, want string) {
	t.Helper()
	const path = "ARCHITECTURE.md"
	begin, end := "<!-- "+name+": go test ./docs -update -->\n", "<!-- end -->"
	text := read(t, path)
	before, rest, ok := strings.Cut(text, begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the part %q", path, name)
	}
	switch {
	case got == want:
	case *update:
		if err := os.WriteFile(filepath.Join(root, path), []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: the %s differ from their sources. Run go test ./docs -update", path, name)
	}
}

// TestPackageTable holds the package table against the package comments.
func TestPackageTable(t *testing.T) {
	s := readSources(t)
	var dirs []string
	for dir := range s.packages {
		dirs = append(dirs, dir)
	}
	layer := func(dir string) int { return slices.Index(layers, strings.Split(dir, string(filepath.Separator))[0]) }
	slices.SortFunc(dirs, func(a, b string) int {
		if c := layer(a) - layer(b); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	var table strings.Builder
	table.WriteString("| package | what it does |\n|---|---|\n")
	for _, dir := range dirs {
		// "Package x does y." or "Command x does y."
		words := strings.SplitN(s.about[dir], " ", 3)
		if len(words) < 3 || words[0] != "Package" && words[0] != "Command" {
			t.Errorf("%s: the package comment begins %q, want \"Package %s ...\"", dir, s.about[dir], filepath.Base(dir))
			continue
		}
		if about := words[2]; len(about) > maxAbout {
			t.Errorf("%s: the first sentence of the package comment has %d characters, at most %d: %q", dir, len(about), maxAbout, about)
		}
		fmt.Fprintf(&table, "| `%s` | %s |\n", filepath.ToSlash(dir), strings.TrimSuffix(words[2], "."))
	}
	generated(t, "packages", table.String())
}

// TestDecisions holds the index of decisions against the headings in docs/design, and finds
// decisions that are written down twice.
func TestDecisions(t *testing.T) {
	files, err := filepath.Glob("design/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	place := map[string]string{}
	var index strings.Builder
	for _, file := range files {
		for _, line := range strings.Split(read(t, "docs/"+filepath.ToSlash(file)), "\n") {
			if title, ok := strings.CutPrefix(line, "# "); ok {
				fmt.Fprintf(&index, "\n[%s](docs/%s)\n\n", title, filepath.ToSlash(file))
			}
			if title, ok := strings.CutPrefix(line, "## "); ok {
				if place[title] != "" {
					t.Errorf("%q is in %s and in %s", title, place[title], file)
				}
				place[title] = file
				fmt.Fprintf(&index, "- %s\n", title)
			}
		}
	}
	generated(t, "decisions", index.String()+"\n")
}

var (
	code      = regexp.MustCompile("`([^`\n]+)`")
	link      = regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
	document  = regexp.MustCompile(`\bdocs/[\w/-]+\.md\b`)
	pathLike  = regexp.MustCompile(`^[\w./*{},-]+$`)
	qualified = regexp.MustCompile(`^([A-Za-z]\w*)\.([A-Z]\w*)(?:\.([A-Z]\w*))?$`)
	testName  = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)[A-Z]\w*$`)
)

// TestReferences looks for every file and every name of the code that a document mentions.
func TestReferences(t *testing.T) {
	s := readSources(t)
	files, err := filepath.Glob("*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("*.md")
	if err != nil || len(pages) < 10 {
		t.Fatal(pages, err)
	}
	files = append(files, pages...)
	for i, f := range files {
		files[i] = "docs/" + filepath.ToSlash(f)
	}
	for _, file := range append(files, "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md") {
		for i, line := range strings.Split(read(t, file), "\n") {
			for _, fault := range s.faults(filepath.Dir(file), line) {
				t.Errorf("%s:%d: %s", file, i+1, fault)
			}
		}
	}
}

// faults lists what a line of a document in folder dir mentions and the sources lack.
func (s *sources) faults(dir, line string) (list []string) {
	for _, m := range link.FindAllStringSubmatch(line, -1) {
		if !strings.Contains(m[1], "://") && !exists(filepath.Join(dir, m[1])) {
			list = append(list, "no file "+m[1])
		}
	}
	for _, path := range document.FindAllString(line, -1) {
		if !exists(path) {
			list = append(list, "no file "+path)
		}
	}
	for _, m := range code.FindAllStringSubmatch(line, -1) {
		switch word := m[1]; {
		case testName.MatchString(word):
			if !s.declared(word) {
				list = append(list, "no test "+word)
			}
		case qualified.MatchString(word):
			if parts := qualified.FindStringSubmatch(word); !s.known(parts[1], parts[2], parts[3]) {
				list = append(list, "no name "+word)
			}
		case strings.Contains(word, "/") && pathLike.MatchString(word):
			first, _, _ := strings.Cut(word, "/")
			if slices.Contains(append([]string{"deploy", "testdata", ".ci"}, layers...), first) && !exists(strings.TrimSuffix(word, "/...")) {
				list = append(list, "no file "+word)
			}
		}
	}
	return list
}

func (s *sources) declared(name string) bool {
	for _, names := range s.names {
		if names[name] {
			return true
		}
	}
	return false
}

// known reports whether a.b or a.b.c is there. A name that begins with something else than a
// package or a type of this module is of another.
func (s *sources) known(a, b, c string) bool {
	if names, ok := s.names[a]; ok {
		return names[b] && (c == "" || s.members[b][c])
	}
	members, ok := s.members[a]
	return !ok || members[b]
}

// exists reports whether a path from the root is there; "{a,b}" and "*" may stand in it.
func exists(path string) bool {
	if before, rest, ok := strings.Cut(path, "{"); ok {
		list, after, ok := strings.Cut(rest, "}")
		for _, x := range strings.Split(list, ",") {
			ok = ok && exists(before+x+after)
		}
		return ok
	}
	found, err := filepath.Glob(filepath.Join(root, path))
	return err == nil && len(found) > 0
}

// TestReferencesBites holds the checker itself to account.
func TestReferencesBites(t *testing.T) {
	s := readSources(t)
	for line, want := range map[string]int{
		"`stages/model` and `kernels/cuda/...`":           0,
		"`stages/nothing`":                                1,
		"`actors/{group,head}.go`":                        0,
		"`actors/{group,nothing}.go`":                     1,
		"`kernels/cuda/src/*.cu`, `kernels/cuda/src/*.c`": 1,
		"[a](design/cpu.md), [b](https://example.org/x)":  0,
		"[a](nothing.md) and docs/nothing.md":             2,
		"`model.Mixer`, `model.Mixer.Tensors`":            0,
		"`model.Nothing`, `model.Mixer.Nothing`":          2,
		"`Mixer.Tensors`, `Mixer.Nothing`":                1,
		"`TestReferencesBites`, `TestNobodyDeclaresThis`": 1,
		"`POST /v1/responses`, `torch.Tensor`, `a/b`":     0,
	} {
		if got := s.faults("docs", line); len(got) != want {
			t.Errorf("%s: %q, want %d faults", line, got, want)
		}
	}
}
