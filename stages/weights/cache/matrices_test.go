//go:build unix

package cache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/internal/hosttest"
	"krater/stages/weights/quant"
)

func matrixOptions(dir string) (*MatrixOptions, *[]string) {
	var lines []string
	o := &MatrixOptions{Source: Fingerprint{7, 8}, Precision: "all INT4", Dir: dir, Threads: 2}
	o.Notice = func(s string) { lines = append(lines, s) }
	return o, &lines
}

func pathOfMatrices(o *MatrixOptions) string {
	list, err := o.folders()
	if err != nil {
		panic(err)
	}
	return filepath.Join(list[0], o.fileName())
}

// want is a matrix that a load asks for.
type want struct {
	name string
	tensor.Format
	rows, cols int
}

// wanted are the matrices of a small load: odd sizes, two formats of one name,
// many small ones as of an attention's heads.
func wanted() []want {
	list := []want{
		{"layer.0.q", tensor.INT4.By(32), 48, 96}, {"layer.0.o", tensor.INT8.By(0), 33, 70},
		{"head", tensor.INT4.By(64), 500, 72}, {"head", tensor.INT8.By(64), 500, 72},
	}
	for i := range 8 {
		list = append(list, want{fmt.Sprintf("layer.0.kv_b.%d.k", i), tensor.INT4.By(32), 16, 33})
	}
	return append(list, want{"layer.1.o", tensor.Q8_0.By(32), 33, 70})
}

func (x want) make() (*tensor.Matrix, error) {
	r := rand.New(rand.NewPCG(uint64(x.rows*x.cols), uint64(len(x.name)+int(x.name[len(x.name)-3])+x.Bits())))
	w := make([]float32, x.rows*x.cols)
	for i := range w {
		w[i] = float32(r.NormFloat64())
	}
	return quant.Quantize(w, x.rows, x.cols, x.Format, quant.Options{Method: quant.Absmax})
}

// ask takes all matrices and compares them (t nil: does not); it tells how many
// were made.
func ask(t testing.TB, m *Matrices, list []want) (made int, err error) {
	for _, x := range list {
		f, err := x.On(tensor.CPU, x.rows, x.cols)
		if err != nil {
			return made, err
		}
		q, err := m.Matrix(x.name, f, func() (*tensor.Matrix, error) { made++; return x.make() })
		if err != nil {
			return made, err
		}
		if t != nil {
			w, err := x.make()
			if err != nil {
				return made, err
			}
			same(t, x.name, q, w)
		}
	}
	return made, nil
}

// fillMatrices is a whole load.
func fillMatrices(t testing.TB, o *MatrixOptions, list []want) (made int, err error) {
	m, err := OpenMatrices(context.Background(), hosttest.Device{}, *o)
	if err != nil {
		return 0, err
	}
	made, err = ask(t, m, list)
	if err == nil {
		err = m.Seal()
	}
	return made, errors.Join(err, m.Close())
}

