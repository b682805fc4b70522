//go:build unix

package cache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/internal/hosttest"
)

// TestBuildThenUse: built once, then mapped and copied without asking the source.
func TestBuildThenUse(t *testing.T) {
	for _, format := range []tensor.Format{tensor.INT4.By(64), tensor.INT4.By(32), tensor.INT8.By(128), tensor.INT8.By(0), tensor.Q8_0.By(32), tensor.INT3.By(64)} {
		o, src, lines := options(t, t.TempDir())
		o.Plan.Format = format
		told := newTold(t)
		o.Progress = told.progress
		c := whole(t, o)
		if c.Report == nil || c.Report.Built != 3 || c.Report.Resumed != 0 || len(src.asked) != 12 {
			t.Errorf("%s: report %+v, %d experts asked", format, c.Report, len(src.asked))
		}
		told.ended(o.Plan, "convert experts", "load experts")
		for _, o.Copy = range []bool{false, true} {
			if c = whole(t, o); c.Report != nil || len(src.asked) != 12 {
				t.Errorf("%s: not used: %+v", format, c.Report)
			}
			told.ended(o.Plan, "load experts")
		}
		if _, err := Build(context.Background(), *o); err != nil {
			t.Fatal(err)
		}
		told.ended(o.Plan, "check experts")
		if len(*lines) != 0 {
			t.Errorf("notices %q", *lines)
		}
		onlyFile(t, o)
		n, err := o.Plan.Bytes()
		if info, err2 := os.Stat(pathOf(o)); err != nil || err2 != nil || info.Size() != n || c.Bytes != n {
			t.Errorf("size %v, planned %d, %v", info.Size(), n, err)
		}
	}
}

// told is the progress of a build or a load.
type told struct {
	t      *testing.T
	phases []string
	done   int64
	all    int64
}

func newTold(t *testing.T) *told { return &told{t: t} }

func (p *told) progress(phase string, done, all int64) {
	if n := len(p.phases); n == 0 || p.phases[n-1] != phase {
		p.phases, p.done = append(p.phases, phase), 0
	}
	if done < p.done || done > all {
		p.t.Errorf("%s: %d of %d after %d", phase, done, all, p.done)
	}
	p.done, p.all = done, all
}

// ended checks which phases there were, and that the last one ended with all of the plan's file.
func (p *told) ended(plan Plan, phases ...string) {
	p.t.Helper()
	if n, err := plan.Bytes(); err != nil || !slices.Equal(p.phases, phases) || p.done != n || p.all != n {
		p.t.Errorf("phases %q, want %q; at the end %d of %d, want %d; %v", p.phases, phases, p.done, p.all, n, err)
	}
	p.phases = nil
}

