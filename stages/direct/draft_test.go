package direct_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/load"
	"krater/stages/oracle"
)

// drafts are the golden folders with vectors of a draft layer.
var drafts = []string{"drafts/deepseek_v3_mtp", "goldens/qwen3_5_moe"}

// draftFolder is where one is.
func draftFolder(name string) string { return filepath.Join("../../testdata", name) }

// TestDraft holds a draft layer of the engine to its golden vectors, with chunks of prompts and token by token. The
// hidden states of the model are the golden's.
func TestDraft(t *testing.T) {
	for _, name := range drafts {
		for i, target := range targets() {
			chunk := []int{17, 1, 7}[i%3]
			t.Run(fmt.Sprintf("%s, %s, chunk %d", name, target.name, chunk), func(t *testing.T) {
				g, err := compare.ReadGolden(draftFolder(name))
				if err != nil {
					t.Fatal(err)
				}
				r := openDraft(t, target.make(t), name, vector(t, g, "final_norm").F32)
				next, vocab := vector(t, g, "mtp.next_ids").I32, r.parts.Config.Vocab
				var logits []float32
				see := func(_ int, row []float32) { logits = append(logits, row...) }
				if err := drive.Run(r, []*drive.Sequence{{Prompt: next, All: true, See: see}}, drive.Options{Chunk: chunk, Probe: r}); err != nil {
					t.Fatal(err)
				}
				for _, op := range []string{"proj", "input_norm", "attn", "mixer_out", "post_norm", "mlp_out", "final_norm"} {
					near(t, op, r.seen[op], vector(t, g, "mtp."+op).F32, 1e-4)
				}
				near(t, "router_weights", r.seen["router_weights"], vector(t, g, "mtp.router.weights").F32, 1e-4)
				if want := vector(t, g, "mtp.router.ids").I32; !slices.Equal(r.chosen, want) {
					t.Errorf("experts %v, want %v", r.chosen, want)
				}
				near(t, "logits", logits, vector(t, g, "mtp.logits").F32, 1e-3)
				for i, want := range vector(t, g, "mtp.draft_ids").I32 {
					if got := drive.Argmax(logits[i*vocab : (i+1)*vocab]); got != want {
						t.Errorf("row %d drafts %d, want %d", i, got, want)
					}
				}
			})
		}
	}
}

// TestDraftDefinition holds the definition of a draft layer to the golden vectors.
func TestDraftDefinition(t *testing.T) {
	for _, name := range drafts {
		g, err := compare.ReadGolden(draftFolder(name))
		if err != nil {
			t.Fatal(err)
		}
		cfg, set := files(t, draftFolder(name), "config.json")
		logits, err := oracle.Draft(cfg, compare.Weights(set), oracle.Widen(vector(t, g, "final_norm").F32), vector(t, g, "mtp.next_ids").I32)
		if err != nil {
			t.Fatal(err)
		}
		var got []float32
		for _, x := range slices.Concat(logits...) {
			got = append(got, float32(x))
		}
		near(t, name, got, vector(t, g, "mtp.logits").F32, 1e-4)
	}
	cfg, set := files(t, folder("qwen3_moe"), "config.json")
	if _, err := oracle.Draft(cfg, compare.Weights(set), nil, nil); err != oracle.ErrNoDraft {
		t.Errorf("a model without a draft layer: %v", err)
	}
}

