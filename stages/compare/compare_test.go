package compare

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/scaled"
)

const dir = "../../testdata/goldens/deepseek_v2"

// loaded returns a golden's model on the reference device.
func loaded(t *testing.T) (*direct.Model, *weights.Set) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	set, err := scaled.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	lim := stages.Limits{Tokens: 17, Seqs: 2, LogitRows: 17, Blocks: 32, BlockTokens: 8}
	parts, err := load.Model(refdevice.Device{}, cfg, set, load.Options{Limits: lim, KVType: tensor.F32})
	if err != nil {
		t.Fatal(err)
	}
	m, err := direct.New(refdevice.Device{}, parts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); parts.Close(); set.Close() })
	return m, set
}

// onlyShort drops the long prompt and most of the continuations, for speed.
func onlyShort(g *Golden) {
	g.Prompts = slices.DeleteFunc(g.Prompts, func(p Prompt) bool { return len(p.IDs) > 17 })
	for i := range g.Prompts {
		g.Prompts[i].Compare = 2
	}
	g.traced = slices.IndexFunc(g.Prompts, func(p Prompt) bool { return len(p.IDs) == 17 })
}

func read(t *testing.T) *Golden {
	t.Helper()
	g, err := ReadGolden(dir)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestEveryVectorCanFail spoils one element of every vector in turn: exactly the checks of that
// vector must fail.
func TestEveryVectorCanFail(t *testing.T) {
	m, set := loaded(t)
	run := func(g *Golden) *Report {
		onlyShort(g)
		r, err := Run(m, m.Parts.Config, g, Weights(set), Options{Batch: 2, Chunk: 5})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := run(read(t)); !r.OK() {
		r.Text(os.Stderr)
		t.Fatal("the golden itself fails")
	}
	pristine := read(t)
	for _, name := range pristine.names() {
		prompt, short, _ := strings.Cut(name, ".")
		if prompt == "p96" || strings.HasSuffix(name, "margin") || strings.HasSuffix(name, "input_ids") {
			continue // not run here, or no output of the model
		}
		g := read(t)
		v := g.vectors[name]
		if v.I32 != nil {
			v.I32[1%len(v.I32)]++ // in place: prompts share it
		} else {
			v.F32[len(v.F32)/2] += 0.01
		}
		r := run(g)
		if r.OK() {
			t.Errorf("%s: spoiled and passed", name)
		}
		for _, c := range r.Checks {
			if !c.Passed && !strings.HasPrefix(c.Name, name) {
				t.Errorf("%s (%s) spoiled, but %s failed: %s", name, short, c.Name, c.Detail)
			}
		}
	}
}

func TestUnknownVectorIsAnError(t *testing.T) {
	m, set := loaded(t)
	for _, name := range []string{"p17.ops.9.q", "p17.router.1.colour", "p17.smell"} {
		g := read(t)
		onlyShort(g)
		g.vectors = maps.Clone(g.vectors)
		g.vectors[name] = Vector{F32: []float32{1}}
		if _, err := Run(m, m.Parts.Config, g, Weights(set), Options{}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestUnknownOperatorFails(t *testing.T) {
	m, set := loaded(t)
	g := read(t)
	onlyShort(g)
	g.vectors["p17.ops.1.smell"] = Vector{F32: []float32{1}}
	r, err := Run(m, m.Parts.Config, g, Weights(set), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed != 1 {
		t.Errorf("%d failed", r.Failed)
	}
}

func TestFloats(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, x := range []struct {
		got, want []float32
		pass      bool
		abs       float64
	}{
		{[]float32{1, 2}, []float32{1, 2}, true, 0},
		{[]float32{1, 2.25}, []float32{1, 2}, true, 0.25},
		{[]float32{1, 2.5}, []float32{1, 2}, false, 0.5},
		{[]float32{1}, []float32{1, 2}, false, 0},
		{nil, []float32{1}, false, 0},
		{[]float32{nan}, []float32{1}, false, math.MaxFloat64},
		{[]float32{inf}, []float32{inf}, false, math.MaxFloat64},
		{[]float32{1}, []float32{0}, false, 1},
	} {
		c := floats("x", 0, "op", x.got, x.want, 0.25)
		if c.Passed != x.pass || c.MaxAbs != x.abs {
			t.Errorf("%v, %v: %+v", x.got, x.want, c)
		}
		if _, err := json.Marshal(c); err != nil {
			t.Errorf("%v, %v: %v", x.got, x.want, err)
		}
	}
}

func TestReportText(t *testing.T) {
	r := &Report{}
	r.add(floats("p.a", 1, "q", []float32{1}, []float32{1}, 0.1))
	r.add(ids("p.b", -1, "greedy", []int32{1, 2}, []int32{1, 3}))
	var out bytes.Buffer
	if err := r.Text(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "\n1 passed, 1 failed\n") || !strings.Contains(out.String(), "FAILED") || r.OK() {
		t.Errorf("got %s", out.String())
	}
	out.Reset()
	if err := r.JSON(&out); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back.Passed != 1 || back.Failed != 1 || len(back.Checks) != 2 {
		t.Errorf("got %+v, %v", back, err)
	}
}

func TestReadTrained(t *testing.T) {
	g, err := ReadGolden("../../models/krater-tiny")
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Prompts) != 3 || g.Prompts[0].Compare != 19 || len(g.Prompts[0].Last) != 8192 || g.traced != -1 {
		t.Errorf("got %d prompts, first %+v", len(g.Prompts), g.Prompts[0].Compare)
	}
	if _, err := ReadGolden(t.TempDir()); err == nil {
		t.Error("an empty directory is a golden")
	}
}
