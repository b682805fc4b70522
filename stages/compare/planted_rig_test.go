package compare

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/drive"
	"krater/stages/internal/refdevice"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
	"krater/stages/weights/scaled"
)

// rig is a golden's model, and what is dumped of it when nothing is wrong.
type rig struct {
	cfg *model.Config
	set *weights.Set
	ids []int32

	json []byte // config.json
}

func newRig(t *testing.T, name string) *rig {
	t.Helper()
	dir := filepath.Join("../../testdata/goldens", name)
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{ids: []int32{3, 141, 59, 26, 5, 35, 89, 79, 32}, json: data}
	r.cfg = r.config(t, nil)
	if r.set, err = scaled.Open(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.set.Close() })
	return r
}

// config parses config.json with settings changed.
func (r *rig) config(t *testing.T, change map[string]any) *model.Config {
	t.Helper()
	settings := map[string]any{}
	if err := json.Unmarshal(r.json, &settings); err != nil {
		t.Fatal(err)
	}
	maps.Copy(settings, change)
	data, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// model loads a model on dev.
func (r *rig) model(t *testing.T, dev load.Device, cfg *model.Config, set *weights.Set) *direct.Model {
	t.Helper()
	lim := stages.Limits{Tokens: len(r.ids), Seqs: 1, LogitRows: len(r.ids), Blocks: 16, BlockTokens: 8}
	parts, err := load.Model(dev, cfg, set, load.Options{Limits: lim, KVType: tensor.F32})
	if err != nil {
		t.Fatal(err)
	}
	m, err := direct.New(dev, parts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); parts.Close() })
	return m
}

// dump returns a golden of what m computes: every operator of every layer, or with ops false the
// residual stream after each layer alone.
func (r *rig) dump(t *testing.T, m *direct.Model, ops bool) *Golden {
	t.Helper()
	var logits []float32
	seen := newCapture(0, len(r.ids))
	seq := &drive.Sequence{Prompt: r.ids, All: true, See: func(_ int, row []float32) { logits = append(logits, row...) }}
	if err := errors.Join(drive.Run(m, []*drive.Sequence{seq}, drive.Options{Probe: seen}), seen.finish(m.Parts.Config)); err != nil {
		t.Fatal(err)
	}
	g := &Golden{Name: "dump", vectors: map[string]Vector{"p.logits": {F32: logits}}}
	g.Prompts = []Prompt{{Name: "p", IDs: r.ids}}
	hidden := make([]float32, 0)
	for k, v := range seen.f32 {
		switch {
		case k.layer < 0:
			g.vectors["p."+k.op] = Vector{F32: v}
		case !ops:
		case strings.HasPrefix(k.op, "router_"):
			g.vectors[fmt.Sprintf("p.router.%d.%s", k.layer, strings.TrimPrefix(k.op, "router_"))] = Vector{F32: v}
		default:
			g.vectors[fmt.Sprintf("p.ops.%d.%s", k.layer, k.op)] = Vector{F32: v}
		}
	}
	for i := range m.Parts.Config.Layers {
		hidden = append(hidden, seen.f32[key{i, "layer_out"}]...)
		if v := seen.i32[key{i, "router_ids"}]; v != nil && ops {
			g.vectors[fmt.Sprintf("p.router.%d.ids", i)] = Vector{I32: v}
		}
	}
	g.vectors["p.hidden"] = Vector{F32: hidden}
	return g
}

// changed returns the set with tensors replaced: f gives other values, or nil to leave them.
func (r *rig) changed(t *testing.T, f func(name string, w []float32, shape []int) []float32) *weights.Set {
	t.Helper()
	read := Weights(r.set)
	var list []weights.Named
	for name, tensor := range r.set.All() {
		w, err := read(name)
		if err != nil {
			t.Fatal(err)
		}
		if w = f(name, slices.Clone(w), tensor.Shape); w != nil {
			tensor.Data = bf16(w)
		}
		list = append(list, weights.Named{Name: name, Tensor: tensor})
	}
	return weights.Of(list, func() error { return nil }, nil)
}

