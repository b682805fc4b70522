package compare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"krater/kernels/tensor"
	"krater/scheduler/files"
	"krater/stages/weights/safetensors"
)

// goldenBytesMax bounds the files of a golden; they hold a prompt or two.
const goldenBytesMax = 1 << 28

// ErrGolden: a directory that does not hold a golden, or one that contradicts itself.
var ErrGolden = errors.New("compare: bad golden")

// Golden is the reference for a model.
type Golden struct {
	Name    string // the directory's
	Prompts []Prompt

	vectors map[string]Vector
	traced  int // index of the prompt with layers and operators, -1: none
}

// Longest returns the number of tokens of the longest prompt with its continuation.
func (g *Golden) Longest() (n int) {
	for _, p := range g.Prompts {
		n = max(n, len(p.IDs)+len(p.Greedy))
	}
	return n
}

// Prompt is a prompt and what follows it.
type Prompt struct {
	Name    string
	IDs     []int32   // [N]
	Last    []float32 // [V] logits at its last position
	Greedy  []int32   // greedy continuation
	Margin  []float32 // largest minus second largest logit at each step; may be absent
	Compare int       // how many ids of Greedy count
}

// Vector is one tensor of a golden: F32 or I32 is set.
type Vector struct {
	Shape []int
	F32   []float32
	I32   []int32
}

// ReadGolden reads a directory with goldens.safetensors (a prompt with layers and operators, see
// testdata/goldens) or golden.json and golden.safetensors (prompts of a trained model). For a .gguf
// file it reads the folder of the file.
func ReadGolden(dir string) (*Golden, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		dir = filepath.Dir(dir)
	}
	g := &Golden{Name: filepath.Base(dir), traced: -1}
	file, read := filepath.Join(dir, "goldens.safetensors"), g.readTraced
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		file, read = filepath.Join(dir, "golden.safetensors"), g.readTrained
	}
	data, err := readBounded(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: it has no golden vectors (goldens.safetensors): --golden DIR names their folder", dir)
	}
	if err != nil {
		return nil, err
	}
	if g.vectors, err = parse(data); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrGolden, file, err)
	}
	if err := read(dir); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrGolden, dir, err)
	}
	for i := range g.Prompts {
		if p := &g.Prompts[i]; len(p.IDs) == 0 || len(p.Greedy) < p.Compare {
			return nil, fmt.Errorf("%w: %s: prompt %s has %d ids, %d of %d following", ErrGolden, dir, p.Name, len(p.IDs), len(p.Greedy), p.Compare)
		}
	}
	if len(g.Prompts) == 0 {
		return nil, fmt.Errorf("%w: %s: no prompts", ErrGolden, dir)
	}
	return g, nil
}

// Vector returns a tensor of the golden by its name in the file.
func (g *Golden) Vector(name string) (Vector, bool) {
	v, ok := g.vectors[name]
	return v, ok
}

// names lists the vectors in order.
func (g *Golden) names() []string { return slices.Sorted(maps.Keys(g.vectors)) }

// readTraced finds the prompts "pN" of goldens.safetensors.
func (g *Golden) readTraced(string) error {
	for _, name := range g.names() {
		prompt, ok := strings.CutSuffix(name, ".input_ids")
		if !ok {
			continue
		}
		greedy := g.vectors[prompt+".greedy_ids"].I32
		g.Prompts = append(g.Prompts, Prompt{Name: prompt, IDs: g.vectors[name].I32, Greedy: greedy, Compare: len(greedy),
			Last: g.vectors[prompt+".logits_last"].F32, Margin: g.vectors[prompt+".greedy_margin"].F32})
		if _, ok := g.vectors[prompt+".hidden"]; ok {
			g.traced = len(g.Prompts) - 1
		}
	}
	return nil
}

// readTrained reads golden.json; after its end mark a trained model starts a new text whose choices
// can be close, so the ids up to that mark count.
func (g *Golden) readTrained(dir string) error {
	data, err := readBounded(filepath.Join(dir, "golden.json"))
	if err != nil {
		return err
	}
	var doc struct {
		Prompts []struct {
			IDs    []int32 `json:"input_ids"`
			Greedy []int32 `json:"greedy_ids"`
			Stops  *int    `json:"stops_after"`
		} `json:"prompts"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("golden.json: %w", err)
	}
	for i, d := range doc.Prompts {
		p := Prompt{Name: fmt.Sprint(i), IDs: d.IDs, Greedy: d.Greedy, Compare: len(d.Greedy),
			Last: g.vectors[fmt.Sprintf("logits.%d", i)].F32}
		if d.Stops != nil {
			if *d.Stops < 0 || *d.Stops >= len(d.Greedy) {
				return fmt.Errorf("prompt %d stops after %d of %d ids", i, *d.Stops, len(d.Greedy))
			}
			p.Compare = *d.Stops + 1
		}
		if v := g.vectors[fmt.Sprintf("input_ids.%d", i)]; !slices.Equal(v.I32, p.IDs) {
			return fmt.Errorf("prompt %d: golden.json and golden.safetensors differ", i)
		}
		g.Prompts = append(g.Prompts, p)
	}
	return nil
}

// parse turns a file's tensors into vectors.
func parse(data []byte) (map[string]Vector, error) {
	tensors, err := safetensors.Parse(data)
	if err != nil {
		return nil, err
	}
	out := make(map[string]Vector, len(tensors))
	for _, t := range tensors {
		v := Vector{Shape: t.Shape}
		switch t.DType {
		case tensor.F32:
			v.F32 = elements[float32](t.Data)
		case tensor.I32:
			v.I32 = elements[int32](t.Data)
		default:
			return nil, fmt.Errorf("%s is %s: F32 and I32 are known", t.Name, t.DType)
		}
		out[t.Name] = v
	}
	return out, nil
}

// elements is b as 4-byte elements, not nil.
func elements[E float32 | int32](b []byte) []E {
	if len(b) == 0 {
		return []E{}
	}
	if uintptr(unsafe.Pointer(&b[0]))%4 != 0 {
		b = bytes.Clone(b) // a new piece of memory is aligned
	}
	return unsafe.Slice((*E)(unsafe.Pointer(&b[0])), len(b)/4)
}

func readBounded(file string) ([]byte, error) {
	data, err := files.Read(file, goldenBytesMax)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrGolden, err)
	}
	return data, err
}
