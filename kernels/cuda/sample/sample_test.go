package sample

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

const f32, i32 = tensor.F32, tensor.I32

// at makes a matrix without memory: the tests inspect launches and do not run them.
func at(dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: 0x100, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

// changesOf makes changes for n rows of a vocabulary in a step of that many tokens.
func changesOf(n, tokens, vocab int) *Changes {
	return &Changes{Rows: 0x100, Table: at(i32, n, 2), IDs: at(i32, tokens, 1), Wanted: at(i32, n, 1),
		Store: at(i32, 4, device.ChangeWords+64), Masks: at(i32, n, device.MaskStride(vocab)), Limit: time.Second}
}

func TestLaunches(t *testing.T) {
	for _, tt := range []struct {
		name   string
		add    func(l *launch.List)
		kernel launch.Kernel // the last of
		grid   launch.Dim
		shared uint32
		args   int
		n      int // launches
	}{
		{"argmax", func(l *launch.List) { Argmax(l, at(i32, 3, 1), at(f32, 3, 102400), 0x100) }, kArgmax, launch.Dim{X: 3}, 0, 4, 2},
		{"sample", func(l *launch.List) {
			Sample(l, at(i32, 3, 1), at(f32, 3, 102401), 0x100, launch.Mat{}, launch.Mat{}, 0x100)
		}, kDraw, launch.Dim{X: 101, Y: 3}, desk + 8*801, 8, 3},
		{"sample many", func(l *launch.List) {
			Sample(l, at(i32, 65, 1), at(f32, 65, 102400), 0x100, launch.Mat{}, launch.Mat{}, 0x100)
		}, kDraw, launch.Dim{X: 8, Y: 65}, desk + 8*800, 8, 3},
		{"logprobs", func(l *launch.List) {
			Sample(l, at(i32, 3, 1), at(f32, 3, 100), 0x100, at(f32, 3, 1), at(f32, 3, 100), 0x100)
		}, kLogprob, launch.Dim{X: 3}, 0, 7, 4},
		{"changes", func(l *launch.List) { Change(l, at(f32, 3, 8193), changesOf(3, 5, 8193)) }, kChange, launch.Dim{X: 2, Y: 3}, 0, 11, 1},
	} {
		var l launch.List
		tt.add(&l)
		if len(l.Ops) != tt.n {
			t.Fatalf("%s: %d launches", tt.name, len(l.Ops))
		}
		if o := l.Ops[0]; tt.n > 1 && (o.Kernel != kFindBest || o.Config.Grid.Y != 3 && tt.grid.Y != o.Config.Grid.Y || o.Count != 7 || !o.Config.PDL) {
			t.Errorf("%s: %v, %d arguments, %+v", tt.name, o.Kernel, o.Count, o.Config)
		}
		o := l.Ops[tt.n-1]
		if o.Kernel != tt.kernel || o.Config.Grid != tt.grid || o.Config.Shared != tt.shared || o.Count != tt.args || !o.Config.PDL {
			t.Errorf("%s: %v, %d arguments, %+v", tt.name, o.Kernel, o.Count, o.Config)
		}
	}
	if room(1) != notes+16 || Scratch(2, 102400) != 2*(notes+6400) || notes%16 != 0 {
		t.Errorf("room for 102400 tokens: %d", room(102400))
	}
}

// TestSharers: the number of blocks per row is within the kernels' memory.
func TestSharers(t *testing.T) {
	for _, tt := range []struct{ n, vocab, want int }{
		{1, 1, 1}, {1, 1024, 1}, {1, 1025, 2}, {1, 102400, 100}, {8, 102400, 50}, {32, 102400, 15}, {64, 102400, 8}, {600, 102400, 1}, {1, maxVocab, mostBlocks},
	} {
		if got := sharers(tt.n, tt.vocab); got != tt.want {
			t.Errorf("%d rows of %d: %d blocks, want %d", tt.n, tt.vocab, got, tt.want)
		}
	}
}

func TestPut(t *testing.T) {
	var b [RowBytes]byte
	r := Row{Temperature: 0.5, TopP: 0.25, MinP: 0.125, TopK: 7, Seed: 1 << 40, N: 3, Logprob: true}
	r.Put(b[:])
	le := binary.LittleEndian
	for i, want := range []float64{0.5, 0.25, 0.125} {
		if got := math.Float64frombits(le.Uint64(b[8*i:])); got != want {
			t.Errorf("number %d is %v", i, got)
		}
	}
	if le.Uint64(b[24:]) != 1<<40 || le.Uint64(b[32:]) != 3 || le.Uint32(b[40:]) != 7 || le.Uint32(b[44:]) != 1 {
		t.Errorf("% x", b)
	}
	r.Temperature = 9e-6
	r.Put(b[:])
	if le.Uint64(b[:]) != 0 {
		t.Error("a tiny temperature is not greedy")
	}
}

func TestRefusals(t *testing.T) {
	x, out := at(f32, 3, 100), at(i32, 3, 1)
	for name, f := range map[string]func(l *launch.List){
		"out":           func(l *launch.List) { Argmax(l, at(f32, 3, 1), x, 0x100) },
		"rows":          func(l *launch.List) { Argmax(l, at(i32, 2, 1), x, 0x100) },
		"bf16":          func(l *launch.List) { Argmax(l, out, at(tensor.BF16, 3, 100), 0x100) },
		"vocabulary":    func(l *launch.List) { Argmax(l, out, at(f32, 3, maxVocab+1), 0x100) },
		"scratch":       func(l *launch.List) { Sample(l, out, x, 0x100, launch.Mat{}, launch.Mat{}, 0) },
		"raw":           func(l *launch.List) { Sample(l, out, x, 0x100, at(f32, 3, 1), at(f32, 3, 99), 0x100) },
		"changes' rows": func(l *launch.List) { Change(l, x, changesOf(2, 5, 100)) },
		"masks":         func(l *launch.List) { Change(l, x, changesOf(3, 5, 200)) },
		"nowhere":       func(l *launch.List) { Change(l, x, &Changes{Table: at(i32, 3, 2), Wanted: out, IDs: at(i32, 5, 1)}) },
		"small store":   func(l *launch.List) { c := changesOf(3, 5, 100); c.Store.Cols = 12; Change(l, x, c) },
	} {
		func() {
			defer func() {
				err, _ := recover().(error)
				if shape := new(device.ShapeError); !errors.As(err, &shape) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			f(new(launch.List))
		}()
	}
}
