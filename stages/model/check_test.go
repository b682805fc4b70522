package model

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fileShapes reads names and shapes of the weight files, without the product's reader: of quantised
// matrices those that they stand for.
func fileShapes(t *testing.T, arch string) map[string][]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(goldens, arch, "model*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatal(arch, "has no weight files", err)
	}
	out := map[string][]int{}
	for _, file := range files {
		b := readFile(t, file)
		header := map[string]struct {
			DType string
			Shape []int
		}{}
		if err := json.Unmarshal(b[8:8+binary.LittleEndian.Uint64(b)], &header); err != nil {
			t.Fatal(err)
		}
		for name, h := range header {
			matrix, packed := strings.CutSuffix(name, "_packed")
			base, _ := strings.CutSuffix(strings.TrimSuffix(name, ".scale"), ".weight")
			_, powers := header[base+".scale"]
			codes := header[base+".weight"].DType
			switch {
			case packed:
				out[matrix] = []int{h.Shape[0], 8 * h.Shape[1]} // eight values in an I32
			case powers && name == base+".weight" && codes == "I8":
				out[name] = []int{h.Shape[0], 2 * h.Shape[1]} // two values in a byte
			case name == "__metadata__", name == base+".scale" && (codes == "I8" || codes == "F8_E4M3"), strings.HasSuffix(name, ".weight_scale"), strings.HasSuffix(name, ".weight_scale_inv"), strings.HasSuffix(name, ".weight_shape"):
			default:
				out[name] = h.Shape
			}
		}
	}
	return out
}

func sortedNames(m map[string][]int) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// TestCheckTensors: the name table is exactly what real files of both attention
// forms hold, and every deviation is named.
func TestCheckTensors(t *testing.T) {
	for _, arch := range goldenArchs(t) {
		t.Run(arch, func(t *testing.T) {
			c, err := Parse(readFile(t, goldens, arch, "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			check := func(m map[string][]int) error {
				return c.CheckTensors(sortedNames(m), func(n string) []int { return m[n] })
			}
			shapes := fileShapes(t, arch)
			for name, f := range c.FusedTensors() { // what stages/weights/fused presents
				_, plain := shapes[name]
				_, coded := shapes[name+"_blocks"]
				if plain || coded {
					for _, end := range []string{"", "_blocks", "_scales"} {
						delete(shapes, name+end)
					}
					for _, p := range f.Pieces {
						shapes[p.Name] = p.Shape
					}
				}
			}
			if err := check(shapes); err != nil {
				t.Fatal(err)
			}
			maps.DeleteFunc(shapes, func(name string, _ []int) bool { return c.ignored(name) })
			if len(c.Expected()) != len(shapes) {
				t.Errorf("%d tensors expected, the file has %d", len(c.Expected()), len(shapes))
			}
			for _, name := range sortedNames(shapes) {
				shape := shapes[name]
				delete(shapes, name)
				if err := check(shapes); !errors.Is(err, ErrTensorMissing) || !strings.Contains(err.Error(), name) {
					t.Errorf("without %s: %v", name, err)
				}
				shapes[name] = append([]int{1}, shape...)
				if err := check(shapes); !errors.Is(err, ErrTensorShape) || !strings.Contains(err.Error(), name) {
					t.Errorf("with a wrong %s: %v", name, err)
				}
				shapes[name] = shape
			}
			shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = []int{8}
			if err := check(shapes); err != nil {
				t.Errorf("a stored rotary table is harmless: %v", err)
			}
			shapes[fmt.Sprintf("model.layers.%d.input_layernorm.weight", len(c.Layers))] = []int{128}
			if err := check(shapes); !errors.Is(err, ErrTensorStray) {
				t.Errorf("a layer too many: %v", err)
			}
		})
	}
}

// TestCheckTensorsBounded: an empty folder makes a short message.
func TestCheckTensorsBounded(t *testing.T) {
	c, err := Parse(readFile(t, goldens, "deepseek_v2", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	err = c.CheckTensors(nil, nil)
	if want := fmt.Sprintf("and %d more", len(c.Expected())-maxErrors); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want it to end with %q", err, want)
	}
}

// TestTiedHead: no lm_head is needed, a stored one is not used.
func TestTiedHead(t *testing.T) {
	c, err := Parse(edit(t, readFile(t, goldens, "deepseek_v2", "config.json"), map[string]string{"tie_word_embeddings": "true"}))
	if err != nil {
		t.Fatal(err)
	}
	if n := c.Names(); n.Head != n.Embed {
		t.Errorf("%+v", n)
	}
	shapes := fileShapes(t, "deepseek_v2")
	for range 2 {
		if err := c.CheckTensors(sortedNames(shapes), func(n string) []int { return shapes[n] }); err != nil {
			t.Error(err)
		}
		delete(shapes, "lm_head.weight")
	}
}
