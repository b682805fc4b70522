package elem

import (
	"errors"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// at makes a matrix without memory: the tests inspect launches and do not run them.
func at(p launch.Ptr, dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: p, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

// args is the number of arguments of each kernel.
var args = map[launch.Kernel]int{
	kGatherRows: 8, kAdd: 6, kWeightedSum: 11, kWeightedSumHere: 14, kRMSNorm: 8, kAddRMSNorm: 10,
	kGateRows: 8, kRope: 11, kStoreRows: 14, kLatentStore: 27, kMoveBlocks: 2, kStage: 6, kNearRows: 9,
}

const f32, bf16 = tensor.F32, tensor.BF16

// TestLaunches: the grid and the flags follow from shapes, types and alignment.
func TestLaunches(t *testing.T) {
	x, y := at(0x1000, f32, 3, 2048), at(0x9000, bf16, 3, 2048)
	w := at(0x100, bf16, 1, 2048)
	ids := at(0x100, tensor.I32, 3, 1)
	odd := y
	odd.At += 2
	table := at(0x200, f32, 50, 64)
	rope := device.Rope{Heads: 16, HeadDim: 192, Offset: 128, Dim: 64, Interleaved: true}
	key := device.Rope{Heads: 1, HeadDim: 64, Dim: 64, Interleaved: true}
	cache := launch.KV{Mat: at(0x300, tensor.F8E4M3, 100, 576)}
	i8 := launch.KV{Mat: at(0x300, tensor.I8, 100, 576), Scales: at(0x100, f32, 100, 9), Group: 64}
	q, kv, norm := at(0x100, bf16, 3, 16*192), at(0x100, bf16, 3, 576), at(0x100, bf16, 1, 512)
	tests := []struct {
		name    string
		add     func(l *launch.List)
		kernel  launch.Kernel
		x, y    uint32
		threads uint32
		flags   int
	}{
		{"gather", func(l *launch.List) { GatherRows(l, x, at(0x100, bf16, 9, 2048), ids) }, kGatherRows, 3, 1, 256, 1 | 4},
		{"gather odd", func(l *launch.List) { GatherRows(l, odd, x, ids) }, kGatherRows, 3, 8, 256, 2},
		{"add", func(l *launch.List) { Add(l, x, y) }, kAdd, 3, 1, 256, 1 | 4},
		{"add wide", func(l *launch.List) { Add(l, at(16, f32, 1, 8192), at(16, f32, 1, 8192)) }, kAdd, 1, 4, 256, 1},
		{"bias", func(l *launch.List) { AddBias(l, y, w) }, kAdd, 3, 1, 256, 1 | 2 | 4},
		{"sum", func(l *launch.List) {
			WeightedSum(l, x, at(16, bf16, 18, 2048), at(16, f32, 3, 6), launch.Mat{})
		}, kWeightedSum, 3, 1, 256, 1 | 4},
		{"sum of some", func(l *launch.List) {
			SumHere(l, x, at(16, bf16, 18, 2048), at(16, f32, 3, 6), launch.Mat{}, Here{at(16, tensor.I32, 3, 6), 0x100, 64})
		}, kWeightedSumHere, 3, 1, 256, 1 | 4},
		{"norm", func(l *launch.List) { RMSNorm(l, y, x, w, 1e-6) }, kRMSNorm, 3, 1, 256, 1 | 2 | 8},
		{"norm odd", func(l *launch.List) { RMSNorm(l, odd, x, w, 1e-6) }, kRMSNorm, 3, 1, 512, 2 | 8},
		{"norm 7168", func(l *launch.List) {
			RMSNorm(l, at(16, f32, 1, 7168), at(16, f32, 1, 7168), at(16, f32, 1, 7168), 1e-6)
		},
			kRMSNorm, 1, 1, 448, 1},
		{"gate", func(l *launch.List) { GateRows(l, y, x, w) }, kGateRows, 3, 1, 256, 1 | 2 | 8},
		{"add norm", func(l *launch.List) { AddRMSNorm(l, y, x, y, w, 1e-6) }, kAddRMSNorm, 3, 1, 256, 1 | 2 | 4 | 8},
		{"rope", func(l *launch.List) { Rope(l, q, ids, table, rope) }, kRope, 3, 1, 64, 1 | 2 | 64},
		{"store", func(l *launch.List) { StoreRows(l, cache, kv, ids) }, kStoreRows, 3, 1, 96, 1 | 2 | 256},
		{"store I8", func(l *launch.List) { StoreRows(l, i8, kv, ids) }, kStoreRows, 3, 1, 256, 1 | 2},
		{"latent", func(l *launch.List) { LatentStore(l, cache, q, kv, norm, 1e-6, ids, ids, table, rope, key) },
			kLatentStore, 3, 1, 64 + 96, 1 | 2 | 4 | 8 | 64 | 128 | 256},
	}
	for _, tt := range tests {
		var l launch.List
		tt.add(&l)
		if len(l.Ops) != 1 {
			t.Errorf("%s: %d launches", tt.name, len(l.Ops))
			continue
		}
		o := &l.Ops[0]
		a := l.OpArgs(o)
		if o.Kernel != tt.kernel || o.Config.Grid.X != tt.x || max(1, o.Config.Grid.Y) != tt.y || o.Config.Block.X != tt.threads || !o.Config.PDL {
			t.Errorf("%s: %v %+v", tt.name, o.Kernel, o.Config)
		}
		if len(a) != args[o.Kernel] || a[len(a)-1] != launch.I32(tt.flags) {
			t.Errorf("%s: %d arguments, flags %v, want %d", tt.name, len(a), a[len(a)-1], tt.flags)
		}
	}
}

// TestSingleRowIsLikeMany: whether rows are processed by chunks does not depend on their number.
func TestSingleRowIsLikeMany(t *testing.T) {
	m := launch.Mat{At: 0x100, DType: bf16, Rows: 4, Cols: 64, Stride: 68}
	if aligned(m) || aligned(m.RowRange(0, 1)) {
		t.Error("rows 68 apart are aligned")
	}
}

func TestNothingForNoRows(t *testing.T) {
	var l launch.List
	x, w := at(16, f32, 0, 8), at(16, f32, 1, 8)
	none := at(16, tensor.I32, 0, 1)
	RMSNorm(&l, x, x, w, 0)
	AddRMSNorm(&l, x, x, x, w, 0)
	Add(&l, x, x)
	GatherRows(&l, x, at(16, f32, 4, 8), none)
	StoreRows(&l, launch.KV{Mat: at(16, f32, 4, 8)}, x, none)
	Rope(&l, x, none, at(16, f32, 4, 8), device.Rope{Heads: 1, HeadDim: 8, Dim: 8})
	if len(l.Ops) != 0 {
		t.Errorf("%d launches", len(l.Ops))
	}
}

func TestRefusals(t *testing.T) {
	x, w, ids := at(16, f32, 3, 64), at(16, f32, 1, 64), at(16, tensor.I32, 3, 1)
	table := at(16, f32, 9, 64)
	gaps := ids
	gaps.Stride = 2
	for name, f := range map[string]func(l *launch.List){
		"widths":        func(l *launch.List) { RMSNorm(l, x, x, at(16, f32, 1, 32), 0) },
		"rows":          func(l *launch.List) { Add(l, x, at(16, f32, 2, 64)) },
		"residual BF16": func(l *launch.List) { AddRMSNorm(l, x, at(16, bf16, 3, 64), x, w, 0) },
		"absent":        func(l *launch.List) { Add(l, x, launch.Mat{}) },
		"ids with gaps": func(l *launch.List) { GatherRows(l, x, x, gaps) },
		"ids as floats": func(l *launch.List) { GatherRows(l, x, x, at(16, f32, 3, 1)) },
		"odd rotation":  func(l *launch.List) { Rope(l, x, ids, table, device.Rope{Heads: 1, HeadDim: 64, Dim: 63}) },
		"wide heads":    func(l *launch.List) { Rope(l, x, ids, table, device.Rope{Heads: 2, HeadDim: 64, Dim: 64}) },
		"cache width":   func(l *launch.List) { StoreRows(l, launch.KV{Mat: at(16, f32, 9, 63)}, x, ids) },
		"cache type":    func(l *launch.List) { StoreRows(l, launch.KV{Mat: at(16, tensor.F16, 9, 64)}, x, ids) },
		"cache scales":  func(l *launch.List) { StoreRows(l, launch.KV{Mat: at(16, tensor.I8, 9, 64), Group: 32}, x, ids) },
		"cache group":   func(l *launch.List) { StoreRows(l, launch.KV{Mat: at(16, tensor.I8, 9, 64), Group: 48}, x, ids) },
		"weights":       func(l *launch.List) { WeightedSum(l, x, at(16, f32, 7, 64), at(16, f32, 3, 2), launch.Mat{}) },
	} {
		func() {
			defer func() {
				err, _ := recover().(error)
				if shape := new(device.ShapeError); !errors.As(err, &shape) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			var l launch.List
			f(&l)
		}()
	}
}
