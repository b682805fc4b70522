package goldens

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/fused"
	"krater/stages/weights/gguf"
)

// GGUF is a golden folder as a .gguf file, which the Python package gguf describes in testdata/gguf.
type GGUF struct {
	Size    int
	SHA256  string
	Tensors [][4]any // name, operation, its number, name in the folder

	Config []byte       `json:"-"` // the folder's config.json
	Set    *weights.Set `json:"-"` // the folder's tensors
	Data   []byte       `json:"-"` // the file
}

// GGUFNames are the golden folders that have a description.
func GGUFNames(t testing.TB) (list []string) {
	paths, err := filepath.Glob(filepath.Join(filepath.Dir(root(t)), "gguf", "*.head"))
	if err != nil || len(paths) == 0 {
		t.Fatal(err, "no descriptions")
	}
	for _, p := range paths {
		list = append(list, strings.TrimSuffix(filepath.Base(p), ".head"))
	}
	return list
}

// NewGGUF makes the file that llama.cpp's conversion makes of a golden folder, to the last byte. If
// the folder is not there, the test is skipped: GOLDENS may name another place for all of them.
func NewGGUF(t testing.TB, name string) *GGUF {
	t.Helper()
	dir, vectors := filepath.Join(root(t), name), filepath.Join(filepath.Dir(root(t)), "gguf")
	if extra := os.Getenv("GOLDENS"); extra != "" {
		dir = filepath.Join(extra, name)
	}
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("%s is not there", dir)
	}
	g := &GGUF{Config: config}
	head, err2 := os.ReadFile(filepath.Join(vectors, name+".head"))
	text, err3 := os.ReadFile(filepath.Join(vectors, name+".json"))
	var fields map[string]any
	if err := errors.Join(err, err2, err3, json.Unmarshal(text, g), json.Unmarshal(config, &fields)); err != nil {
		t.Fatal(err)
	}
	if g.Set, err = weights.Open(dir); err != nil {
		t.Fatal(err)
	}
	if _, within := fields["text_config"]; within {
		g.textAlone(t, config)
		if err := json.Unmarshal(g.Config, &fields); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { g.Set.Close() })
	g.Data = append(head, make([]byte, g.Size-len(head))...)
	f, err := gguf.Parse(g.Data)
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
	if sum := sha256.Sum256(g.Data); hex.EncodeToString(sum[:]) != g.SHA256 {
		t.Fatalf("%s: this is not the file that the package wrote", name)
	}
	return g
}

// textAlone leaves of the folder what a release for text alone has, with each expert's tensors apart.
func (g *GGUF) textAlone(t testing.TB, config []byte) {
	t.Helper()
	var whole struct {
		Text json.RawMessage `json:"text_config"`
	}
	cfg, err := model.Parse(config)
	if err := errors.Join(err, json.Unmarshal(config, &whole)); err != nil {
		t.Fatal(err)
	}
	if g.Set, err = fused.View(cfg, g.Set); err != nil {
		t.Fatal(err)
	}
	var list []weights.Named
	for name, x := range g.Set.All() {
		if !strings.HasPrefix(name, "mtp.") {
			list = append(list, weights.Named{Name: strings.Replace(name, "model.language_model.", "model.", 1), Tensor: x})
		}
	}
	g.Config, g.Set = whole.Text, g.Set.View(list)
}

// Floats are the values of a tensor of the folder.
func (g *GGUF) Floats(t testing.TB, name string) ([]float32, []int) {
	t.Helper()
	x, ok := g.Set.Tensor(name)
	if !ok {
		t.Fatalf("the folder has no %s", name)
	}
	rows, width := x.Rows()
	out := make([]float32, rows*width)
	if err := x.Floats(out, 0); err != nil {
		t.Fatal(err)
	}
	return out, x.Shape
}

// store makes the values of a stored tensor as llama.cpp's conversion does.
func (g *GGUF) store(t testing.TB, op string, n int, source string, config map[string]any) (out []float32) {
	t.Helper()
	if op == "stack" {
		for e := range n {
			x, _ := g.Floats(t, strings.Replace(source, "*", fmt.Sprint(e), 1))
			out = append(out, x...)
		}
		return out
	}
	if op == "llama3" {
		return llama3Factors(config)
	}
	x, shape := g.Floats(t, source)
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
	case "tiled", "tiled negexp", "tiled columns":
		return tiled(op, n, x, rows, size("linear_num_key_heads"), size("linear_num_value_heads"))
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

// tiled puts the last rows of x, or its columns, which are heads of n, in llama.cpp's order: the first head of every
// key head, then the second of every key head.
func tiled(op string, n int, x []float32, rows, keys, heads int) (out []float32) {
	width, first := len(x)/rows, (rows-heads*n)*(len(x)/rows)
	if op == "tiled columns" {
		for row := range slices.Chunk(x, width) {
			out = append(out, tiled("tiled", n, row, width, keys, heads)...)
		}
		return out
	}
	out = slices.Clone(x[:first])
	for s := range heads {
		head := s%keys*(heads/keys) + s/keys
		out = append(out, x[first+head*n*width:][:n*width]...)
	}
	for i, v := range out {
		if op == "tiled negexp" {
			out[i] = float32(-math.Exp(float64(v)))
		}
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
