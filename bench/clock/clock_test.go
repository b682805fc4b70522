package clock_test

import (
	"os"
	"path/filepath"
	"testing"

	"krater/bench/clock"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/direct"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/weights"
)

const goldens = "../../testdata/goldens"

// counted decodes one token behind 20 of a golden model with the clock on.
func counted(t *testing.T, name string, p load.Precision) (*model.Config, map[string]clock.Spent) {
	t.Helper()
	dir := filepath.Join(goldens, name)
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	timed := clock.New(dev, cfg.Vocab)
	parts, err := load.Model(timed, cfg, set, load.Options{Limits: stages.Limits{Tokens: 8, Seqs: 1, Blocks: 4, BlockTokens: 16}, Precision: p})
	if err != nil {
		t.Fatal(err)
	}
	defer parts.Close()
	m, err := direct.New(timed, parts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	batch := &stages.Step{Tokens: []int32{3}, Spans: []stages.Span{{Decode: true, Want: true, Span: device.Span{Len: 1, Pos: 20, Blocks: []int32{0, 1, 2, 3}}}}}
	if err := m.Step(batch, nil, nil); err != nil { // not counted
		t.Fatal(err)
	}
	timed.On = true
	if err := m.Step(batch, nil, nil); err != nil {
		t.Fatal(err)
	}
	sum := map[string]clock.Spent{}
	for _, s := range timed.Spent() {
		x := sum[s.Stage]
		sum[s.Stage] = clock.Spent{Calls: x.Calls + s.Calls, Time: x.Time + s.Time, Bytes: x.Bytes + s.Bytes}
		if s.Calls < 1 || s.Time <= 0 {
			t.Errorf("%+v", s)
		}
	}
	timed.Reset()
	if left := timed.Spent(); len(left) != 0 {
		t.Errorf("after a reset: %+v", left)
	}
	return cfg, sum
}

// TestBytes: what a decode step of a mixture reads, by stage, from the sizes in
// its config.
func TestBytes(t *testing.T) {
	for _, name := range []string{"deepseek_v2_lite", "deepseek_v2", "qwen2"} {
		cfg, got := counted(t, name, load.Precision{})
		size, moe := int64(tensor.BF16.Size()), 0
		if cfg.DType == tensor.F32 {
			size = 4
		}
		for i := range cfg.Layers {
			if cfg.MoELayer(i) {
				moe++
			}
		}
		h := int64(cfg.Hidden)
		expert := 3 * h * int64(cfg.MoE.FF) * size
		cache := 21 * cfg.KVBlockBytes(1, tensor.BF16)
		want := map[string]int64{
			clock.Experts: int64(moe) * int64(cfg.MoE.Router.TopK) * expert,
			clock.Shared:  int64(moe) * 3 * h * int64(cfg.MoE.SharedFF) * size,
			clock.Router:  int64(moe) * int64(cfg.MoE.Experts) * h * size,
			clock.Dense:   int64(len(cfg.Layers)-moe) * 3 * h * int64(cfg.DenseFF()) * size,
			clock.Head:    int64(cfg.Vocab) * h * size,
		}
		attention := cfg.BytesPerToken()/2*size + cache
		for _, stage := range []string{clock.Experts, clock.Shared, clock.Router, clock.Dense, clock.Head} {
			attention -= want[stage]
			if got[stage].Bytes != want[stage] {
				t.Errorf("%s, %s: %d bytes, want %d", name, stage, got[stage].Bytes, want[stage])
			}
		}
		biases := int64(0)
		if name == "qwen2" {
			a := cfg.Layers[0].Mixer.(model.GQA)
			biases = 4 * int64(len(cfg.Layers)*(a.QDim()+2*a.KDim())) // in F32, whatever the file holds
		}
		if got[clock.Attention].Bytes != attention+biases {
			t.Errorf("%s, attention: %d bytes, want %d", name, got[clock.Attention].Bytes, attention+biases)
		}
		if name != "qwen2" && (got[clock.Router].Calls != 2*moe || got[clock.Merge].Calls != moe) {
			t.Errorf("%s: router %+v, merge %+v", name, got[clock.Router], got[clock.Merge])
		}
	}
}

// TestIntegers: with integer weights (but for the experts, which a cache gives, and kv_b) everything is still counted, once.
func TestIntegers(t *testing.T) {
	cfg, whole := counted(t, "deepseek_v2_lite", load.Precision{})
	_, got := counted(t, "deepseek_v2_lite", load.Precision{Attention: tensor.INT8.By(32), Shared: tensor.INT8.By(32), Dense: tensor.INT8.By(32), Head: tensor.INT8.By(32)})
	for _, stage := range []string{clock.Shared, clock.Dense, clock.Head, clock.Attention} {
		if b := got[stage].Bytes; b == 0 || b >= whole[stage].Bytes {
			t.Errorf("%s: %d bytes, %d as the file holds it", stage, b, whole[stage].Bytes)
		}
	}
	if got[clock.Router].Bytes != whole[clock.Router].Bytes || got[clock.Quantize].Calls < len(cfg.Layers) {
		t.Errorf("router %+v, quantise %+v", got[clock.Router], got[clock.Quantize])
	}
}

// accelerated is a device with what an accelerator has; none of it is called.
type accelerated struct{ load.Device }

func (accelerated) Accelerator() device.Accelerator { return facilities{} }
func (accelerated) Fused(device.List) int           { return 7 }

type facilities struct{ device.Accelerator }

// TestWrapperLosesNothing: a wrapped accelerator is one, and fuses the operators that it fuses
// without the wrapper.
func TestWrapperLosesNothing(t *testing.T) {
	d := load.Device(clock.New(accelerated{}, 10))
	if d.Accelerator() != (facilities{}) || d.Fused(device.List{}) != 7 || device.LayoutOf(d) != (facilities{}) {
		t.Errorf("accelerator %v, %d operators in one", d.Accelerator(), d.Fused(device.List{}))
	}
}
