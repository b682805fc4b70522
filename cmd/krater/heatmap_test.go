package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/scheduler/heat"
	"krater/stages/direct"
	"krater/stages/drive"
	routers "krater/stages/route"
	"krater/stages/source"
	"krater/stages/text/tokenizer"
)

// heatJSON is the output of krater heatmap --json.
type heatJSON struct {
	Model    string
	Identity string
	Experts  int
	TopK     int `json:"top_k"`
	Tokens   uint64
	Layers   []struct {
		Layer   int
		Tokens  uint64
		Used    int
		Hottest float64
		Share25 float64 `json:"share_25"`
		Share50 float64 `json:"share_50"`
		Even    float64 `json:"evenness"`
		Counts  []uint64
	}
}

// TestHeatmapIsTheModels: the trained model's skew on its whole held-out text equals the figures that
// another program measured when the model was made, to the last recorded digit.
func TestHeatmapIsTheModels(t *testing.T) {
	if testing.Short() {
		t.Skip("41,651 tokens: not in the short suite")
	}
	data, err := os.ReadFile(modelDir + "/eval.json")
	if err != nil {
		t.Fatal(err)
	}
	var eval struct {
		Tokens  uint64 `json:"heldout_tokens"`
		Experts []struct {
			Share25 float64 `json:"hottest_25pct"`
			Share50 float64 `json:"hottest_50pct"`
			Hottest float64 `json:"max"`
			Even    float64 `json:"normalised_entropy"`
		} `json:"experts_heldout"`
	}
	if err := json.Unmarshal(data, &eval); err != nil || len(eval.Experts) != 6 {
		t.Fatal(err, eval)
	}
	m := decode[heatJSON](t, answers(t, "", "heatmap", "--json", "--kv-dtype", "f32"))
	if m.Model != "krater-tiny" || m.Experts != 32 || m.TopK != 4 || m.Tokens != eval.Tokens || len(m.Layers) != len(eval.Experts) {
		t.Fatalf("%+v", m)
	}
	for i, l := range m.Layers {
		want := eval.Experts[i]
		for _, x := range []struct{ got, want, half float64 }{
			{l.Share25, want.Share25, 0.5e-3}, {l.Share50, want.Share50, 0.5e-3}, {l.Hottest, want.Hottest, 0.5e-4}, {l.Even, want.Even, 0.5e-3},
		} {
			// Half of the last digit, and a token that rounding may send elsewhere.
			if math.Abs(x.got-x.want) > x.half+1e-5 {
				t.Errorf("layer %d: %v, when the model was made %v", l.Layer, x.got, x.want)
			}
		}
	}
}

// TestHeatmapIsExact: on any device and for any division of the text, the counts equal those that
// a probe finds when the stages are called as functions.
func TestHeatmapIsExact(t *testing.T) {
	tokens, window := 1000, 300
	if testing.Short() { // with the race detector
		tokens, window = 300, 90
	}
	s, _ := started(t, "--kv-dtype", "f32", "--max-seqs", "1")
	tok, _, err := s.Source.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(modelDir + "/" + heldoutText)
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(string(text), tokenizer.EncodeOptions{ParseSpecial: true})[:tokens]
	d, err := direct.New(s.Host, s.Parts)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	want := routers.NewCounter(len(s.Config.Layers), s.Config.MoE.Experts)
	for part := range slices.Chunk(ids, window) {
		if err := drive.Run(d, []*drive.Sequence{{Prompt: part}}, drive.Options{Probe: want}); err != nil {
			t.Fatal(err)
		}
	}
	for _, flags := range [][]string{
		nil, {"--layer-groups", "3", "--expert-pools", "2", "--inline-below=-1ns"}, {"--prefill-chunk", "64"}, {"--model", modelDir},
		{"--text", modelDir + "/" + heldoutText, "--device", "hostsim"},
		{"--device", "hostsim", "--prefill-strategy", "cpu_only", "--decode-strategy", "cpu_only"},
	} {
		args := append([]string{"heatmap", "--json", "--kv-dtype", "f32", "--tokens", fmt.Sprint(tokens), "--window", fmt.Sprint(window)}, flags...)
		m := decode[heatJSON](t, answers(t, "", args...))
		if len(m.Layers) != 6 {
			t.Fatalf("%v: %+v", flags, m)
		}
		for _, l := range m.Layers {
			if l.Tokens != uint64(tokens) || l.Tokens != want.Tokens[l.Layer] || !slices.Equal(l.Counts, want.Counts[l.Layer]) {
				t.Errorf("%v, layer %d: %d tokens %v, want %v", flags, l.Layer, l.Tokens, l.Counts, want.Counts[l.Layer])
			}
		}
	}
}

