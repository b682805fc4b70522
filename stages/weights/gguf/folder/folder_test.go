package folder

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/gguf"
)

const (
	vectors = "../../../../testdata/gguf/"
	goldens = "../../../../testdata/goldens/"
)

// golden is a golden folder, and how the Python package gguf stores its tensors.
type golden struct {
	Size    int
	SHA256  string
	Tensors [][4]any // name, operation, its number, name in the folder

	set  *weights.Set
	kind map[string]gguf.Type
}

// floats are the values of a tensor of the folder.
func (g *golden) floats(t testing.TB, name string) ([]float32, []int) {
	t.Helper()
	x, ok := g.set.Tensor(name)
	if !ok {
		t.Fatalf("the folder has no %s", name)
	}
	kind, _ := gguf.ParseType(x.DType.String())
	out := make([]float32, len(x.Data)/x.DType.Size())
	if err := kind.Decode(out, x.Data); err != nil {
		t.Fatal(err)
	}
	return out, x.Shape
}

// store makes the values of a stored tensor as llama.cpp's conversion does.
func (g *golden) store(t testing.TB, op string, n int, source string, config map[string]any) (out []float32) {
	t.Helper()
	if op == "stack" {
		for e := range n {
			x, _ := g.floats(t, strings.Replace(source, "*", fmt.Sprint(e), 1))
			out = append(out, x...)
		}
		return out
	}
	if op == "llama3" {
		return llama3Factors(config)
	}
	x, shape := g.floats(t, source)
	rows := shape[0]
	row := func(i int) []float32 { w := len(x) / rows; return x[i*w:][:w] }
	size := func(name string) int { return int(config[name].(float64)) }
	switch op {
	case "copy":
		return x
	case "plus":
		for _, v := range x {
			out = append(out, v+1)
		}
	case "negexp":
		for _, v := range x {
			out = append(out, float32(-math.Exp(float64(v))))
		}
	case "permute":
		for i := range rows {
			dim := rows / n
			out = append(out, row(i/dim*dim+i%2*dim/2+i%dim/2)...)
		}
	case "keys", "values":
		nope, v := size("qk_nope_head_dim"), size("v_head_dim")
		for h := range n {
			for i := range v {
				if op == "values" {
					out = append(out, row(h*(nope+v)+nope+i)...)
				}
			}
			for c := range shape[1] {
				for i := range nope {
					if op == "keys" {
						out = append(out, row(h*(nope+v) + i)[c])
					}
				}
			}
		}
	case "qkv", "z":
		k, v := size("linear_key_head_dim"), size("linear_num_value_heads")/n*size("linear_value_head_dim")
		for _, p := range map[string][][2]int{"qkv": {{0, k}, {k, 2 * k}, {2 * k, 2*k + v}}, "z": {{2*k + v, 2*k + 2*v}}}[op] {
			for h := range n {
				for i := p[0]; i < p[1]; i++ {
					out = append(out, row(h*(2*k+2*v)+i)...)
				}
			}
		}
	case "turned", "turned even", "turned odd":
		return turned(op, x, shape)
	default:
		t.Fatalf("operation %q", op)
	}
	return out
}

// turned are weights of gpt-oss, which has [expert, in, out], with rows of in, or its biases, which
// are [expert, out]: all of out, the even ones or the odd ones.
func turned(op string, x []float32, shape []int) (out []float32) {
	from, step := 0, 2
	if op == "turned" {
		step = 1
	} else if op == "turned odd" {
		from = 1
	}
	wide := shape[len(shape)-1]
	size := len(x) / shape[0]
	for e := range shape[0] {
		row := x[e*size:][:size]
		for o := from; o < wide; o += step {
			for i := o; i < size; i += wide {
				out = append(out, row[i])
			}
		}
	}
	return out
}

