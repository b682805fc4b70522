package hostcall

import (
	"errors"
	"testing"
	"time"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

func at(dt tensor.DType, rows, cols int) launch.Mat {
	return launch.Mat{At: 0x1000, DType: dt, Rows: rows, Cols: cols, Stride: cols}
}

func boxOf(rows, hidden, topK int, dt tensor.DType) *Box {
	return &Box{Size: Size{HostCallSize: device.HostCallSize{Rows: rows, Hidden: hidden, TopK: topK, Limit: 5 * time.Millisecond}, RowType: dt}, Host: 1 << 40, State: 1 << 30}
}

// TestLaunches: one launch each, with as many blocks as its bytes keep busy; few rows are tagged
// words, in one block.
func TestLaunches(t *testing.T) {
	for _, c := range []struct {
		rows, hidden int
		dt           tensor.DType
		post, take   uint32
		fewX, fewOut bool
	}{
		{1, 8, tensor.BF16, 1, 1, true, true}, {1, 512, tensor.BF16, 1, 1, true, true}, {1, 512, tensor.F32, 1, 1, false, true},
		{1, 520, tensor.BF16, 1, 1, false, false}, {32, 16, tensor.BF16, 1, 1, true, true}, {4, 128, tensor.BF16, 1, 1, true, true}, {1, 2048, tensor.BF16, 1, 1, false, false},
		{1, 7168, tensor.BF16, 1, 2, false, false}, {1, 4096, tensor.F32, 1, 1, false, false}, {4, 2048, tensor.BF16, 1, 2, false, false},
		{32, 2048, tensor.BF16, 8, 8, false, false}, {128, 7168, tensor.BF16, 8, 8, false, false},
	} {
		b := boxOf(128, c.hidden, 6, c.dt)
		var l launch.List
		Post(&l, b, at(c.dt, c.rows, c.hidden), at(tensor.I32, c.rows, 6), at(tensor.F32, c.rows, 6), at(tensor.I32, 1, 64))
		Take(&l, b, at(tensor.F32, c.rows, c.hidden))
		if len(l.Ops) != 2 {
			t.Fatalf("%+v: %d launches", c, len(l.Ops))
		}
		type expected struct {
			kernel launch.Kernel
			blocks uint32
			args   int
		}
		post, take := expected{kPost, c.post, 14}, expected{kTake, c.take, 9}
		if c.fewX {
			post = expected{kPostFew, c.post, 12}
		}
		if c.fewOut {
			take = expected{kTakeFew, c.take, 8}
		}
		for i, want := range []expected{post, take} {
			o := &l.Ops[i]
			if o.Kernel != want.kernel || o.Config.Grid.X != want.blocks || o.Config.Block.X != 256 || !o.Config.PDL || o.Count != want.args {
				t.Errorf("%+v: %v %+v of %d arguments, want %+v", c, o.Kernel, o.Config, o.Count, want)
			}
		}
		if got := l.OpArgs(&l.Ops[1])[take.args-1]; got != launch.U32(5000) {
			t.Errorf("%+v: a limit of %v", c, got)
		}
	}
}

// TestMemory: the parts of a mailbox do not overlap, and are aligned.
func TestMemory(t *testing.T) {
	for _, s := range []Size{boxOf(1, 8, 1, tensor.BF16).Size, boxOf(33, 7168, 8, tensor.BF16).Size, boxOf(5, 24, 3, tensor.F32).Size} {
		p, end := s.parts(), headBytes
		fewX, fewOut := s.few()
		for _, x := range [][2]int{{p.ids, 4 * s.Rows * s.TopK}, {p.weights, 4 * s.Rows * s.TopK}, {p.x, s.Rows * s.Hidden * s.RowType.Size()}, {p.out, 4 * s.Rows * s.Hidden},
			{p.taggedX, 8 * s.taggedWords(fewX)}, {p.taggedOut, 8 * fewOut * s.Hidden}} {
			if x[0] < end || x[0]%256 != 0 {
				t.Errorf("%+v: %+v", s, p)
			}
			end = x[0] + x[1]
		}
		if s.Bytes() < end || s.Check() != nil {
			t.Errorf("%+v: %d bytes of %d, %v", s, end, s.Bytes(), s.Check())
		}
	}
}

// TestRefusals: arguments that do not fit are refused before anything is added.
func TestRefusals(t *testing.T) {
	b := boxOf(4, 64, 2, tensor.BF16)
	x, ids, weights, where := at(tensor.BF16, 4, 64), at(tensor.I32, 4, 2), at(tensor.F32, 4, 2), at(tensor.I32, 1, 8)
	odd, gaps := x, ids
	odd.At += 8
	gaps.Stride = 3
	for name, post := range map[string][4]launch.Mat{
		"rows":         {at(tensor.BF16, 5, 64), at(tensor.I32, 5, 2), at(tensor.F32, 5, 2), where},
		"type":         {at(tensor.F32, 4, 64), ids, weights, where},
		"width":        {at(tensor.BF16, 4, 72), ids, weights, where},
		"alignment":    {odd, ids, weights, where},
		"choices":      {x, at(tensor.I32, 4, 1), at(tensor.F32, 4, 1), where},
		"gaps":         {x, gaps, weights, where},
		"weights":      {x, ids, at(tensor.F32, 3, 2), where},
		"where":        {x, ids, weights, launch.Mat{}},
		"rows of maps": {x, ids, weights, at(tensor.I32, 2, 8)},
	} {
		refused(t, name, func(l *launch.List) { Post(l, b, post[0], post[1], post[2], post[3]) })
	}
	refused(t, "hidden of BF16", func(l *launch.List) { Take(l, b, x) })
	refused(t, "too many rows", func(l *launch.List) { Take(l, b, at(tensor.F32, 5, 64)) })
	for name, s := range map[string]Size{
		"no rows": boxOf(0, 64, 2, tensor.BF16).Size, "width": boxOf(4, 60, 2, tensor.BF16).Size, "no choices": boxOf(4, 64, 0, tensor.BF16).Size,
		"type": boxOf(4, 64, 2, tensor.I8).Size, "limit": {HostCallSize: device.HostCallSize{Rows: 1, Hidden: 8, TopK: 1}, RowType: tensor.BF16},
	} {
		if s.Check() == nil {
			t.Errorf("%s: %+v passes", name, s)
		}
	}
}

func refused(t *testing.T, name string, f func(l *launch.List)) {
	t.Helper()
	var l launch.List
	defer func() {
		var e *device.ShapeError
		if err, ok := recover().(error); !ok || !errors.As(err, &e) || len(l.Ops) != 0 {
			t.Errorf("%s: %v, %d launches", name, err, len(l.Ops))
		}
	}()
	f(&l)
}