// TestDraftIsLoadedAlone: the weights of a model are planned without its draft layer, and those of the
// draft layer by themselves.
func TestDraftIsLoadedAlone(t *testing.T) {
	for _, name := range drafts {
		cfg, set := files(t, draftFolder(name), "config.json")
		o := load.Options{Limits: limits, KVType: tensor.F32}
		planned := func() (n int64) {
			needs, err := load.Plan(cfg, o, load.Use{States: 1, Streams: 1, Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range needs {
				if x.Part.Weight() {
					n += x.Bytes
				}
			}
			return n
		}
		with := planned()
		draft := cfg.DraftModel()
		cfg.Draft = nil
		if without := planned(); with != without {
			t.Errorf("%s: %d bytes of weights, without its draft layer %d", name, with, without)
		}
		cfg = draft
		parts, err := load.Model(processor(t, 1), cfg, set, o)
		if err != nil {
			t.Fatal(err)
		}
		if n := planned(); math.Abs(float64(n-parts.WeightBytes)) > 0.02*float64(n) {
			t.Errorf("%s: %d bytes of the draft layer planned, %d loaded", name, n, parts.WeightBytes)
		}
		parts.Close()
	}
}

// vector is a vector of a golden's p17.
func vector(t *testing.T, g *compare.Golden, name string) compare.Vector {
	t.Helper()
	v, ok := g.Vector("p17." + name)
	if !ok {
		t.Fatalf("%s has no p17.%s", g.Name, name)
	}
	return v
}

// near compares values; allowed is absolute, and relative to values over 1.
func near(t *testing.T, op string, got, want []float32, allowed float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d values, want %d", op, len(got), len(want))
	}
	for i, w := range want {
		if !(math.Abs(float64(got[i]-w)) <= allowed*max(1, math.Abs(float64(w)))) {
			t.Fatalf("%s: value %d is %v, want %v", op, i, got[i], w)
		}
	}
}

// draftRunner runs a draft layer over one text whose hidden states are known. As a probe it
// keeps floats by operator, and the chosen experts.
type draftRunner struct {
	parts  *load.Parts
	stream device.Stream
	state  *stages.State
	room   device.Mat // [T, H]
	hidden []float32  // of all positions
	seen   map[string][]float32
	chosen []int32
}

func openDraft(t *testing.T, dev load.Device, name string, hidden []float32) *draftRunner {
	t.Helper()
	cfg, set := files(t, draftFolder(name), "config.json")
	cfg = cfg.DraftModel()
	parts, err := load.Model(dev, cfg, set, load.Options{Limits: limits, KVType: tensor.F32})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(parts.Close)
	r := &draftRunner{parts: parts, hidden: hidden, seen: map[string][]float32{}}
	if r.stream, err = dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.stream.Close)
	if r.state, err = stages.NewState(dev, cfg, parts.Limits); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.state.Close)
	if r.room, err = device.AllocMat(dev, tensor.F32, limits.Tokens, cfg.Hidden); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.room.Buf.Free)
	return r
}

// Limits implements drive.Runner.
func (r *draftRunner) Limits() stages.Limits { return r.parts.Limits }

// Step implements drive.Runner.
func (r *draftRunner) Step(b *stages.Step, probe stages.Probe, read func(*stages.State) error) error {
	if b.Watched = true; len(b.Spans) != 1 {
		return fmt.Errorf("%d spans", len(b.Spans))
	}
	if err := r.state.Fill(r.stream, b); err != nil {
		return err
	}
	x, h := r.room.RowRange(0, r.state.T), r.room.Cols
	var data []byte
	for _, v := range r.hidden[b.Spans[0].Pos*h:][:x.Rows*h] {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	r.stream.CopyIn(x, data)
	r.parts.Join.Run(r.stream, r.state, x, probe)
	if err := direct.Forward(r.stream, r.parts, r.state, probe); err != nil {
		return err
	}
	return read(r.state)
}

// Observe implements stages.Probe.
func (r *draftRunner) Observe(s device.Stream, _ int, op string, m device.Mat, _ *stages.State) {
	host := make([]byte, m.Bytes())
	s.CopyOut(host, m)
	if err := s.Synchronize(); err != nil {
		panic(err)
	}
	for i := 0; i < len(host); i += 4 {
		if bits := binary.LittleEndian.Uint32(host[i:]); m.DType == tensor.I32 {
			r.chosen = append(r.chosen, int32(bits))
		} else {
			r.seen[op] = append(r.seen[op], math.Float32frombits(bits))
		}
	}
}
