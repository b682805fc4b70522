package gemv

import (
	"errors"
	"fmt"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/route"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var h100 = launch.GPU{SMs: 132, Hopper: true, SharedMax: 232448}

func mat(dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: 4096, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

func tiles(bits, group, rows, cols int, joined bool) launch.Weight {
	if group == 0 {
		group = max(128, cols)
	}
	f := tensor.Layout{Format: tensor.EncodingOf(fmt.Sprintf("int%d", bits)).By(group), Rows: rows, Cols: cols, For: tensor.GPU, Joined: joined}
	return launch.Weight{A: launch.Tiles{Layout: f, Values: 4096, Scales: 8192}}
}

// The kernels, grids and warps of the sizes of DeepSeek-V2-Lite.
func TestChoices(t *testing.T) {
	x := func(m, k int) launch.Mat { return mat(tensor.BF16, m, k) }
	out := func(m, n int) launch.Mat { return mat(tensor.F32, m, n) }
	for _, c := range []struct {
		name       string
		m, n, k    int
		w          launch.Weight
		kernel     string
		grid, warp uint32
		shared     uint32
	}{
		{"q and kv_a", 1, 3648, 2048, tiles(8, 0, 3648, 2048, false), "kr_gemv_int8_g128", 228, 8, 4096 + 8*528},
		{"o", 4, 2048, 2048, tiles(8, 64, 2048, 2048, false), "kr_gemv_int8_g64", 128, 8, 4096 + 8*4*528},
		{"o of 5 rows", 5, 2048, 2048, tiles(8, 64, 2048, 2048, false), "kr_gemv_wide1_int8_g64", 64, 8, 32768},
		{"o of 64 rows", 64, 2048, 2048, tiles(4, 32, 2048, 2048, false), "kr_gemv_wide2_int4_g32", 256, 8, 65536},
		{"qkv of 32 rows", 32, 5120, 2048, tiles(8, 128, 5120, 2048, false), "kr_gemv_wide4x3_int8_g128", 107, 8, 131072},
		{"o of 32 rows", 32, 2048, 4096, tiles(8, 128, 2048, 4096, false), "kr_gemv_wide4x1_int8_g128", 128, 8, 131072},
		{"head", 1, 102400, 2048, launch.Weight{F: mat(tensor.BF16, 102400, 2048)}, "kr_gemv_bf16", 6400, 1, 512},
		{"head of 32 rows", 32, 102400, 2048, tiles(8, 0, 102400, 2048, false), "kr_gemv_wide4_int8_g128", 800, 4, 16384},
		{"dense down", 1, 2048, 10944, tiles(4, 128, 2048, 10944, false), "kr_gemv_int4_g128", 128, 8, 4096},
		{"last rows", 1, 17, 64, tiles(8, 32, 17, 64, false), "kr_gemv_int8_g32", 2, 1, 512 + 528},
	} {
		var l launch.List
		MatMul(&l, h100, out(c.m, c.n), x(c.m, c.k), c.w, Options{})
		o := &l.Ops[0]
		if len(l.Ops) != 1 || o.Kernel.String() != c.kernel || o.Config.Grid.X != c.grid || o.Config.Block.X != 32*c.warp ||
			o.Config.Shared != c.shared || !o.Config.PDL {
			t.Errorf("%s: %v %+v; want %s, %d blocks, %d warps, %d bytes", c.name, o.Kernel, o.Config, c.kernel, c.grid, c.warp, c.shared)
		}
	}
}

// mixture is V2-Lite's, with shared weights of the given bits.
func mixture(m, sharedBits int) *Mixture {
	v := &Mixture{X: mat(tensor.BF16, m, 2048), IDs: mat(tensor.I32, m, 6), Weights: mat(tensor.F32, m, 6)}
	v.Bank = launch.Bank{Experts: 64, W13: tiles(4, 128, 2816, 2048, true), W2: tiles(4, 128, 2048, 1408, false),
		Step: 2816 * 1024, Step2: 2048 * 704, ScaleStep: 2816 * 32, ScaleStep2: 2048 * 22}
	v.Shared = Network{tiles(sharedBits, 128, 5632, 2048, true), tiles(sharedBits, 128, 2048, 2816, false)}
	v.Aligned = route.NewAligned(4096, m, 6, 64, Tile(h100, v))
	return v
}

// qwen3 is Qwen3-30B-A3B's mixture, with experts of the given bits and groups.
func qwen3(m, bits, group int) *Mixture { return routed(m, bits, group, 128, 2048, 768) }

// glm53 is GLM-5.3-Flash's mixture without its shared network.
func glm53(m int) *Mixture {
	v := routed(m, 4, 128, 288, 4096, 2048)
	v.Bank.Limit = 10
	return v
}

// routed is a mixture of 8 of the experts without a shared network.
func routed(m, bits, group, experts, hidden, width int) *Mixture {
	v := &Mixture{X: mat(tensor.BF16, m, hidden), IDs: mat(tensor.I32, m, 8), Weights: mat(tensor.F32, m, 8)}
	v.Bank = launch.Bank{Experts: experts, W13: tiles(bits, group, 2*width, hidden, true), W2: tiles(bits, group, hidden, width, false)}
	w13, w2 := &v.Bank.W13.A, &v.Bank.W2.A
	v.Bank.Step, v.Bank.Step2 = int64(w13.ValueBytes()), int64(w2.ValueBytes())
	v.Bank.ScaleStep, v.Bank.ScaleStep2 = int64(w13.ScaleBytes()), int64(w2.ScaleBytes())
	v.Aligned = route.NewAligned(4096, m, 8, experts, Tile(h100, v))
	return v
}

// qwen35 is Qwen3.5-35B-A3B's mixture, with a gate for the shared network of INT8.
func qwen35(m int) *Mixture {
	v := &Mixture{X: mat(tensor.BF16, m, 2048), IDs: mat(tensor.I32, m, 8), Weights: mat(tensor.F32, m, 8), Gate: mat(tensor.BF16, 1, 2048)}
	v.Bank = launch.Bank{Experts: 256, W13: tiles(4, 128, 1024, 2048, true), W2: tiles(4, 128, 2048, 512, false),
		Step: 1024 * 1024, Step2: 2048 * 256, ScaleStep: 1024 * 32, ScaleStep2: 2048 * 8}
	v.Shared = Network{tiles(8, 128, 1024, 2048, true), tiles(8, 128, 2048, 512, false)}
	v.Aligned = route.NewAligned(4096, m, 8, 256, Tile(h100, v))
	return v
}

func TestMixtures(t *testing.T) {
	bf16 := mixture(2, 4)
	bf16.Shared = Network{launch.Weight{F: mat(tensor.BF16, 5632, 2048)}, launch.Weight{F: mat(tensor.BF16, 2048, 2816)}}
	none := mixture(1, 4)
	none.Shared = Network{}
	type op struct {
		name string
		x, y uint32
		warp uint32
	}
	for _, c := range []struct {
		name string
		m    *Mixture
		want []op
	}{
		{"one row", mixture(1, 4), []op{{"kr_gemv_gate_up_int4_g128", 44, 8, 8}, {"kr_gemv_down_all_int4_g128", 128, 1, 16}}},
		{"INT8 beside INT4", mixture(1, 8), []op{{"kr_gemv_gate_up_int4_g128_int8_g128", 44, 4 + 6, 8}, {"kr_gemv_down_all_int4_g128_int8_g128", 128, 1, 16}}},
		{"none shared", none, []op{{"kr_gemv_gate_up_int4_g128", 44, 6, 8}, {"kr_gemv_down_all_int4_g128", 128, 1, 12}}},
		{"BF16 beside INT4", bf16, []op{{"kr_gemv_gate_up_bf16", 352, 1, 8}, {"kr_gemv_hidden_bf16", 128, 1, 8},
			{"kr_gemv_gate_up_int4_g128", 44, 12, 8}, {"kr_gemv_down_all_int4_g128", 128, 2, 6}}},
		{"8 rows", mixture(8, 8), []op{{"kr_gemv_gate_up_int4_g128_int8_g128", 44, 4 + 48, 8},
			{"kr_gemv_down_int4_g128_int8_g128", 32, 2 + 48, 8}, {"kr_gemv_combine", 8, 8, 8}}},
		{"32 rows", mixture(32, 8), []op{{"kr_gemv_gate_up_int4_g128_int8_g128", 44, 16 + 80, 8},
			{"kr_gemv_down_int4_g128_int8_g128", 32, 8 + 80, 8}, {"kr_gemv_combine", 8, 32, 8}}},
		// One row of small experts has one warp for each of 4 and 2 parts; more rows have one for
		// two parts.
		{"one row of small experts", qwen3(1, 4, 128), []op{{"kr_gemv_gate_up_int4_g128", 48, 8, 8}, {"kr_gemv_down_all_int4_g128", 128, 1, 16}}},
		{"2 rows of small experts", qwen3(2, 4, 128), []op{{"kr_gemv_gate_up_int4_g128", 48, 16, 8}, {"kr_gemv_down_all_int4_g128", 128, 2, 8}}},
		{"8 rows of small experts", qwen3(8, 4, 128), []op{{"kr_gemv_ring_int4_g128_h", 132, 0, 20}, {"kr_gemv_combine", 8, 8, 8}}},
		{"32 rows of small experts", qwen3(32, 4, 128), []op{{"kr_gemv_ring_int4_g128_h", 132, 0, 20}, {"kr_gemv_combine", 8, 32, 8}}},
		{"32 rows of large clamped experts", glm53(32), []op{{"kr_gemv_ring_cut_int4_g128_h", 132, 0, 20}, {"kr_gemv_combine", 16, 32, 8}}},
		// A gated network beside them has its own parts, in the same launches for few rows.
		{"one row behind a gate", qwen35(1), []op{{"kr_gemv_gate_up_int4_g128_int8_g128", 32, 2 + 8, 8}, {"kr_gemv_down_all_int4_g128_int8_g128", 128, 1, 12}}},
		{"8 rows behind a gate", qwen35(8), []op{{"kr_gemv_wide1_gate_up_int8_g128", 32, 1, 8}, {"kr_gemv_wide1_int8_g128", 64, 1, 4}, {"kr_gemv_ring_int4_g128_h", 132, 0, 20}, {"kr_gemv_combine", 8, 8, 8}}},
		{"INT3", qwen3(1, 3, 128), []op{{"kr_gemv_gate_up_int3_g128", 48, 8, 8}, {"kr_gemv_down_all_int3_g128", 128, 1, 16}}},
		{"INT3 in groups of 64", qwen3(4, 3, 64), []op{{"kr_gemv_gate_up_int3_g64", 24, 32, 8}, {"kr_gemv_down_int3_g64", 16, 32, 8}, {"kr_gemv_combine", 8, 4, 8}}},
		{"8 rows of INT3", qwen3(8, 3, 64), []op{{"kr_gemv_ring_int3_g64_h", 132, 0, 20}, {"kr_gemv_combine", 8, 8, 8}}},
		{"32 rows of INT3", qwen3(32, 3, 128), []op{{"kr_gemv_ring_int3_g128_h", 132, 0, 20}, {"kr_gemv_combine", 8, 32, 8}}},
	} {
		var l launch.List
		MoE(&l, h100, mat(tensor.F32, c.m.X.Rows, c.m.X.Cols), 4096, c.m, Options{Add: true})
		for i := range max(len(l.Ops), len(c.want)) {
			if i >= len(l.Ops) || i >= len(c.want) {
				t.Errorf("%s: %d launches, want %d", c.name, len(l.Ops), len(c.want))
				break
			}
			o := &l.Ops[i]
			if got := (op{o.Kernel.String(), o.Config.Grid.X, o.Config.Grid.Y, o.Config.Block.X / 32}); got != c.want[i] {
				t.Errorf("%s: launch %d: %v, want %v", c.name, i, got, c.want[i])
			}
		}
	}
}

func TestCan(t *testing.T) {
	x := mat(tensor.BF16, 8, 128)
	w := tiles(4, 128, 48, 128, false)
	if !Can(x, &w) {
		t.Fatal("refuses what it is for")
	}
	odd := mat(tensor.BF16, 8, 96)
	oddW := tiles(4, 32, 48, 96, false)
	wide, shifted, gaps, many := mat(tensor.F32, 8, 128), x, x, mat(tensor.BF16, MaxRows+1, 128)
	shifted.At += 2
	gaps.Stride = 132
	f32, rows, rowsShifted := launch.Weight{F: mat(tensor.F32, 48, 128)}, launch.Weight{F: mat(tensor.BF16, 48, 128)}, launch.Weight{F: mat(tensor.BF16, 48, 128)}
	rowsShifted.F.At += 8
	joined, int3 := tiles(4, 128, 48, 128, true), tiles(3, 64, 48, 128, false)
	if !Can(x, &rows) {
		t.Error("refuses BF16 rows")
	}
	for name, c := range map[string]struct {
		x launch.Mat
		w *launch.Weight
	}{
		"96 columns": {odd, &oddW}, "F32 activations": {wide, &w}, "an odd address": {shifted, &w}, "rows not aligned": {gaps, &w},
		"too many rows": {many, &w}, "F32 weights": {x, &f32}, "weights not aligned": {x, &rowsShifted}, "joined": {x, &joined}, "INT3": {x, &int3},
	} {
		if Can(c.x, c.w) {
			t.Errorf("takes %s", name)
		}
		func() {
			var l launch.List
			defer func() {
				err, _ := recover().(error)
				if shape := new(device.ShapeError); !errors.As(err, &shape) || len(l.Ops) != 0 {
					t.Errorf("%s: got %v and %d launches, want a shape error", name, err, len(l.Ops))
				}
			}()
			MatMul(&l, h100, mat(tensor.F32, c.x.Rows, 48), c.x, *c.w, Options{})
		}()
	}
	if CanFFN(x, tiles(4, 128, 96, 128, true), tiles(4, 128, 128, 48, false)) || !CanFFN(x, tiles(4, 128, 128, 128, true), tiles(8, 0, 128, 64, false)) {
		t.Error("networks: widths must be multiples of 64")
	}
	if CanFFN(x, tiles(4, 128, 128, 128, false), tiles(4, 128, 128, 64, false)) {
		t.Error("takes gate and up that are not joined")
	}
}

// Tiles fit into the shared memory of every GPU; too little memory is refused.
func TestPlansFit(t *testing.T) {
	for _, shared := range []int{0, 232448, 166912, 101376, 64 << 10, 48 << 10, 8 << 10} {
		gpu := launch.GPU{SMs: 28, SharedMax: shared}
		for _, m := range []*Mixture{mixture(1, 8), mixture(3, 4), mixture(8, 8), mixture(64, 4)} {
			tile := Tile(gpu, m)
			if CanMoE(gpu, m) != (tile > 0) || tile > TileRows || (shared == 0 || shared > 100<<10) && tile < 3 && m.X.Rows > 2 || shared == 8<<10 && tile > 0 {
				t.Errorf("%d bytes, %d rows: tiles of %d", shared, m.X.Rows, tile)
			}
			if tile == 0 {
				continue
			}
			m.Aligned = route.NewAligned(4096, m.X.Rows, 6, 64, tile)
			var l launch.List
			MoE(&l, gpu, mat(tensor.F32, m.X.Rows, 2048), 4096, m, Options{})
			for i := range l.Ops {
				if c := &l.Ops[i].Config; shared > 0 && int(c.Shared) > shared {
					t.Errorf("%d bytes, %d rows: %s wants %d", shared, m.X.Rows, l.Ops[i].Kernel, c.Shared)
				}
			}
		}
	}
}

// Scratch parts do not overlap, and the size covers all.
func TestScratch(t *testing.T) {
	for _, rows := range []int{1, 3, 4, 33} {
		s := scratchOf(0, rows, 6, 128, 64, 128)
		size := 2*rows*6*64 + 2*rows*128 + 4*rows*128
		if Grouped(rows) {
			size += 4 * rows * 6 * 128
		}
		if s.bytes < size || s.bytes != MoEScratch(rows, 6, 128, 64, 128) || s.shared-s.h < launch.Ptr(2*rows*6*64) || s.base-s.shared < launch.Ptr(2*rows*128) {
			t.Errorf("%d rows: %+v, want %d bytes", rows, s, size)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	var l launch.List
	out := mat(tensor.F32, 32, 2048)
	for _, m := range []*Mixture{mixture(32, 8), qwen3(32, 4, 128)} {
		n := testing.AllocsPerRun(10, func() {
			l.Reset()
			MoE(&l, h100, out, 4096, m, Options{})
		})
		if n != 0 {
			t.Errorf("%v allocations a call", n)
		}
	}
}
