package route

import (
	"errors"
	"testing"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

const f32, bf16, i32 = tensor.F32, tensor.BF16, tensor.I32

// at makes a matrix without memory: the tests inspect launches and do not run them.
func at(dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: 0x100, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

// args is the number of arguments of each kernel.
var args = map[launch.Kernel]int{
	kLogitsFew[0]: 31, kLogitsFew[1]: 31, kLogits64[0]: 11, kLogits64[1]: 11, kLogits128[0]: 11, kLogits128[1]: 11, kLogitsJoin: 6,
	kLogits1: 10, kLogits4: 10, kLogits4x2: 10, kLogits8[0]: 10, kLogits8[1]: 10, kTopK: 19, kAlignCount: 5, kAlign: 11,
}

type want struct {
	kernel     launch.Kernel
	x, y       uint32
	threads    uint32
	sharedMost uint32
}

func expect(t *testing.T, name string, build func(l *launch.List), wants ...want) {
	t.Helper()
	var l launch.List
	build(&l)
	if len(l.Ops) != len(wants) {
		t.Errorf("%s: %d launches, want %d", name, len(l.Ops), len(wants))
		return
	}
	for i, w := range wants {
		o := &l.Ops[i]
		c := o.Config
		if o.Kernel != w.kernel || c.Grid.X != w.x || c.Grid.Y != w.y || c.Block.X != w.threads || c.Shared > w.sharedMost || !c.PDL {
			t.Errorf("%s: %v %+v, want %v %+v", name, o.Kernel, c, w.kernel, w)
		}
		if o.Count != args[o.Kernel] {
			t.Errorf("%s: %v has %d arguments, want %d", name, o.Kernel, o.Count, args[o.Kernel])
		}
	}
}

func TestLaunches(t *testing.T) {
	p := device.Router{Experts: 64, TopK: 6, Scale: 1}
	logits := func(tokens, cols int, dt tensor.DType) func(l *launch.List) {
		return func(l *launch.List) { Logits(l, at(f32, tokens, 64), at(dt, tokens, cols), at(f32, 64, cols), 0x100) }
	}
	join := func(x uint32) want { return want{kLogitsJoin, x, 0, 256, 0} }
	expect(t, "one token", logits(1, 2048, bf16), want{kLogitsFew[0], 16, 1, 256, 0}, join(1))
	expect(t, "one token of F32", logits(1, 2048, f32), want{kLogits1, 16, 0, 128, 0})
	expect(t, "two tokens", logits(2, 2048, f32), want{kLogits1, 32, 0, 128, 0})
	expect(t, "an odd width", logits(300, 2047, bf16), want{kLogits1, 4800, 0, 128, 0})
	expect(t, "some tokens", logits(9, 2048, bf16), want{kLogitsFew[0], 16, 2, 256, 0}, join(3))
	expect(t, "some tokens of F32", logits(9, 2048, f32), want{kLogits4, 48, 0, 128, 0})
	expect(t, "a slice", logits(9, 512, bf16), want{kLogitsFew[0], 4, 2, 256, 0})
	expect(t, "more tokens of F32", logits(33, 2048, f32), want{kLogits4x2, 72, 0, 128, 0})
	expect(t, "many tokens", logits(2048, 2048, bf16), want{kLogits64[0], 4, 32, 256, 96 << 10}, join(512))
	expect(t, "most tokens", logits(8192, 2048, bf16), want{kLogits128[0], 4, 64, 512, 96 << 10}, join(2048))
	expect(t, "many tokens of F32", logits(129, 2048, f32), want{kLogits8[0], 2, 9, 256, 96 << 10})
	expect(t, "no tokens", logits(0, 2048, bf16))
	expect(t, "top k", func(l *launch.List) { TopK(l, at(i32, 9, 6), at(f32, 9, 6), at(f32, 9, 64), launch.Mat{}, p, 0) },
		want{kTopK, 3, 0, 128, 0})
	route := func(tokens int, turn launch.Ptr) func(l *launch.List) {
		return func(l *launch.List) {
			Route(l, at(i32, tokens, 6), at(f32, tokens, 6), at(f32, tokens, 64), at(bf16, tokens, 2048), launch.Weight{F: at(f32, 64, 2048)}, at(f32, 1, 64), p, 0x10, turn, 0x100)
		}
	}
	expect(t, "route one", route(1, 0x100), want{kLogitsFew[0], 16, 1, 256, 0})
	expect(t, "route some", route(MaxFused, 0x100), want{kLogitsFew[0], 16, MaxFused / 8, 256, 0})
	expect(t, "route many", route(MaxFused+1, 0x100), want{kLogits64[0], 4, 3, 256, 96 << 10}, want{kTopK, 33, 0, 128, 0})
	expect(t, "route without a turn", route(1, 0), want{kLogitsFew[0], 16, 1, 256, 0}, want{kTopK, 1, 0, 128, 0})
	sorted := func(a Aligned, ids launch.Mat) func(l *launch.List) {
		return func(l *launch.List) {
			route(32, 0x100)(l)
			Align(l, &a, ids, 0)
		}
	}
	for _, m := range []struct {
		name string
		f    func(l *launch.List)
		want []want
	}{
		{"route and align", sorted(NewAligned(0x100000, 32, 6, 64, 8), at(i32, 32, 6)), nil},
		{"route and align where its scratch is", sorted(NewAligned(0x200, 32, 6, 64, 8), at(i32, 32, 6)), []want{{kAlign, 1, 0, 192, 48 << 10}}},
		{"route and align other ids", sorted(NewAligned(0x100000, 31, 6, 64, 8), at(i32, 31, 6)), []want{{kAlign, 1, 0, 192, 48 << 10}}},
		{"route and align for other experts", sorted(NewAligned(0x100000, 32, 6, 65, 8), at(i32, 32, 6)), []want{{kAlign, 1, 0, 192, 48 << 10}}},
	} {
		expect(t, m.name, m.f, append([]want{{kLogitsFew[0], 16, 4, 256, 0}}, m.want...)...)
	}
	align := func(tokens, k, experts, tile int) func(l *launch.List) {
		return func(l *launch.List) {
			a := NewAligned(0x1000, tokens, k, experts, tile)
			Align(l, &a, at(i32, tokens, k), 0x100)
		}
	}
	expect(t, "align one", align(1, 6, 64, 8), want{kAlign, 1, 0, 128, 48 << 10})
	expect(t, "align a block", align(682, 6, 64, 64), want{kAlign, 1, 0, 512, 48 << 10})
	expect(t, "align more", align(8192, 6, 64, 128), want{kAlignCount, 12, 0, 512, 48 << 10}, want{kAlign, 12, 0, 512, 48 << 10})
	expect(t, "align most", align(16384, 16, 512, 128), want{kAlignCount, 64, 0, 512, 48 << 10}, want{kAlign, 64, 0, 512, 48 << 10})
}

func TestMaxTiles(t *testing.T) {
	for _, tt := range []struct{ assignments, experts, tile, want int }{
		{0, 8, 16, 0}, {1, 8, 16, 1}, {6, 64, 8, 6}, {48, 64, 8, 48}, {49152, 64, 128, 447}, {17, 1, 16, 2}, {16, 1, 16, 1},
	} {
		if got := MaxTiles(tt.assignments, tt.experts, tt.tile); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
	// The parts of Aligned do not overlap and end where they should.
	a := NewAligned(0x1000, 7, 6, 64, 8)
	end := launch.Ptr(0x1000 + AlignedBytes(7, 6, 64, 8))
	if a.Tiles < a.Count+4 || a.Slots < a.Tiles+launch.Ptr(16*a.MaxTiles()) || a.Loads < a.Slots+launch.Ptr(4*8*a.MaxTiles()) || end != a.Loads+4*64 {
		t.Errorf("%+v ends at %#x", a, uint64(end))
	}
}

func TestRefusals(t *testing.T) {
	good := device.Router{Experts: 64, TopK: 6}
	with := func(f func(p *device.Router)) func() {
		return func() {
			p := good
			f(&p)
			TopK(new(launch.List), at(i32, 3, p.TopK), at(f32, 3, p.TopK), at(f32, 3, p.Experts), launch.Mat{}, p, 0)
		}
	}
	a := NewAligned(0x1000, 3, 6, 64, 8)
	big := NewAligned(0x1000, 1000, 6, 64, 8)
	for name, f := range map[string]func(){
		"experts":     with(func(p *device.Router) { p.Experts = 513 }),
		"k":           with(func(p *device.Router) { p.TopK = 33 }),
		"no k":        with(func(p *device.Router) { p.TopK = 0 }),
		"groups":      with(func(p *device.Router) { p.Groups, p.TopGroups = 5, 2 }),
		"few groups":  with(func(p *device.Router) { p.Groups, p.TopGroups = 16, 1 }),
		"many groups": with(func(p *device.Router) { p.Groups, p.TopGroups = 64, 6 }),
		"scoring":     with(func(p *device.Router) { p.Scoring = 3 }),
		"ids":         func() { TopK(new(launch.List), at(i32, 3, 5), at(f32, 3, 6), at(f32, 3, 64), launch.Mat{}, good, 0) },
		"gate":        func() { Logits(new(launch.List), at(f32, 3, 64), at(bf16, 3, 32), at(f32, 64, 33), 0) },
		"logits":      func() { Logits(new(launch.List), at(bf16, 3, 64), at(bf16, 3, 32), at(f32, 64, 32), 0) },
		"no parts":    func() { Logits(new(launch.List), at(f32, 3, 64), at(bf16, 3, 1024), at(f32, 64, 1024), 0) },
		"align":       func() { Align(new(launch.List), &a, at(i32, 3, 5), 0) },
		"no scratch":  func() { Align(new(launch.List), &big, at(i32, 1000, 6), 0) },
	} {
		func() {
			defer func() {
				err, _ := recover().(error)
				if shape := new(device.ShapeError); !errors.As(err, &shape) {
					t.Errorf("%s: %v", name, err)
				}
			}()
			f()
		}()
	}
}
