//go:build unix

package cache

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/internal/hosttest"
)

// both wants the experts in either format.
func both(t testing.TB, dir string) (*Options, *made, *[]string) {
	o, src, lines := options(t, dir)
	o.Also = []Plan{forGPU(o.Plan)}
	return o, src, lines
}

// wholeBoth opens both files and compares every integer and scale in them with the
// source and so with each other.
func wholeBoth(t testing.TB, o *Options) *Cache {
	t.Helper()
	c, err := Open(context.Background(), hosttest.Device{}, *o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	equal(t, c, o)
	equalA(t, c, o.Source, &o.Also[0])
	return c
}

func equalA(t testing.TB, c *Cache, src Source, p *Plan) {
	t.Helper()
	if m, ok := src.(*made); ok {
		src = &made{plan: m.plan}
	}
	equalTo(t, c, src, p)
}

// TestBothFormats are built in one pass, every expert quantised once, and used
// afterwards.
func TestBothFormats(t *testing.T) {
	for i, format := range []tensor.Format{tensor.INT4.By(64), tensor.INT4.By(32), tensor.INT8.By(128), tensor.INT8.By(0), tensor.INT4.By(0)} {
		o, src, lines := both(t, t.TempDir())
		o.Plan.Hidden, o.Plan.FF = []int{72, 64, 200}[i%3], []int{32, 80, 64}[i%3]
		o.Plan.Format = format
		o.Also[0] = forGPU(o.Plan)
		c := wholeBoth(t, o)
		if a := c.Also()[0]; c.Report == nil || a.Report == nil || c.Report.Built != 3 || a.Report.Built != 3 || len(src.asked) != 12 {
			t.Errorf("%s: %d experts asked, reports %+v, %+v", format, len(src.asked), c.Report, a.Report)
		}
		for _, o.Copy = range []bool{false, true} {
			if c := wholeBoth(t, o); c.Report != nil || c.Also()[0].Report != nil || len(src.asked) != 12 {
				t.Errorf("%s: not used: %+v", format, c.Report)
			}
		}
		onlyFile(t, o)
		if len(*lines) != 0 {
			t.Errorf("notices %q", *lines)
		}
		path := filepath.Join(filepath.Dir(pathOf(o)), o.Also[0].FileName())
		n, err := o.Also[0].Bytes()
		if info, err2 := os.Stat(path); err != nil || err2 != nil || info.Size() != n {
			t.Errorf("%s: size %v, planned %d, %v", path, info, n, err)
		}
	}
}

// TestExpertRanges: what a GPU copies lies at pages of the file, inside of it, and
// holds the very bytes of the file.
func TestExpertRanges(t *testing.T) {
	o, _, _ := both(t, t.TempDir())
	c, err := Open(context.Background(), hosttest.Device{}, *o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	file := read(t, c.Also()[0].Path)
	end := page
	for _, layer := range o.Plan.Layers {
		for e, x := range c.Experts(tensor.GPU, layer) {
			size := c.Also()[0].size(t)
			for _, q := range []device.QMat{x.W13, x.W2} {
				for _, at := range []int{q.ValueAt, q.ScaleAt} {
					if at%line != 0 {
						t.Errorf("a part at %d", at)
					}
				}
			}
			host := x.W13.Values.Host()
			if at := x.W13.ValueAt; at%page != 0 || !bytes.Equal(host[at:at+size], file[end:end+size]) {
				t.Fatalf("layer %d expert %d: at %d of its layer, not what is at %d of the file", layer, e, at, end)
			}
			end += size
		}
	}
	if end != len(file) || c.Experts(tensor.GPU, 0) != nil || len(c.Experts(tensor.CPU, 1)) != 4 {
		t.Errorf("experts end at %d, the file at %d", end, len(file))
	}
}

// size returns the size of an expert in the file, in bytes.
func (c *Cache) size(t testing.TB) int {
	l, err := c.Plan.layout()
	if err != nil {
		t.Fatal(err)
	}
	return l.size
}

// TestOneFormatOnly: a GPU alone, and one that comes later.
func TestOneFormatOnly(t *testing.T) {
	o, src, _ := options(t, t.TempDir())
	o.Plan = forGPU(o.Plan)
	c, err := Open(context.Background(), hosttest.Device{}, *o)
	if err != nil {
		t.Fatal(err)
	}
	equalA(t, c, src, &o.Plan)
	if c.Experts(tensor.CPU, 1) != nil {
		t.Error("experts for the CPU out of nowhere")
	}
	c.Close()
	onlyFile(t, o)

	o, src, _ = options(t, t.TempDir())
	whole(t, o)
	src.asked = nil
	o.Also = []Plan{forGPU(o.Plan)}
	if c := wholeBoth(t, o); c.Report != nil || c.Also()[0].Report.Built != 3 || len(src.asked) != 12 {
		t.Errorf("reports %+v, %+v, %d experts asked", c.Report, c.Also()[0].Report, len(src.asked))
	}
}

// TestFormatsApart: each file is resumed, replaced and refused for itself.
func TestFormatsApart(t *testing.T) {
	o, src, lines := both(t, t.TempDir())
	src.fail = errTest
	if _, err := Build(context.Background(), *o); !errors.Is(err, errTest) {
		t.Fatalf("got %v", err)
	}
	partB := read(t, pathOf(o)+".part")
	partB[page*10] ^= 1 // the second layer
	write(t, pathOf(o)+".part", partB)
	src.fail, src.asked = nil, nil
	c := wholeBoth(t, o)
	if a := c.Also()[0].Report; c.Report.Resumed != 1 || c.Report.Built != 2 || a.Resumed != 2 || a.Built != 1 || len(src.asked) != 8 {
		t.Errorf("reports %+v, %+v, asked %v", c.Report, a, src.asked)
	}
	onlyFile(t, o)

	pathA := c.Also()[0].Path
	file := read(t, pathA)
	for _, at := range []int{3, 41, sealAt, headerFixed + 5, page, len(file) - 1} {
		bad := slices.Clone(file)
		bad[at] ^= 4
		write(t, pathA, bad)
		*lines, src.asked = nil, nil
		if c := wholeBoth(t, o); c.Report != nil || c.Also()[0].Report == nil || !mentions(*lines, pathA, "not used") || !bytes.Equal(read(t, pathA), file) {
			t.Errorf("byte %d: reports %+v, %+v, notices %q", at, c.Report, c.Also()[0].Report, *lines)
		}
	}
	for _, n := range []int{0, 100, page, len(file) - 1} {
		write(t, pathA, file[:n])
		*lines = nil
		if wholeBoth(t, o); !mentions(*lines, pathA, "not used") {
			t.Errorf("cut to %d: notices %q", n, *lines)
		}
	}
	write(t, pathOf(o), file) // the one in place of the other
	*lines = nil
	if wholeBoth(t, o); !mentions(*lines, pathOf(o), "for a gpu, want one for a cpu") {
		t.Errorf("notices %q", *lines)
	}
	for _, o.Also[0] = range []Plan{o.Plan, {For: tensor.GPU, Format: o.Plan.Format, Layers: []int{1, 2}, Experts: 4, Hidden: 72, FF: 32}} {
		if _, err := Open(context.Background(), hosttest.Device{}, *o); !errors.Is(err, ErrShape) {
			t.Errorf("twice the same file, or different layers: got %v", err)
		}
	}
}

// TestFormatsTogether: starts that want one format, the other or both, in any
// order, wait for each other in one order only, and every file is built once.
func TestFormatsTogether(t *testing.T) {
	dir := t.TempDir()
	var wait sync.WaitGroup
	var built atomic.Int64
	for i := range 8 {
		wait.Go(func() {
			o, src, _ := options(t, dir)
			switch b, a := o.Plan, forGPU(o.Plan); i % 4 {
			case 0:
				o.Also = []Plan{a}
			case 1:
				o.Plan, o.Also = a, []Plan{b}
			case 2:
				o.Plan = a
			}
			c, err := Open(t.Context(), hosttest.Device{}, *o)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for _, x := range c.files() {
				if x.Report != nil {
					built.Add(int64(x.Report.Built))
				}
			}
			if i%4 != 2 {
				equal(t, c, o)
			}
			if i%4 != 3 {
				a := forGPU(o.Plan)
				equalA(t, c, src, &a)
			}
		})
	}
	wait.Wait()
	if built.Load() != 6 {
		t.Errorf("%d layers built, want 3 of each format", built.Load())
	}
}

// TestOneReading: with different bits the weights are read once for both files.
func TestOneReading(t *testing.T) {
	config, cfg, set := tinyModel(t)
	print, err := FingerprintOf(config, cfg, set)
	if err != nil {
		t.Fatal(err)
	}
	w := &Weights{Config: cfg, Set: set, Format: tensor.INT4.By(64), Method: Absmax}
	plan, err := NewPlan(cfg, w.Format, Absmax, print)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Plan: plan, Dir: t.TempDir(), Source: w}
	a := forGPU(plan)
	a.Format = tensor.INT8.By(32)
	o.Also = []Plan{a}
	c, err := Open(context.Background(), hosttest.Device{}, o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	some := a
	some.Layers = a.Layers[:2]
	equalA(t, c, w.As(a.Format), &some)
	for e, x := range c.Experts(tensor.CPU, 3) {
		w13, w2, err := w.Expert(3, e)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "w13", x.W13, w13)
		same(t, "w2", x.W2, w2)
	}
	// The last reader decides what the other gets without reading.
	other := w.As(a.Format)
	if _, _, err := other.Expert(1, 7); err != nil {
		t.Fatal(err)
	}
	w.floats.w2[0] += 1000
	if _, w2, err := w.Expert(1, 7); err != nil || w2.Scales[0] < 10 && w2.Scales[0] > -10 {
		t.Errorf("the weights were read again: scale %v, %v", w2.Scales[0], err)
	}
	if _, w2, err := w.Expert(1, 8); err != nil || w2.Scales[0] > 10 {
		t.Errorf("the weights of another expert were not read: %v", err)
	}
}

// TestStripes: packing in parts by several threads gives what packing at once does.
func TestStripes(t *testing.T) {
	for _, rows := range []int{16, 255 - 15, 256, 272, 1040} {
		p := small()
		p.FF, p.Experts = rows, 1
		w13, w2, err := (&made{plan: &p}).Expert(1, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []*tensor.Matrix{w13, w2} {
			for _, l := range []tensor.Layout{
				{Format: m.Format, Rows: m.Rows, Cols: m.Cols}, {Format: m.Format, Rows: m.Rows, Cols: m.Cols, For: tensor.GPU, Joined: m == w13},
			} {
				want := Packed{l, make([]byte, l.ValueBytes()), make([]byte, l.ScaleBytes())}
				got := Packed{l, make([]byte, l.ValueBytes()), make([]byte, l.ScaleBytes())}
				l.Pack(want.Values, want.Scales, m)
				if Pack(got, m, 3); !bytes.Equal(got.Values, want.Values) || !bytes.Equal(got.Scales, want.Scales) {
					t.Errorf("%+v differs", l)
				}
			}
		}
	}
}
