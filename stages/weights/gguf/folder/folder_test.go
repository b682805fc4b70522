package folder

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"krater/stages/compare/goldens"
	"krater/stages/model"
	"krater/stages/weights/gguf"
)

// build makes the file of a golden folder, and returns it with the folder's config.json.
func build(t testing.TB, name string) (*goldens.GGUF, *gguf.File, []byte) {
	t.Helper()
	g := goldens.NewGGUF(t, name)
	f, err := gguf.Parse(g.Data)
	if err != nil {
		t.Fatal(err)
	}
	return g, f, g.Config
}

// TestTensors: every tensor of a golden folder comes out of its GGUF file, under its name, with
// its shape and its values.
func TestTensors(t *testing.T) {
	for _, name := range goldens.GGUFNames(t) {
		t.Run(name, func(t *testing.T) {
			g, f, _ := build(t, name)
			d, err := New(f)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "gpt_oss") {
				compareFused(t, g, d)
				return
			}
			want := slices.Sorted(slices.Values(g.Set.Names()))
			if !slices.Contains(d.Names(), "lm_head.weight") { // tied
				want = slices.DeleteFunc(want, func(s string) bool { return s == "lm_head.weight" })
			}
			want = slices.DeleteFunc(want, func(s string) bool { return strings.Contains(s, "rotary_emb.inv_freq") })
			if got := slices.Sorted(slices.Values(d.Names())); !slices.Equal(got, want) {
				t.Fatalf("got %d tensors, want %d: %.1000q, %.1000q", len(got), len(want), got, want)
			}
			for _, name := range d.Names() {
				values, shape := g.Floats(t, name)
				compareView(t, d, name, values, shape)
			}
		})
	}
}

// compareView holds a tensor against what it should be.
func compareView(t *testing.T, d *Folder, name string, want []float32, shape []int) {
	t.Helper()
	v, ok := d.Tensor(name)
	if !ok || !slices.Equal(v.Shape, shape) {
		t.Errorf("%s: %v, want %v", name, v.Shape, shape)
		return
	}
	got := make([]float32, v.Elements())
	x := v.tensor()
	rows, width := x.Rows()
	for from := 0; from < rows; from += 7 { // no piece has that many rows
		if err := x.Floats(got[from*width:][:min(7, rows-from)*width], from); err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
	}
	limit := 0.
	if v.change != unchanged {
		limit = 3e-7 // 1 + w and exp are rounded to float32
	}
	for i := range want {
		if math.Abs(float64(got[i]-want[i])) > limit {
			t.Errorf("%s: value %d is %g, want %g", name, i, got[i], want[i])
			return
		}
	}
	kind, plain := v.Type()
	blocks, ok := v.Blocks()
	if whole := make([]float32, len(got)); v.Floats(whole, 0) != nil || !slices.Equal(whole, got) {
		t.Errorf("%s: other values when it is read at once", name)
	}
	if ok != plain {
		t.Errorf("%s: blocks %v, type %v", name, ok, plain)
	}
	if again := make([]float32, len(got)); ok && (kind.Decode(again, blocks) != nil || !slices.Equal(again, got)) {
		t.Errorf("%s: blocks decode to other values", name)
	}
}

// compareFused compares gpt-oss, whose release has all experts as one tensor.
func compareFused(t *testing.T, g *goldens.GGUF, d *Folder) {
	seen := 0
	for _, name := range g.Set.Names() {
		x, shape := g.Floats(t, name)
		if !strings.Contains(name, ".experts.") {
			compareView(t, d, name, x, shape)
			seen++
			continue
		}
		prefix, rest, _ := strings.Cut(name, "experts.")
		end, step := ".weight", 1
		if strings.HasSuffix(rest, "_bias") {
			end, shape = ".bias", []int{shape[0], 1, shape[1]}
		}
		parts := []string{"down_proj"}
		if strings.HasPrefix(rest, "gate_up") {
			parts, step = []string{"gate_proj", "up_proj"}, 2
		}
		in, out := shape[1], shape[2]
		for e := range shape[0] {
			for k, p := range parts {
				var want []float32
				for o := k; o < out; o += step {
					for i := range in {
						want = append(want, x[(e*in+i)*out+o])
					}
				}
				dims := []int{out / step, in}
				if end == ".bias" {
					dims = dims[:1]
				}
				compareView(t, d, fmt.Sprintf("%sexperts.%d.%s%s", prefix, e, p, end), want, dims)
				seen++
			}
		}
	}
	if seen != len(d.Names()) {
		t.Errorf("%d tensors compared of %d", seen, len(d.Names()))
	}
}

// TestConfig: the family's parser reads the config that is made from metadata as it reads the
// folder's config.json.
func TestConfig(t *testing.T) {
	for _, name := range goldens.GGUFNames(t) {
		t.Run(name, func(t *testing.T) {
			_, f, text := build(t, name)
			d, err := New(f)
			if err != nil {
				t.Fatal(err)
			}
			made, err := d.Config()
			if err != nil {
				t.Fatal(err)
			}
			compareFields(t, text, made)
			lost := map[string]map[string]any{
				"mistral":  {"model_type": "llama", "sliding_window": nil},          // a file keeps neither its name nor its window
				"glm4_moe": {"eos_token_id": 1}, "glm_moe_dsa": {"eos_token_id": 1}, // and one of several end tokens
				// The vectors are of a conversion without the draft layer.
				"qwen3_5": {"mtp_num_hidden_layers": 0}, "qwen3_5_moe": {"mtp_num_hidden_layers": 0},
			}
			if lost[name] != nil {
				var fields map[string]any
				if err := json.Unmarshal(text, &fields); err != nil {
					t.Fatal(err)
				}
				maps.Copy(fields, lost[name])
				text, _ = json.Marshal(fields)
			}
			want, err := model.Parse(text)
			if errors.Is(err, model.ErrFamily) {
				return // its fields were compared
			}
			got, err2 := model.Parse(made)
			if err := errors.Join(err, err2); err != nil {
				t.Fatalf("%v\n%s", err, made)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%+v\nwant %+v", got, want)
			}
		})
	}
}

// compareRope compares what both have in rope_scaling.
func compareRope(t *testing.T, got any, want map[string]any) {
	t.Helper()
	g, ok := got.(map[string]any)
	if !ok || g["factor"] == nil {
		t.Errorf("rope_scaling is %v, want %v", got, want)
	}
	for key, v := range g {
		if w, ok := want[key]; ok && w != v {
			t.Errorf("rope_scaling.%s is %v, want %v", key, v, w)
		}
	}
}

// compareFields compares what both configs have, with names of earlier releases for what was
// renamed.
func compareFields(t *testing.T, text, made []byte) {
	t.Helper()
	var want, got map[string]any
	if err := errors.Join(json.Unmarshal(text, &want), json.Unmarshal(made, &got)); err != nil {
		t.Fatal(err)
	}
	same := 0
	for key, g := range got {
		w, ok := want[key]
		if !ok || key == "architectures" || key == "eos_token_id" || key == "model_type" && w == "mistral" {
			continue
		}
		a, _ := json.Marshal(g)
		b, _ := json.Marshal(w)
		if rope, ok := w.(map[string]any); ok {
			compareRope(t, g, rope)
			continue
		}
		if w == nil && key == "head_dim" {
			continue
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s is %s, want %s", key, a, b)
		}
		same++
	}
	if same < 12 {
		t.Errorf("only %d fields in common", same)
	}
}
