package model

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

const goldens = "../../testdata/goldens"

// readFile reads a file below the goldens or fails the test.
func readFile(t testing.TB, elem ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goldenArchs lists the golden folders whose family can be read.
func goldenArchs(t testing.TB) (list []string) {
	t.Helper()
	configs, err := filepath.Glob(filepath.Join(goldens, "*", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range configs {
		if _, err := Parse(readFile(t, name)); !errors.Is(err, ErrFamily) {
			list = append(list, filepath.Base(filepath.Dir(name)))
		}
	}
	if len(list) == 0 {
		t.Fatal("no golden folders")
	}
	return list
}

// goldenF32 reads one F32 tensor of a golden file, without the product's reader.
func goldenF32(t *testing.T, arch, name string) []float32 {
	t.Helper()
	b := readFile(t, goldens, arch, "goldens.safetensors")
	n := binary.LittleEndian.Uint64(b)
	header := map[string]struct {
		Offsets [2]int `json:"data_offsets"`
	}{}
	if err := json.Unmarshal(b[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	at := header[name].Offsets
	data := b[8+n:][at[0]:at[1]]
	out := make([]float32, len(data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	if _, ok := header[name]; !ok {
		t.Fatalf("%s has no %s", arch, name)
	}
	return out
}

// facts holds the values that the reference implementation used.
type facts struct {
	Scales struct { // empty in some folders
		CosSin  *float64 `json:"rope_attention_scaling"`
		Softmax *float64 `json:"softmax_scale"`
	}
	Router *struct { // absent in some folders
		TopK      int `json:"top_k"`
		Norm      bool
		Scale     float32
		Groups    int `json:"n_group"`
		TopGroups int `json:"topk_group"`
	}
	MoELayers []int `json:"moe_layers"`
}

// wrapped is a folder's config in the style of transformers 5, in the release's wrapper if that has
// one and the dump is that of the text model.
func wrapped(t *testing.T, arch string) []byte {
	t.Helper()
	v5 := readFile(t, goldens, arch, "config.transformers5.json")
	var release map[string]json.RawMessage
	if err := json.Unmarshal(readFile(t, goldens, arch, "config.json"), &release); err != nil {
		t.Fatal(err)
	}
	var dump map[string]json.RawMessage
	if err := json.Unmarshal(v5, &dump); err != nil {
		t.Fatal(err)
	}
	if _, ok := dump["text_config"]; ok || release["text_config"] == nil {
		return v5
	}
	release["text_config"] = v5
	b, err := json.Marshal(release)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGoldens holds both config styles to what the reference implementation used.
func TestGoldens(t *testing.T) {
	for _, arch := range goldenArchs(t) {
		t.Run(arch, func(t *testing.T) {
			release, err := Parse(readFile(t, goldens, arch, "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			v5, err := Parse(wrapped(t, arch))
			if err != nil {
				t.Fatal(err)
			}
			v5.DType = release.DType               // some dumps have that of the reference, float32
			v5.Quantization = release.Quantization // the reference has plain numbers
			if !reflect.DeepEqual(release, v5) {
				t.Errorf("the two styles differ:\n%+v\n%+v", release, v5)
			}
			var want facts
			if err := json.Unmarshal(readFile(t, goldens, arch, "facts.json"), &want); err != nil {
				t.Fatal(err)
			}
			checkRope(t, release, want, goldenF32(t, arch, "rope.inv_freq"))
			checkRouting(t, release, want)
		})
	}
}

// checkRope compares the rotation and the softmax scale.
func checkRope(t *testing.T, c *Config, want facts, frequencies []float32) {
	t.Helper()
	r := &RopeConfig{} // of a model without positions
	if ropes := c.Ropes(); len(ropes) > 0 {
		r = ropes[len(ropes)-1] // where there are several, the vector is of layers that see everything: the last one
	}
	if _, ok := c.Layers[0].Mixer.(Compressed); ok { // of layers without entries: the first one
		r = c.Ropes()[0]
	}
	if w := want.Scales.CosSin; w != nil && math.Abs(r.CosSinScale-*w) > 1e-12 {
		t.Errorf("cos/sin scale %v, want %v", r.CosSinScale, *w)
	}
	if w, got := want.Scales.Softmax, softmaxScale(c); w != nil && got != float64(float32(*w)) {
		t.Errorf("softmax scale %v, want %v", got, *w)
	}
	if len(frequencies) != len(r.InvFreq) {
		t.Fatalf("%d frequencies, want %d", len(r.InvFreq), len(frequencies))
	}
	for i, w := range frequencies {
		if got := r.InvFreq[i]; math.Abs(got-float64(w)) > 2e-7*float64(w) {
			t.Errorf("inv_freq[%d] = %v, want %v", i, got, w)
		}
	}
}

// checkRouting compares the router, and which layers have experts.
func checkRouting(t *testing.T, c *Config, want facts) {
	t.Helper()
	if r, w := c.MoE.Router, want.Router; w != nil && (r.TopK != w.TopK || r.Normalize != w.Norm || r.Scale != w.Scale ||
		max(1, r.Groups) != max(1, w.Groups) || max(1, r.TopGroups) != max(1, w.TopGroups)) {
		t.Errorf("router %+v, want %+v", r, w)
	}
	var moe []int
	for i := range c.Layers {
		if c.MoELayer(i) {
			moe = append(moe, i)
		}
	}
	if !slices.Equal(moe, want.MoELayers) {
		t.Errorf("MoE layers %v, want %v", moe, want.MoELayers)
	}
}

// softmaxScale is the scale of the attention of the first layer that has softmax attention.
func softmaxScale(c *Config) float64 {
	for i := range c.Layers {
		switch a := c.Layers[i].Mixer.(type) {
		case GQA:
			return float64(a.Scale)
		case MLA:
			return float64(a.Scale)
		case Compressed:
			return float64(a.scale())
		}
	}
	return 0
}

// softmax is the usual scale of heads of n values.
func softmax(n float64) float64 { return float64(float32(1 / math.Sqrt(n))) }

// TestEveryFamilyHasAGolden: what runs all golden folders, such as the server's tests, runs every family.
// Kimi K2 is read as DeepSeek-V3. Names that end with _text are of text models, which folders have in wrappers.
func TestEveryFamilyHasAGolden(t *testing.T) {
	without := Families()
	for _, arch := range goldenArchs(t) {
		c, err := Parse(readFile(t, goldens, arch, "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		without = slices.DeleteFunc(without, func(family string) bool { return family == c.Family || family == c.Family+"_text" })
	}
	if !slices.Equal(without, []string{"kimi_k2"}) {
		t.Errorf("families without a golden folder: %v", without)
	}
}
