package main

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/bench/loss"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/compare/goldens"
	"krater/stages/drive"
	"krater/stages/oracle"
	"krater/stages/source"
)

const int8Limit = 0.02 // relative L2 error of the logits of p17

// int8Sensitive are the golden models that lose more, and the proven cause: the format, to whose loss
// rounded weights and rounded rows both add, as bench/loss computes it in float64 without the engine.
// No expert of p17 is chosen otherwise, and BF16 arithmetic loses as much. docs/weights.md has the table.
var int8Sensitive = map[string]string{
	"gemma4_moe":  "weights 0.0127, rows 0.0149, both 0.0222; BF16 0.0262",
	"mixtral":     "weights 0.0124, rows 0.0163, both 0.0207; BF16 0.0195",
	"qwen3_5_moe": "weights 0.0138, rows 0.0184, both 0.0203; BF16 0.0232",
	"qwen3_next":  "weights 0.0182, rows 0.0227, both 0.0328; BF16 0.0306",
}

// TestInt8Goldens: with experts in 8 bits, in groups of 32, the golden models' logits of p17 are off
// by little, and by what the format costs. Each token of the golden continuations is chosen again
// after those before it where it was clear. Where a router finds two experts nearly equal, or an indexer
// two rows, it may choose otherwise; then the token is the same with the choices of the unrounded model.
func TestInt8Goldens(t *testing.T) {
	goldens.Each(t, func(t *testing.T, f goldens.Folder) {
		m, err := loss.Open(f.Dir)
		if errors.Is(err, loss.ErrDense) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		p := pipelineFor(t, f.Dir, m.Golden.Longest(), "--cpu-expert-bits", "8", "--group-size", "32")
		clear := 0
		for i := range m.Golden.Prompts {
			g := &m.Golden.Prompts[i]
			logits := continued(t, p, g, nil)
			if g.Name == "p17" {
				checkLoss(t, m, logits)
			}
			n, wrong := clearTokens(g, logits)
			clear += n
			if len(wrong) == 0 {
				continue
			}
			plain, err := m.Run(slices.Concat(g.IDs, g.Greedy), loss.Rounding{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := &forcedRouter{params: m.Config.MoE.Router, choices: plain.Choices, selected: selections{}}
			continued(t, pipelineFor(t, f.Dir, m.Golden.Longest()), g, r.selected)
			_, left := clearTokens(g, continued(t, p, g, r))
			t.Logf("%s: clear tokens %v change, and %v with the choices of the unrounded model; %d would be others", g.Name, wrong, left, r.changed)
			if len(left) > 0 || r.changed == 0 {
				t.Errorf("%s: clear tokens %v change, not by other choices", g.Name, wrong)
			}
		}
		if clear == 0 {
			t.Error("no continuation has a clear margin")
		}
	})
}

// checkLoss holds the logits of p17 to the limit, and to the loss of the format by definition.
func checkLoss(t *testing.T, m *loss.Model, logits [][]float32) {
	t.Helper()
	format := tensor.INT8.By(32)
	want, err := m.L2(loss.Rounding{Weights: format, Rows: format})
	if err != nil {
		t.Fatal(err)
	}
	golden, _ := m.Golden.Vector("p17.logits")
	var off, size float64
	for i, v := range golden.F32 {
		row := logits[i/m.Config.Vocab]
		off, size = off+math.Pow(float64(row[i%m.Config.Vocab]-v), 2), size+math.Pow(float64(v), 2)
	}
	got, cause := math.Sqrt(off/size), int8Sensitive[m.Golden.Name]
	t.Logf("logits are off by %.4f of their norm, by the format's definition %.4f", got, want)
	if !(math.Abs(got-want) <= 0.02*want) {
		t.Errorf("logits are off by %.4f of their norm, the format explains %.4f", got, want)
	}
	if above := got > int8Limit; above != (cause != "") {
		t.Errorf("logits are off by %.4f of their norm, at most %.2f is allowed; excepted: %q", got, int8Limit, cause)
	}
}

// continued returns the logits of a golden prompt and its golden continuation, row by row.
func continued(t *testing.T, p drive.Runner, g *compare.Prompt, probe stages.Probe) (logits [][]float32) {
	t.Helper()
	s := &drive.Sequence{Prompt: slices.Concat(g.IDs, g.Greedy), All: true, See: func(_ int, row []float32) {
		logits = append(logits, slices.Clone(row))
	}}
	if err := drive.Run(p, []*drive.Sequence{s}, drive.Options{Probe: probe}); err != nil {
		t.Fatal(err)
	}
	return logits
}

// clearTokens returns the number of clear tokens of a continuation, and the places of those that logits choose otherwise.
func clearTokens(g *compare.Prompt, logits [][]float32) (n int, wrong []int) {
	for i, want := range g.Greedy {
		if g.Margin[i] <= loss.Clear {
			continue
		}
		if n++; drive.Argmax(logits[len(g.IDs)+i-1]) != want {
			wrong = append(wrong, i)
		}
	}
	return n, wrong
}

// selections has the rows that the indexers of one sequence select, by layer and position. As a probe it records them.
type selections map[int]map[int][]int32

func (s selections) Observe(_ device.Stream, layer int, op string, m device.Mat, st *stages.State) {
	if op != "selected" {
		return
	}
	if s[layer] == nil {
		s[layer] = map[int][]int32{}
	}
	for row := range m.Rows {
		s[layer][st.Spans[0].Pos+row] = slices.Clone(m.RowRange(row, row+1).I32s())
	}
}

// forcedRouter is a probe that puts other experts, and other rows, in the place of those that the routers
// and indexers of one sequence choose, on a device whose memory the host addresses. It weighs experts as if they
// had been chosen.
type forcedRouter struct {
	params   device.Router
	choices  map[int][][]int // by layer: of each token, rising
	selected selections
	changed  int // choices that were replaced by others

	logits []float32
	ids    []int32
}

func (f *forcedRouter) Observe(_ device.Stream, layer int, op string, m device.Mat, st *stages.State) {
	switch op {
	case "selected":
		for row := range m.Rows {
			own, given := m.RowRange(row, row+1).I32s(), f.selected[layer][st.Spans[0].Pos+row]
			if !slices.Equal(slices.Sorted(slices.Values(own)), slices.Sorted(slices.Values(given))) {
				f.changed++
			}
			copy(own, given)
		}
	case "router_logits":
		f.logits = m.F32s()
	case "router_ids":
		f.ids = m.I32s()
	case "router_weights":
		weights, k := m.F32s(), f.params.TopK
		n := len(f.logits) / m.Rows
		for row := range m.Rows {
			ids, given := f.ids[row*k:][:k], f.choices[layer][st.Spans[0].Pos+row]
			own := make([]int, k)
			for i, id := range ids {
				own[i] = int(id)
			}
			if slices.Sort(own); !slices.Equal(own, given) {
				f.changed++
			}
			ordered, by := oracle.Weigh(oracle.Scores(oracle.Widen(f.logits[row*n:][:n]), f.params.Scoring), given, nil, f.params)
			for i, e := range ordered {
				ids[i], weights[row*k+i] = int32(e), float32(by[i])
			}
		}
	}
}

// pipelineFor is a golden model as krater compare loads it with args, for sequences of at most longest
// tokens (0: the context of the model).
func pipelineFor(t *testing.T, dir string, longest int, args ...string) drive.Runner {
	t.Helper()
	var c cli
	ctx, file, err := cmdline.Parse(&c, append([]string{"compare", "--model", dir, "--cache-dir", t.TempDir()}, args...))
	if err != nil {
		t.Fatal(err)
	}
	src, err := source.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := &console.Env{Out: io.Discard, Err: io.Discard, Ctx: ctx, File: file}
	s, err := local.Load(context.Background(), console.ForLoad(e, src, c.Compare.Options, config.Case{LogitRows: compareRows, Context: longest, KVType: tensor.F32, Whole: true}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p, err := s.Pipeline(zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}