// TestAligned: experts at pages, parts at cache lines.
func TestAligned(t *testing.T) {
	o, _, _ := options(t, t.TempDir())
	c, err := Open(context.Background(), hosttest.Device{}, *o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, x := range c.Experts(tensor.CPU, 2) {
		if x.W13.ValueAt%page != 0 {
			t.Errorf("expert at %d", x.W13.ValueAt)
		}
		for _, at := range []int{x.W13.ScaleAt, x.W2.ValueAt, x.W2.ScaleAt} {
			if at%line != 0 {
				t.Errorf("a part at %d", at)
			}
		}
	}
	if c.Experts(tensor.CPU, 0) != nil {
		t.Error("a dense layer has experts")
	}
}

// loads tries a file as it is.
func loads(o *Options) error {
	c, err := load(context.Background(), hosttest.Device{}, pathOf(o), &o.Plan, o)
	if err == nil {
		err = c.Close()
	}
	return err
}

// TestFlippedByte: whichever byte of the file changes, it is never used.
func TestFlippedByte(t *testing.T) {
	o, _, _ := options(t, t.TempDir())
	o.Plan.Layers, o.Plan.Experts = []int{1, 3}, 1 // 20 KiB
	whole(t, o)
	path := pathOf(o)
	good := read(t, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	step := 1
	if testing.Short() {
		step = 13
	}
	for i := 0; i < len(good); i += step {
		bit := byte(1 << (i % 8))
		if _, err := f.WriteAt([]byte{good[i] ^ bit}, int64(i)); err != nil {
			t.Fatal(err)
		}
		o.Copy = i%2 == 0
		if err := loads(o); !unusable(err) {
			t.Fatalf("byte %d of %d flipped: got %v", i, len(good), err)
		}
		if _, err := f.WriteAt(good[i:i+1], int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := loads(o); err != nil {
		t.Errorf("all bytes restored: %v", err)
	}
}

// TestTruncated at and around every boundary, and made longer.
func TestTruncated(t *testing.T) {
	o, _, _ := options(t, t.TempDir())
	whole(t, o)
	path := pathOf(o)
	good := read(t, path)
	cuts := []int{0, 1, 7, 8, 9, 12, 79, 80, 84, 87, 88, 89, 88 + 16, 88 + 48, len(good) + 1, len(good) + page}
	for at := page; at <= len(good); at += page {
		cuts = append(cuts, at-1, at, at+1)
	}
	for _, n := range cuts {
		if n == len(good) {
			continue
		}
		b := make([]byte, n)
		copy(b, good)
		write(t, path, b)
		for _, o.Copy = range []bool{false, true} {
			if err := loads(o); !unusable(err) {
				t.Errorf("%d of %d bytes: got %v", n, len(good), err)
			}
		}
	}
	o.Copy = false
	c := whole(t, o)
	if c.Report == nil || !bytes.Equal(read(t, path), good) {
		t.Error("not built anew as it was")
	}
}

// TestNotUsed: every kind of wrong file is named, with the reason, and replaced.
func TestNotUsed(t *testing.T) {
	good, _, _ := options(t, t.TempDir())
	whole(t, good)
	file := read(t, pathOf(good))
	changed := func(change func(b []byte)) []byte {
		b := bytes.Clone(file)
		change(b)
		return b
	}
	other := func(change func(p *Plan)) []byte {
		o, _, _ := options(t, t.TempDir())
		change(&o.Plan)
		whole(t, o)
		return read(t, pathOf(o))
	}
	for _, x := range []struct {
		name string
		file []byte
		err  error
		says string
	}{
		{"text", []byte("hello\n"), ErrForeign, ""},
		{"empty", nil, ErrForeign, ""},
		{"version", changed(func(b []byte) { b[8] = 3 }), ErrVersion, "3, want 2"},
		{"encoding", changed(func(b []byte) {
			copy(b[nameAt:], "int9")
			binary.LittleEndian.PutUint32(b[sumAt:], checksum(b[:sumAt]))
		}), ErrVersion, "does not know: \"int9\""},
		{"unfinished", changed(func(b []byte) { clear(b[sealAt : sealAt+4]) }), ErrUnfinished, ""},
		{"layer", changed(func(b []byte) { b[page*10] ^= 1 }), ErrDamaged, "layer 2"},
		{"bits", other(func(p *Plan) { p.Format = tensor.INT8.By(64) }), ErrStale, "int8_g64, want int4_g64"},
		{"group", other(func(p *Plan) { p.Format = tensor.INT4.By(32) }), ErrStale, "int4_g32, want"},
		{"source", other(func(p *Plan) { p.Source[0] = 9 }), ErrStale, "other weights"},
		{"experts", other(func(p *Plan) { p.Experts = 5 }), ErrStale, "5 experts"},
		{"layers", other(func(p *Plan) { p.Layers = []int{1, 2, 3} }), ErrStale, ""},
		{"method", other(func(p *Plan) { p.Method = Absmax }), ErrStale, "absmax"},
	} {
		o, _, lines := options(t, t.TempDir())
		write(t, pathOf(o), x.file)
		if err := loads(o); !errors.Is(err, x.err) {
			t.Errorf("%s: got %v", x.name, err)
		}
		c := whole(t, o)
		if c.Report == nil || !mentions(*lines, pathOf(o), x.err.Error(), x.says) {
			t.Errorf("%s: report %+v, notices %q", x.name, c.Report, *lines)
		}
		if !bytes.Equal(read(t, pathOf(o)), file) {
			t.Errorf("%s: another file came out", x.name)
		}
	}
	better, src, _ := options(t, t.TempDir())
	write(t, pathOf(better), other(func(p *Plan) { p.Method = Feedback }))
	if c := whole(t, better); c.Report != nil || len(src.asked) != 0 || c.Plan.Method != Feedback {
		t.Errorf("a better file was not used: %+v", c.Plan)
	}
}

// TestPipeAndFolder: what is no file neither blocks nor is written to.
func TestPipeAndFolder(t *testing.T) {
	o, _, lines := options(t, t.TempDir())
	path := pathOf(o)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	whole(t, o)
	if !mentions(*lines, path, ErrForeign.Error()) {
		t.Errorf("notices %q", *lines)
	}
	o, _, _ = options(t, t.TempDir())
	if err := os.MkdirAll(pathOf(o), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), hosttest.Device{}, *o); err == nil || !strings.Contains(err.Error(), pathOf(o)) {
		t.Errorf("a folder in its place: got %v", err)
	}
	o, _, _ = options(t, t.TempDir())
	outside := filepath.Join(t.TempDir(), "precious")
	write(t, outside, []byte("precious"))
	write(t, pathOf(o)+".lock", nil)
	if err := os.Symlink(outside, pathOf(o)+".part"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), hosttest.Device{}, *o); err == nil || string(read(t, outside)) != "precious" {
		t.Errorf("a link in place of the part: got %v, the target holds %q", err, read(t, outside))
	}
}

// TestTogether: many starts at once in one process; one builds, all are served.
func TestTogether(t *testing.T) {
	o, src, _ := options(t, t.TempDir())
	o.Notice = nil
	var wait sync.WaitGroup
	for range 6 {
		wait.Go(func() {
			c, err := Open(context.Background(), hosttest.Device{}, *o)
			if err != nil {
				t.Error(err)
				return
			}
			equal(t, c, o)
			c.Close()
		})
	}
	wait.Wait()
	if len(src.asked) != 12 {
		t.Errorf("%d experts converted, want 12", len(src.asked))
	}
	onlyFile(t, o)
}

// TestWaitEnds: a start that waits for another's build can be given up.
func TestWaitEnds(t *testing.T) {
	o, _, lines := options(t, t.TempDir())
	path := pathOf(o)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(context.Background(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	notice := o.Notice
	o.Notice = func(s string) { notice(s); cancel(errTest) }
	if _, err := Build(ctx, *o); !errors.Is(err, errTest) || !mentions(*lines, "waiting", path) {
		t.Errorf("got %v, notices %q", err, *lines)
	}
	unlock()
	whole(t, o)
}

// TestResume after a failure and after a cancelled build: kept layers are not
// converted again.
func TestResume(t *testing.T) {
	o, src, _ := options(t, t.TempDir())
	src.fail = errTest
	if _, err := Build(context.Background(), *o); !errors.Is(err, errTest) {
		t.Fatalf("got %v", err)
	}
	if err := loads(o); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after a failure: %v", err)
	}
	src.fail, src.asked = nil, nil
	c := whole(t, o)
	if c.Report.Resumed != 2 || c.Report.Built != 1 || len(src.asked) != 4 || src.asked[0] != "4/0" {
		t.Errorf("report %+v, asked %v", c.Report, src.asked)
	}
	onlyFile(t, o)

	o, src, _ = options(t, t.TempDir())
	ctx, cancel := context.WithCancelCause(context.Background())
	calls := 0
	o.Progress = func(string, int64, int64) {
		if calls++; calls == 5 { // four experts, and the layer
			cancel(errTest)
		}
	}
	if _, err := Build(ctx, *o); !errors.Is(err, errTest) {
		t.Fatalf("got %v", err)
	}
	o.Progress, src.asked = nil, nil
	if c := whole(t, o); c.Report.Resumed != 1 || len(src.asked) != 8 {
		t.Errorf("report %+v, asked %v", c.Report, src.asked)
	}
}

// TestResumeRefuses: a part that does not fit is begun anew, a damaged layer of it
// converted again.
func TestResumeRefuses(t *testing.T) {
	partial := func() ([]byte, *Options) {
		o, src, _ := options(t, t.TempDir())
		src.fail = errTest
		if _, err := Build(context.Background(), *o); !errors.Is(err, errTest) {
			t.Fatal(err)
		}
		return read(t, pathOf(o)+".part"), o
	}
	part, _ := partial()
	le := binary.LittleEndian
	for _, x := range []struct {
		name    string
		change  func(b []byte, o *Options) []byte
		resumed int
	}{
		{"as it is", func(b []byte, o *Options) []byte { return b }, 2},
		{"second layer damaged", func(b []byte, o *Options) []byte { b[page*10] ^= 1; return b }, 1},
		{"first layer damaged", func(b []byte, o *Options) []byte { b[page] ^= 1; return b }, 0},
		{"entry damaged", func(b []byte, o *Options) []byte { b[headerFixed+headerLayer+5] ^= 1; return b }, 1},
		{"third layer claimed", func(b []byte, o *Options) []byte {
			putEntry(b, 2, entry{layer: 4, sum: le.Uint32(b[headerFixed+4:]), done: true})
			return b
		}, 2},
		{"other source", func(b []byte, o *Options) []byte { o.Plan.Source[5] = 1; return b }, 0},
		{"other method", func(b []byte, o *Options) []byte { o.Plan.Method = Absmax; return b }, 0},
		{"cut", func(b []byte, o *Options) []byte { return b[:len(b)-1] }, 0},
		{"text", func(b []byte, o *Options) []byte { return []byte("hello") }, 0},
	} {
		o, src, lines := options(t, t.TempDir())
		b := x.change(bytes.Clone(part), o)
		write(t, pathOf(o)+".part", b)
		c := whole(t, o)
		if c.Report.Resumed != x.resumed || len(src.asked) != 4*(3-x.resumed) {
			t.Errorf("%s: report %+v, %d experts asked", x.name, c.Report, len(src.asked))
		}
		if x.name != "as it is" && x.name != "entry damaged" && !mentions(*lines, ".part: ") {
			t.Errorf("%s: notices %q", x.name, *lines)
		}
		onlyFile(t, o)
	}
}

// budget is a device with little memory.
type budget struct {
	hosttest.Device
	layers int
}

func (b *budget) Alloc(n int) (device.Buffer, error) {
	if b.layers--; b.layers < 0 {
		return nil, device.ErrOutOfMemory
	}
	return b.Device.Alloc(n)
}

// TestCancelled: neither a load nor a verification outlives its context, and a
// file is not held to be damaged for it.
func TestCancelled(t *testing.T) {
	o, src, _ := options(t, t.TempDir())
	whole(t, o)
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errTest)
	for _, o.Copy = range []bool{false, true} {
		if _, err := Open(ctx, hosttest.Device{}, *o); !errors.Is(err, errTest) {
			t.Errorf("Open: got %v", err)
		}
	}
	if _, err := Build(ctx, *o); !errors.Is(err, errTest) || len(src.asked) != 12 {
		t.Errorf("Build: got %v, %d experts asked", err, len(src.asked))
	}
	if err := loads(o); err != nil {
		t.Error(err)
	}
}

func TestPlanRefused(t *testing.T) {
	for name, change := range map[string]func(p *Plan){
		"no layers":   func(p *Plan) { p.Layers = nil },
		"no experts":  func(p *Plan) { p.Experts = 0 },
		"hidden":      func(p *Plan) { p.Hidden = 1 << 21 },
		"FF":          func(p *Plan) { p.FF = 40 },
		"method":      func(p *Plan) { p.Method = 0 },
		"order":       func(p *Plan) { p.Layers = []int{2, 1} },
		"no format":   func(p *Plan) { p.Format = tensor.Format{} },
		"group":       func(p *Plan) { p.Format = tensor.INT4.By(48) },
		"astronomic":  func(p *Plan) { p.Hidden, p.FF, p.Experts = 1<<20, 1<<20, 1<<16 },
		"many layers": func(p *Plan) { p.Layers = make([]int, maxLayers+1) },
	} {
		p := small()
		change(&p)
		if _, err := p.Bytes(); !errors.Is(err, ErrShape) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzHeader: no header makes the reader panic, and one that is accepted is a
// plan whose own encoding has the same fields.
func FuzzHeader(f *testing.F) {
	p := small()
	l, err := p.layout()
	if err != nil {
		f.Fatal(err)
	}
	b := p.encode(&l)
	f.Add(b)
	f.Add(b[:headerFixed])
	a := forGPU(p)
	if l, err = a.layout(); err != nil {
		f.Fatal(err)
	}
	f.Add(a.encode(&l))
	f.Add([]byte(magic))
	f.Add(firstVersion(f, "experts_cpu_4_g32.bin")[:page])
	f.Fuzz(func(t *testing.T, b []byte) {
		// The fuzzer cannot guess a checksum.
		if at := sumAt; len(b) >= headerFixed {
			if b[8] == 1 {
				at = (&Plan{first: true}).fields().sum
			}
			binary.LittleEndian.PutUint32(b[at:], checksum(b[:at]))
		}
		got, entries, sealed, err := parse(b)
		if err != nil {
			if !unusable(err) {
				t.Errorf("an error of no kind: %v", err)
			}
			return
		}
		l, err := got.layout()
		if err != nil || len(entries) != len(got.Layers) || int64(len(b)) < l.header {
			t.Fatalf("accepted %+v: %v", got, err)
		}
		if got.first {
			return
		}
		if again := got.encode(&l); !bytes.Equal(again[:sumAt], b[:sumAt]) {
			t.Errorf("% x became % x", b[:sumAt], again[:sumAt])
		}
		_ = sealed
	})
}