// loadAll is a load that must succeed; it tells how many matrices were made.
func loadAll(t testing.TB, o *MatrixOptions) int {
	t.Helper()
	made, err := fillMatrices(t, o, wanted())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestMatricesThenUse: made at the first load, mapped and copied at later ones.
func TestMatricesThenUse(t *testing.T) {
	o, lines := matrixOptions(t.TempDir())
	n := len(wanted())
	if made := loadAll(t, o); made != n {
		t.Errorf("made %d, want %d", made, n)
	}
	file := read(t, pathOfMatrices(o))
	for _, o.Copy = range []bool{false, true} {
		told := newTold(t)
		o.Progress = told.progress
		if made := loadAll(t, o); made != 0 || told.done != told.all || told.all == 0 || !slices.Equal(told.phases, []string{"load matrices"}) {
			t.Errorf("made %d again, progress %+v", made, told)
		}
	}
	onlyFiles(t, filepath.Dir(pathOfMatrices(o)), o.fileName())
	again, _ := matrixOptions(t.TempDir())
	loadAll(t, again)
	if !bytes.Equal(read(t, pathOfMatrices(again)), file) {
		t.Error("a second build gives another file")
	}
	if len(*lines) != 0 {
		t.Errorf("notices %q", *lines)
	}
}

// TestMatrixFileFlipped: whichever byte of the file changes, it is never used and
// built anew as it was.
func TestMatrixFileFlipped(t *testing.T) {
	o, lines := matrixOptions(t.TempDir())
	loadAll(t, o)
	path := pathOfMatrices(o)
	good := read(t, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	step := 7
	if testing.Short() {
		step = 101
	}
	for i := 0; i < len(good); i += step {
		if _, err := f.WriteAt([]byte{good[i] ^ byte(1<<(i%8))}, int64(i)); err != nil {
			t.Fatal(err)
		}
		o.Copy = i%2 == 0
		if _, err := loadMatrices(t.Context(), hosttest.Device{}, path, o); !unusable(err) {
			t.Fatalf("byte %d of %d flipped: got %v", i, len(good), err)
		}
		if _, err := f.WriteAt(good[i:i+1], int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if made := loadAll(t, o); made != 0 {
		t.Errorf("all bytes restored: %d made", made)
	}
	for i := 3; i < len(good); i += len(good) / 9 {
		bad := slices.Clone(good)
		bad[i] ^= 16
		write(t, path, bad)
		*lines = nil
		if made := loadAll(t, o); made != len(wanted()) || !mentions(*lines, path, "not used") || !bytes.Equal(read(t, path), good) {
			t.Fatalf("byte %d flipped: %d made, notices %q", i, made, *lines)
		}
	}
}

// TestMatrixFileCut at many places, and made longer.
func TestMatrixFileCut(t *testing.T) {
	o, lines := matrixOptions(t.TempDir())
	loadAll(t, o)
	path := pathOfMatrices(o)
	good := read(t, path)
	cuts := []int{0, 1, 8, 100, page - 1, page, page + 1, len(good) - 1, len(good) + 1, len(good) + page}
	for at := page; at < len(good); at += len(good) / 13 {
		cuts = append(cuts, at)
	}
	for _, n := range cuts {
		b := make([]byte, n)
		copy(b, good)
		write(t, path, b)
		*lines = nil
		if made := loadAll(t, o); made != len(wanted()) || !mentions(*lines, path, "not used") || !bytes.Equal(read(t, path), good) {
			t.Errorf("cut to %d of %d: %d made, notices %q", n, len(good), made, *lines)
		}
	}
}

// TestMatrixFileOfOthers: other weights, other precision, other versions.
func TestMatrixFileOfOthers(t *testing.T) {
	o, _ := matrixOptions(t.TempDir())
	loadAll(t, o)
	file := read(t, pathOfMatrices(o))
	sealed := func(change func(b []byte)) []byte {
		b := slices.Clone(file)
		change(b)
		putSeal(b[:page], sealAtD)
		return b
	}
	le := binary.LittleEndian
	for _, x := range []struct {
		name string
		file []byte
		err  error
	}{
		{"weights", sealed(func(b []byte) { b[32] ^= 1 }), ErrStale},
		{"precision", sealed(func(b []byte) { b[64] ^= 1 }), ErrStale},
		{"version", sealed(func(b []byte) { b[8] = 9 }), ErrVersion},
		{"text", []byte("hello"), ErrForeign},
		{"experts", append([]byte(magic), file[8:]...), ErrForeign},
		{"no header", append(make([]byte, page), file[page:]...), ErrUnfinished},
		{"count", sealed(func(b []byte) { b[12]++ }), ErrDamaged},
		{"huge count", sealed(func(b []byte) { le.PutUint32(b[12:], 1<<31) }), ErrDamaged},
		{"index place", sealed(func(b []byte) { le.PutUint64(b[16:], 1<<63) }), ErrDamaged},
		{"index size", sealed(func(b []byte) { le.PutUint64(b[24:], 1<<62) }), ErrDamaged},
	} {
		o, lines := matrixOptions(t.TempDir())
		write(t, pathOfMatrices(o), x.file)
		if _, err := loadMatrices(t.Context(), hosttest.Device{}, pathOfMatrices(o), o); !errors.Is(err, x.err) {
			t.Errorf("%s: got %v", x.name, err)
		}
		if made := loadAll(t, o); made != len(wanted()) || !mentions(*lines, x.err.Error()) || !bytes.Equal(read(t, pathOfMatrices(o)), file) {
			t.Errorf("%s: %d made, notices %q", x.name, made, *lines)
		}
	}
	other := *o
	other.Precision = "attention INT8"
	if made := loadAll(t, &other); made != len(wanted()) {
		t.Errorf("another precision made %d", made)
	}
	if made := loadAll(t, o); made != 0 {
		t.Errorf("the first precision's file is gone: %d made", made)
	}
}

// TestMatricesExtend: a load that wants more adds it; matrices given before stay.
func TestMatricesExtend(t *testing.T) {
	o, lines := matrixOptions(t.TempDir())
	all := wanted()
	if made, err := fillMatrices(t, o, all[:5]); made != 5 || err != nil {
		t.Fatal(made, err)
	}
	small := read(t, pathOfMatrices(o))
	m, err := OpenMatrices(t.Context(), hosttest.Device{}, *o)
	if err != nil {
		t.Fatal(err)
	}
	if made, err := ask(t, m, all); made != len(all)-5 || err != nil || m.Taken != 5 || m.Made != made || !m.Found {
		t.Errorf("made %d, %v: %+v", made, err, m)
	}
	if !bytes.Equal(read(t, pathOfMatrices(o)), small) {
		t.Error("changed before the load was complete")
	}
	if made, err := ask(t, m, all); made != 0 || err != nil {
		t.Errorf("asked again, made %d, %v", made, err)
	}
	if err := m.Seal(); err != nil {
		t.Error(err)
	}
	if made, err := ask(t, m, all); made != 0 || err != nil {
		t.Errorf("asked after the seal, made %d, %v", made, err)
	}
	m.Close()
	if made := loadAll(t, o); made != 0 || !mentions(*lines, "writing it again") {
		t.Errorf("made %d, notices %q", made, *lines)
	}
	onlyFiles(t, filepath.Dir(pathOfMatrices(o)), o.fileName())
}

// TestMatricesUnsealed: a load that fails leaves nothing, a failed make is no
// matrix, and nothing works after Close.
func TestMatricesUnsealed(t *testing.T) {
	o, _ := matrixOptions(t.TempDir())
	m, err := OpenMatrices(t.Context(), hosttest.Device{}, *o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, m, wanted()[:3]); err != nil {
		t.Fatal(err)
	}
	f := tensor.Layout{Format: tensor.INT4.By(32), Rows: 16, Cols: 32}
	if _, err := m.Matrix("x", f, func() (*tensor.Matrix, error) { return nil, errTest }); !errors.Is(err, errTest) {
		t.Errorf("got %v", err)
	}
	if _, err := m.Matrix("x", f, wanted()[0].make); err == nil {
		t.Error("a matrix of another format passed")
	}
	for _, k := range []key{{"", f}, {strings.Repeat("x", maxName+1), f}, {"x", tensor.Layout{}}} {
		if _, err := m.Matrix(k.name, k.Layout, wanted()[0].make); !errors.Is(err, ErrShape) {
			t.Errorf("%.10q %+v: got %v", k.name, k.Layout, err)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Matrix("x", f, wanted()[0].make); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := m.Seal(); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
	onlyFiles(t, filepath.Dir(pathOfMatrices(o)), o.fileName())
	if made, err := fillMatrices(t, o, nil); made != 0 || err != nil {
		t.Error(made, err)
	}
	if _, err := os.Stat(pathOfMatrices(o)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file without a matrix: %v", err)
	}
	loadAll(t, o)
}

// TestMatricesTogether: many loads at once; one makes, all are served.
func TestMatricesTogether(t *testing.T) {
	o, _ := matrixOptions(t.TempDir())
	o.Notice = nil
	var wait sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range 6 {
		wait.Go(func() {
			made, err := fillMatrices(t, o, wanted())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			total += made
			mu.Unlock()
		})
	}
	wait.Wait()
	if total != len(wanted()) {
		t.Errorf("%d matrices made, want %d", total, len(wanted()))
	}
	o, lines := matrixOptions(t.TempDir())
	first, err := OpenMatrices(t.Context(), hosttest.Device{}, *o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	notice := o.Notice
	o.Notice = func(s string) { notice(s); cancel(errTest) }
	if _, err := OpenMatrices(ctx, hosttest.Device{}, *o); !errors.Is(err, errTest) || !mentions(*lines, "waiting") {
		t.Errorf("a wait that is given up: %v, notices %q", err, *lines)
	}
	first.Close()
	loadAll(t, o)
}

// TestMatricesFailingDisk fails every write and sync in turn: the load goes on in
// memory, Seal tells, and the next load builds the file.
func TestMatricesFailingDisk(t *testing.T) {
	causes := fullAndBroken
	if testing.Short() {
		causes = causes[:1]
	}
	for _, cause := range causes {
		for n := 0; ; n++ {
			o, lines := matrixOptions(t.TempDir())
			if n%2 == 1 { // beside a file that lacks something
				if _, err := fillMatrices(t, o, wanted()[:2]); err != nil {
					t.Fatal(err)
				}
			}
			o.wrap = func(s storage) storage { return &failing{s, n, cause} }
			made, err := fillMatrices(t, o, wanted())
			if made < len(wanted())-2 {
				t.Fatalf("write %d: the load ended early: %d made, %v", n, made, err)
			}
			if err == nil {
				if n < 14 {
					t.Errorf("only %d writes and syncs", n)
				}
				break
			}
			if !errors.Is(err, cause) || !strings.Contains(err.Error(), filepath.Dir(pathOfMatrices(o))) || !mentions(*lines, cause.Error()) {
				t.Fatalf("write %d: got %v, notices %q", n, err, *lines)
			}
			if errors.Is(err, ErrFull) != isFull(cause) {
				t.Errorf("write %d: got %v", n, err)
			}
			onlyFiles(t, filepath.Dir(pathOfMatrices(o)), o.fileName())
			o.wrap = nil
			loadAll(t, o)
			if made := loadAll(t, o); made != 0 {
				t.Errorf("write %d: no file afterwards: %d made", n, made)
			}
		}
	}
}

// TestMatricesNoFolder: nowhere to write is no end of a load either.
func TestMatricesNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, nil)
	o, lines := matrixOptions(filepath.Join(file, "below"))
	made, err := fillMatrices(t, o, wanted())
	if made != len(wanted()) || !errors.Is(err, ErrNoFolder) || !mentions(*lines, "--cache-dir") {
		t.Errorf("made %d, %v, notices %q", made, err, *lines)
	}
	o, lines = matrixOptions(t.TempDir())
	outside := filepath.Join(t.TempDir(), "precious")
	write(t, outside, []byte("precious"))
	write(t, pathOfMatrices(o)+".lock", nil)
	if err := os.Symlink(outside, pathOfMatrices(o)+".part"); err != nil {
		t.Fatal(err)
	}
	if made, err := fillMatrices(t, o, wanted()); made != len(wanted()) || err == nil || len(*lines) != 1 || string(read(t, outside)) != "precious" {
		t.Errorf("a link in place of the part: made %d, %v, %q, the target holds %q", made, err, *lines, read(t, outside))
	}
}

// TestMatricesOutOfMemory of the device ends the load and leaves nothing.
func TestMatricesOutOfMemory(t *testing.T) {
	o, _ := matrixOptions(t.TempDir())
	m, err := OpenMatrices(t.Context(), &budget{layers: 2}, *o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(nil, m, wanted()); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
	m.Close()
	onlyFiles(t, filepath.Dir(pathOfMatrices(o)), o.fileName())
	loadAll(t, o)
	o.Copy = true
	if _, err := OpenMatrices(t.Context(), &budget{}, *o); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
}