// llama3Factors returns the factors of a config.
func llama3Factors(config map[string]any) (out []float32) {
	s := config["rope_scaling"].(map[string]any)
	get := func(name string) float64 { return s[name].(float64) }
	dim := config["head_dim"].(float64)
	original, low, high := get("original_max_position_embeddings"), get("low_freq_factor"), get("high_freq_factor")
	for i := 0.; i < dim; i += 2 {
		wave := 2 * math.Pi * math.Pow(config["rope_theta"].(float64), i/dim)
		f := 1.
		if smooth := (original/wave - low) / (high - low); wave > original/low {
			f = get("factor")
		} else if wave >= original/high {
			f = 1 / ((1-smooth)/get("factor") + smooth)
		}
		out = append(out, float32(f))
	}
	return out
}

// build makes the file that the Python package gguf wrote for a golden folder.
func build(t testing.TB, name string) (*golden, *gguf.File, []byte) {
	t.Helper()
	dir := goldens + name
	if extra := os.Getenv("GOLDENS"); extra != "" {
		dir = filepath.Join(extra, name)
	}
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("%s is not there", dir)
	}
	g := &golden{}
	head, err2 := os.ReadFile(vectors + name + ".head")
	text, err3 := os.ReadFile(vectors + name + ".json")
	var fields map[string]any
	if err := errors.Join(err, err2, err3, json.Unmarshal(text, g), json.Unmarshal(config, &fields)); err != nil {
		t.Fatal(err)
	}
	if g.set, err = weights.Open(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.set.Close() })
	data := append(head, make([]byte, g.Size-len(head))...)
	f, err := gguf.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range g.Tensors {
		stored, ok := f.Tensor(x[0].(string))
		if !ok {
			t.Fatalf("no tensor %v", x[0])
		}
		if err := stored.Type.Encode(stored.Data, g.store(t, x[1].(string), int(x[2].(float64)), x[3].(string), fields)); err != nil {
			t.Fatalf("%v: %v", x, err)
		}
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != g.SHA256 {
		t.Fatalf("%s: this is not the file that the package wrote", name)
	}
	return g, f, config
}

// names are the golden folders that have a description.
func names(t testing.TB) (list []string) {
	paths, err := filepath.Glob(vectors + "*.head")
	if err != nil || len(paths) == 0 {
		t.Fatal(err, "no descriptions")
	}
	for _, p := range paths {
		list = append(list, strings.TrimSuffix(filepath.Base(p), ".head"))
	}
	return list
}

// TestTensors: every tensor of a golden folder comes out of its GGUF file, under its name, with
// its shape and its values.
func TestTensors(t *testing.T) {
	for _, name := range names(t) {
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
			want := slices.Sorted(slices.Values(g.set.Names()))
			if !slices.Contains(d.Names(), "lm_head.weight") { // tied
				want = slices.DeleteFunc(want, func(s string) bool { return s == "lm_head.weight" })
			}
			want = slices.DeleteFunc(want, func(s string) bool { return strings.Contains(s, "rotary_emb.inv_freq") })
			if got := slices.Sorted(slices.Values(d.Names())); !slices.Equal(got, want) {
				t.Fatalf("got %d tensors, want %d: %.1000q, %.1000q", len(got), len(want), got, want)
			}
			for _, name := range d.Names() {
				values, shape := g.floats(t, name)
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
	if err := v.Floats(got); err != nil {
		t.Errorf("%s: %v", name, err)
		return
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
	if ok != plain {
		t.Errorf("%s: blocks %v, type %v", name, ok, plain)
	}
	if again := make([]float32, len(got)); ok && (kind.Decode(again, blocks) != nil || !slices.Equal(again, got)) {
		t.Errorf("%s: blocks decode to other values", name)
	}
}

// compareFused compares gpt-oss, whose release has all experts as one tensor.
func compareFused(t *testing.T, g *golden, d *Folder) {
	seen := 0
	for _, name := range g.set.Names() {
		x, shape := g.floats(t, name)
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
	for _, name := range names(t) {
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
				"mistral":  {"model_type": "llama", "sliding_window": nil}, // a file keeps neither its name nor its window
				"glm4_moe": {"eos_token_id": 1},                            // and one of several end tokens
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