// bf16 are values that bfloat16 has, as bytes.
func bf16(w []float32) []byte {
	out := make([]byte, 2*len(w))
	for i, v := range w {
		binary.LittleEndian.PutUint16(out[2*i:], tensor.F32ToBF16(v))
	}
	return out
}

// noResidual drops what was in the residual stream whenever a delta is added.
type noResidual struct{ refdevice.Device }

func (d noResidual) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d noResidual) Add(s device.Stream, x, delta device.Mat) { d.CopyRows(s, x, delta) }

// rowZero looks every token up in row 0.
type rowZero struct{ refdevice.Device }

func (d rowZero) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d rowZero) GatherRows(s device.Stream, out, table, ids device.Mat) {
	zeros, _ := d.Alloc(ids.Bytes()) // never an error
	d.Device.GatherRows(s, out, table, device.NewMat(zeros, tensor.I32, ids.Rows, ids.Cols))
}

// swappedRope rotates the other pairs.
type swappedRope struct{ refdevice.Device }

func (d swappedRope) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d swappedRope) Rope(s device.Stream, x, positions, table device.Mat, p device.Rope) {
	p.Interleaved = !p.Interleaved
	d.Device.Rope(s, x, positions, table, p)
}

// noGate leaves the shared experts' output as it is.
type noGate struct{ refdevice.Device }

func (d noGate) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (noGate) GateRows(device.Stream, device.Mat, device.Mat, device.Mat) {}

// noSinks leaves the sinks out of attention.
type noSinks struct{ refdevice.Device }

func (d noSinks) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d noSinks) GQA(s device.Stream, out, q device.Mat, cache device.KV, _ device.Mat, spans device.Spans, p device.GQA) {
	d.Device.GQA(s, out, q, cache, device.Mat{}, spans, p)
}

// noShift adds nothing to up in experts.
type noShift struct{ refdevice.Device }

func (d noShift) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d noShift) Experts(s device.Stream, y, x device.Mat, bank []device.Expert, work []device.ExpertRows, topK int) {
	own := make([]device.Expert, len(bank))
	for i, e := range bank {
		e.Act.Shift = 0
		own[i] = e
	}
	d.Device.Experts(s, y, x, own, work, topK)
}

// noOutputGate leaves attention's output as it is.
type noOutputGate struct{ refdevice.Device }

func (d noOutputGate) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (noOutputGate) Gate(device.Stream, device.Mat, device.Mat) {}

// noDeltaGate norms the output of DeltaNet and does not gate it.
type noDeltaGate struct{ refdevice.Device }

func (d noDeltaGate) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d noDeltaGate) GatedNorm(s device.Stream, out, _, w device.Mat, eps float32, p device.DeltaNet) {
	d.HeadNorm(s, out, p.ValueHeads, w, eps)
}

// flatColumns takes the convolution's columns in the other order.
type flatColumns struct{ refdevice.Device }

func (d flatColumns) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d flatColumns) Conv(s device.Stream, out, x, w device.Mat, tail device.KV, spans device.Spans, p device.DeltaNet) {
	p.ByKeyHead = !p.ByKeyHead
	d.Device.Conv(s, out, x, w, tail, spans, p)
}

// headNorms norms what is normed in place, queries and keys, by heads of 32.
type headNorms struct{ refdevice.Device }

func (d headNorms) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d headNorms) RMSNorm(s device.Stream, out, x, w device.Mat, eps float32) {
	if out != x {
		d.Device.RMSNorm(s, out, x, w, eps)
		return
	}
	for at := 0; at < x.Cols; at += 32 {
		head := x.ColRange(at, at+32)
		d.Device.RMSNorm(s, head, head, w.ColRange(at, at+32), eps)
	}
}

// noResidualOf drops the residual stream where the skip-th delta is added, once.
type noResidualOf struct {
	refdevice.Device
	skip int
}

func (d *noResidualOf) Run(s device.Stream, l device.List) { device.RunEach(d, s, l) }

func (d *noResidualOf) Add(s device.Stream, x, delta device.Mat) {
	if d.skip--; d.skip == -1 {
		d.CopyRows(s, x, delta)
		return
	}
	d.Device.Add(s, x, delta)
}