// TestHeatmapFiles: maps are saved, added up, weighed, printed and drawn without running
// the model again, and keep the identity of the model.
func TestHeatmapFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	warm := func(name string, args ...string) heatJSON {
		return decode[heatJSON](t, answers(t, "", append([]string{"heatmap", "--json", "--save", file(name)}, args...)...))
	}
	text := write(t, "text", "A lighthouse is a tower. A river is a stream of water.")
	a, b := warm("a", "--tokens", "120"), warm("b", "--text", text)
	sum := warm("sum", "--load", file("a")+","+file("b"), "--load", file("a"))
	half := warm("half", "--load", file("a"), "--keep", "0.5", "--text", text)
	again := decode[heatJSON](t, answers(t, "", "heatmap", "--json", "--load", file("sum")))
	if b.Tokens == 0 || sum.Tokens != 2*a.Tokens+b.Tokens || half.Tokens != a.Tokens/2+b.Tokens || again.Identity != a.Identity || again.Tokens != sum.Tokens {
		t.Fatalf("%d and %d tokens, together %d, %d, %d", a.Tokens, b.Tokens, sum.Tokens, half.Tokens, again.Tokens)
	}
	for i, l := range again.Layers {
		for e, n := range l.Counts {
			if want := 2*a.Layers[i].Counts[e] + b.Layers[i].Counts[e]; n != want {
				t.Errorf("layer %d, expert %d: %d, want %d", l.Layer, e, n, want)
			}
		}
	}
	for _, name := range []string{"map.svg", "map.png"} {
		table := answers(t, "", "heatmap", "--load", file("sum"), "--plot", file(name))
		lines := strings.Split(table, "\n")
		if !strings.HasPrefix(table, fmt.Sprintf("krater-tiny: %d tokens, 6 layers of 32 experts, 4 per token\n", sum.Tokens)) || len(lines) != 14 {
			t.Errorf("%s", table)
		}
		if row := strings.Fields(lines[4]); len(row) != 8 || row[0] != "1" || row[5] != fmt.Sprintf("%d/32", again.Layers[0].Used) || row[3] != fmt.Sprintf("%.1f", 100*again.Layers[0].Share25) {
			t.Errorf("%q", lines[4])
		}
		picture, err := os.ReadFile(file(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"krater-tiny", "expert", "layer 6", "never", "all layers"} {
			if name == "map.svg" && !strings.Contains(string(picture), word) {
				t.Errorf("%s is not in the picture", word)
			}
		}
	}
}

// TestHeatmapRefusals: maps of other models, damaged ones, flags out of their range.
func TestHeatmapRefusals(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	answers(t, "", "heatmap", "--save", file("a"), "--tokens", "20")
	text := write(t, "text", "A river is a stream of water, and this is no heat map.")
	// The folder's model is the same, one that is another by a router's value is not.
	answers(t, "", "heatmap", "--model", modelDir, "--load", file("a"))
	other := copyDir(t, modelDir, map[string]func([]byte) []byte{"model-00001-of-00003.safetensors": routerChanged(t)})
	refuses(t, 1, []string{"heatmap", "--model", other, "--load", file("a")}, "another model")
	refuses(t, 1, []string{"heatmap", "--model", goldenDir, "--load", file("a")}, "another model")
	cut := write(t, "cut", "")
	data, err := os.ReadFile(file("a"))
	if err == nil {
		err = os.WriteFile(cut, data[:len(data)-9], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for words, args := range map[string][]string{
		"damaged":           {"--load", cut},
		"not a heat map":    {"--load", text},
		"routed experts":    {"--model", "../../testdata/goldens/qwen2"},
		"--text":            {"--model", goldenDir},
		".svg or .png":      {"--plot", file("x.gif")},
		"--keep":            {"--load", file("a"), "--keep", "2"},
		"--window":          {"--window", "0"},
		"--tokens":          {"--tokens=-1"},
		"the text is empty": {"--text", write(t, "empty", "")},
		"the context is":    {"--window", "4096", "--tokens", "10"},
		"no such file":      {"--load", file("a"), "--save", file("no/map")},
		"--prefill-share 0": {"--prefill-share", "0"},
	} {
		refuses(t, 1, append([]string{"heatmap"}, args...), words)
	}
}

// routerChanged changes a value in the middle of the first router in a shard.
func routerChanged(t *testing.T) func([]byte) []byte {
	return func(file []byte) []byte {
		n := binary.LittleEndian.Uint64(file)
		header := decode[map[string]json.RawMessage](t, string(file[8:8+n]))
		for name, raw := range header {
			if strings.HasSuffix(name, ".mlp.gate.weight") {
				e := decode[entry](t, string(raw))
				file[8+int(n)+(e.Offsets[0]+e.Offsets[1])/2] ^= 1
				return file
			}
		}
		t.Fatal("no router in the shard")
		return nil
	}
}

// TestHeatIdentity: the same for the same routers, however else the weights are kept.
func TestHeatIdentity(t *testing.T) {
	embedded, err := source.Open("")
	if err != nil {
		t.Fatal(err)
	}
	folder, err := source.Open(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[heat.Identity]string{}
	for name, s := range map[string]*source.Source{"embedded": embedded, "folder": folder} {
		cfg, _, err := s.Config()
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.HeatIdentity(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ids[id] = name
	}
	if len(ids) != 1 {
		t.Errorf("%v", ids)
	}
	seeds := map[heat.Identity]bool{}
	for _, f := range []source.Synthetic{{Shape: "deepseek-v2-lite", Layers: 2, WeightsSeed: 1}, {Shape: "deepseek-v2-lite", Layers: 2, WeightsSeed: 2}, {Shape: "deepseek-v2-lite", Layers: 3, WeightsSeed: 1}} {
		f.RoutingSkew = "uniform"
		s, err := f.Source()
		if err != nil {
			t.Fatal(err)
		}
		cfg, _, err := s.Config()
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.HeatIdentity(cfg)
		if err != nil {
			t.Fatal(err)
		}
		seeds[id] = true
	}
	if len(seeds) != 3 {
		t.Errorf("%d identities of three models", len(seeds))
	}
}
