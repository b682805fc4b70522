// Command licenses writes the licence texts that `krater version --licenses` prints. They include the
// licences and notices of Krater, of Go, and of every module whose code is linked into a build of
// cmd/krater. It reads the module cache. Run it in the repository's root:
//
//	go run ./cmd/licenses
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Path is the file, from the repository's root.
const Path = "cmd/krater/licenses.txt.gz"

// builds are the environments and tags of the program's builds.
var builds = [][2]string{{"CGO_ENABLED=0", ""}, {"CGO_ENABLED=1", "cuda"}}

// wanted is the name of a file that is a licence or belongs to one.
var wanted = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright|notice|patents|authors)([-._].*)?$`)

// declined are licences that their owner offers as an alternative: freetype's authors let one
// choose the FreeType License.
var declined = []string{"github.com/golang/freetype gpl.txt"}

// cleaner leaves one kind of line ends, and no page breaks.
var cleaner = strings.NewReplacer("\r\n", "\n", "\f", "")

func main() {
	text, err := Texts(".")
	if err == nil {
		err = write(Path, text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

func write(path string, text []byte) error {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	return errors.Join(z.Close(), os.WriteFile(path, b.Bytes(), 0o644))
}

// part is a module, or another thing with licences.
type part struct {
	name string
	dir  string
	// folders start with dir, followed by those of linked packages: code that a module has copied
	// may have its own licence next to it.
	folders map[string]bool
}

// Texts returns the file's content: every distinct text once, below the names of all whose text it
// is.
func Texts(root string) ([]byte, error) {
	goroot, err := output(root, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	parts, err := modules(root)
	if err != nil {
		return nil, err
	}
	parts = append([]*part{{name: "Krater", dir: root}, {name: "Go's runtime and standard library", dir: strings.TrimSpace(goroot)}}, parts...)
	var order []string
	owners := map[string][]string{}
	for _, p := range parts {
		files, err := p.files()
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s has no licence in %s", p.name, p.dir)
		}
		for _, name := range files {
			data, err := os.ReadFile(filepath.Join(p.dir, name))
			if err != nil {
				return nil, err
			}
			text := strings.TrimSpace(cleaner.Replace(strings.ToValidUTF8(string(data), "?")))
			if owners[text] == nil {
				order = append(order, text)
			}
			owners[text] = append(owners[text], fmt.Sprintf("%s (%s)", p.name, filepath.ToSlash(name)))
		}
	}
	var b bytes.Buffer
	for _, text := range order {
		fmt.Fprintf(&b, "%s\n%s\n\n%s\n\n", strings.Repeat("=", 80), strings.Join(owners[text], "\n"), text)
	}
	return b.Bytes(), nil
}

// modules returns the modules linked into any build, by path.
func modules(root string) ([]*part, error) {
	found := map[string]*part{}
	for _, b := range builds {
		out, err := output(root, []string{"GOOS=linux", "GOARCH=amd64", b[0]}, "go", "list", "-deps", "-tags", b[1],
			"-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}", "./cmd/krater")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			f := strings.Split(strings.TrimSpace(line), "\t")
			if len(f) != 3 {
				continue
			}
			p := found[f[0]]
			if p == nil {
				p = &part{name: f[0], dir: f[1], folders: map[string]bool{}}
				found[f[0]] = p
			}
			for dir := f[2]; dir != p.dir && strings.HasPrefix(dir, p.dir); dir = filepath.Dir(dir) {
				rel, err := filepath.Rel(p.dir, dir)
				if err != nil {
					return nil, err
				}
				p.folders[rel] = true
			}
		}
	}
	var list []*part
	for _, p := range found {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *part) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// files returns a module's licences: those in its root, in a folder of licences there, and next to
// linked packages.
func (p *part) files() ([]string, error) {
	var list []string
	folders := []string{"."}
	for rel := range p.folders {
		folders = append(folders, rel)
	}
	slices.Sort(folders)
	for len(folders) > 0 {
		dir := folders[0]
		folders = folders[1:]
		entries, err := fs.ReadDir(os.DirFS(p.dir), filepath.ToSlash(dir))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			switch {
			case e.IsDir() && dir == "." && strings.EqualFold(e.Name(), "licenses"):
				inside, err := fs.ReadDir(os.DirFS(p.dir), e.Name())
				if err != nil {
					return nil, err
				}
				for _, x := range inside {
					if module, _, _ := strings.Cut(p.name, " "); slices.Contains(declined, module+" "+x.Name()) {
						continue
					}
					list = append(list, filepath.Join(name, x.Name()))
				}
			case e.Type().IsRegular() && wanted.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go":
				list = append(list, name)
			}
		}
	}
	return list, nil
}

// output runs a command in a folder.
func output(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w\n%s", name, args[0], err, exit.Stderr)
	}
	return string(out), err
}
