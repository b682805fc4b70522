package bin

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Manifest records the sources, the compiler and the flags of the artifacts.
type Manifest struct {
	Compiler string            // "13.0.88"
	Flags    map[string]string // by architecture
	Sources  map[string]string // hash of each file of src, by name
	Artifact map[string]Artifact
}

// Artifact is a file with compiled kernels.
type Artifact struct {
	Sum     string   // of the file
	Sources []string // the .cu file and what it includes, sorted
}

// String is the manifest's text, the same for the same content.
func (m *Manifest) String() string {
	var b strings.Builder
	b.WriteString("# Made by `make cuda-kernels`; do not edit.\n")
	fmt.Fprintf(&b, "compiler %s\n", m.Compiler)
	for _, arch := range sorted(m.Flags) {
		fmt.Fprintf(&b, "flags %s %s\n", arch, m.Flags[arch])
	}
	for _, name := range sorted(m.Sources) {
		fmt.Fprintf(&b, "source %s %s\n", name, m.Sources[name])
	}
	for _, name := range sorted(m.Artifact) {
		a := m.Artifact[name]
		fmt.Fprintf(&b, "artifact %s %s %s\n", name, a.Sum, strings.Join(a.Sources, " "))
	}
	return b.String()
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// ParseManifest reads the text of String.
func ParseManifest(text []byte) (*Manifest, error) {
	m := &Manifest{Flags: map[string]string{}, Sources: map[string]string{}, Artifact: map[string]Artifact{}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 0 || f[0] == "#":
		case f[0] == "compiler" && len(f) == 2:
			m.Compiler = f[1]
		case f[0] == "flags" && len(f) > 2:
			m.Flags[f[1]] = strings.Join(f[2:], " ")
		case f[0] == "source" && len(f) == 3:
			m.Sources[f[1]] = f[2]
		case f[0] == "artifact" && len(f) > 3:
			m.Artifact[f[1]] = Artifact{Sum: f[2], Sources: f[3:]}
		default:
			return nil, fmt.Errorf("MANIFEST line %d: %q", n, lines.Text())
		}
	}
	return m, lines.Err()
}

// Sum returns the hash of a file's content as the manifest writes it.
func Sum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// SourceSum returns the hash of a source file as the manifest writes it. Comments, indentation and
// empty lines do not count, so that editing them neither makes artifacts stale nor measurements.
func SourceSum(text []byte) string {
	var kept []byte
	for line := range bytes.Lines(withoutComments(text)) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			kept = append(append(kept, line...), '\n')
		}
	}
	return Sum(kept)
}

// withoutComments returns C++ text with a space in place of each comment. Raw strings, which the
// kernels do not have, would be read as plain ones.
func withoutComments(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch rest := text[i:]; {
		case bytes.HasPrefix(rest, []byte("//")):
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				return out
			}
			out = append(out, '\n')
			i += end
		case bytes.HasPrefix(rest, []byte("/*")):
			end := bytes.Index(rest[2:], []byte("*/"))
			if end < 0 {
				return out
			}
			out = append(out, ' ')
			i += 2 + end + 1
		case rest[0] == '"' || rest[0] == '\'' && (i == 0 || !digit(text[i-1])): // 1'000 is a number
			n := 1
			for n < len(rest) && rest[n] != rest[0] && rest[n] != '\n' {
				if rest[n] == '\\' {
					n++
				}
				n++
			}
			n = min(n+1, len(rest))
			out = append(out, rest[:n]...)
			i += n - 1
		default:
			out = append(out, rest[0])
		}
	}
	return out
}

func digit(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' }

// Includes returns a source file of folder src and everything it includes with quotes, sorted.
// Files that only the emulator includes count too; that only makes artifacts stale more often.
func Includes(src, file string) ([]string, error) {
	seen := map[string]bool{}
	var visit func(string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return err
		}
		seen[name] = true
		for line := range strings.Lines(string(text)) {
			rest, ok := strings.CutPrefix(strings.TrimSpace(line), "#include \"")
			if !ok {
				continue
			}
			included, _, _ := strings.Cut(rest, "\"")
			if strings.HasPrefix(included, "../emu/") {
				continue // not in what is compiled here
			}
			if err := visit(included); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	}
	if err := visit(file); err != nil {
		return nil, err
	}
	return sorted(seen), nil
}

// SourceHash returns a hash of everything that the kernels of one .cu file (named without its
// ending) are made from: sources, flags and compiler. Measurements are filed under it. It returns
// "" if there is no such file.
func (m *Manifest) SourceHash(file string) string {
	a, ok := m.Artifact[ArtifactName(file, PTX)]
	if !ok {
		return ""
	}
	h := sha256.New()
	fmt.Fprintln(h, m.Compiler)
	for _, arch := range sorted(m.Flags) {
		fmt.Fprintln(h, arch, m.Flags[arch])
	}
	for _, s := range a.Sources {
		fmt.Fprintln(h, s, m.Sources[s])
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}
