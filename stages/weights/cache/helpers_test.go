//go:build unix

package cache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/internal/hosttest"
	"krater/stages/weights/quant"
)

// made is a Source of random experts that counts what it is asked for.
type made struct {
	plan  *Plan
	mu    sync.Mutex
	asked []string
	fail  error // of expert 1 of the last layer
}

func (s *made) Expert(layer, e int) (w13, w2 *tensor.Matrix, err error) {
	s.mu.Lock()
	s.asked = append(s.asked, fmt.Sprintf("%d/%d", layer, e))
	s.mu.Unlock()
	if s.fail != nil && e == 1 && layer == s.plan.Layers[len(s.plan.Layers)-1] {
		return nil, nil, s.fail
	}
	h, f := s.plan.Hidden, s.plan.FF
	r := rand.New(rand.NewPCG(uint64(layer), uint64(e)))
	w := make([]float32, 3*h*f)
	for i := range w {
		w[i] = float32(r.NormFloat64())
	}
	o := quant.Options{Method: quant.Absmax}
	if w13, err = quant.Quantize(w[:2*h*f], 2*f, h, s.plan.Format, o); err == nil {
		w2, err = quant.Quantize(w[2*h*f:], h, f, s.plan.Format, o)
	}
	return w13, w2, err
}

// small is a plan whose file has 25 pages.
func small() Plan {
	return Plan{Layers: []int{1, 2, 4}, Experts: 4, Hidden: 72, FF: 32, Format: tensor.INT4.By(64), Method: Search, Source: Fingerprint{1, 2, 3}}
}

// options for a folder of a test; notices are collected.
func options(t testing.TB, dir string) (*Options, *made, *[]string) {
	o := &Options{Plan: small(), Dir: dir, Threads: 2}
	src := &made{plan: &o.Plan}
	o.Source = src
	var lines []string
	o.Notice = func(s string) { lines = append(lines, s) }
	return o, src, &lines
}

func pathOf(o *Options) string {
	list, err := o.folders()
	if err != nil {
		panic(err)
	}
	return filepath.Join(list[0], o.Plan.FileName())
}

// whole opens a cache and compares every integer and scale with the source.
func whole(t testing.TB, o *Options) *Cache {
	t.Helper()
	c, err := Open(context.Background(), hosttest.Device{}, *o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	equal(t, c, o)
	return c
}

func equal(t testing.TB, c *Cache, o *Options) { equalTo(t, c, &made{plan: &o.Plan}, &o.Plan) }

// equalTo compares a plan's experts in a cache with those of a source.
func equalTo(t testing.TB, c *Cache, src Source, p *Plan) {
	t.Helper()
	for _, layer := range p.Layers {
		experts := c.Experts(p.For, layer)
		if len(experts) != p.Experts {
			t.Fatalf("layer %d has %d experts for a %s", layer, len(experts), p.For)
		}
		for e, x := range experts {
			w13, w2, err := src.Expert(layer, e)
			if err != nil {
				t.Fatal(err)
			}
			same(t, fmt.Sprintf("layer %d expert %d w13", layer, e), x.W13, w13)
			same(t, fmt.Sprintf("layer %d expert %d w2", layer, e), x.W2, w2)
		}
	}
}

func same(t testing.TB, what string, got device.QMat, want *tensor.Matrix) {
	t.Helper()
	if !want.Fits(got.Layout) {
		t.Fatalf("%s: %s, want %s", what, got.Layout, want)
	}
	m := got.Unpack(got.Values.Host()[got.ValueAt:], got.Scales.Host()[got.ScaleAt:])
	if !slices.Equal(m.Values, want.Values) || !slices.Equal(m.Scales, want.Scales) {
		t.Fatalf("%s differs", what)
	}
}

// The child: this test binary, started again to build a cache and be killed.
const (
	childDir   = "KRATER_TEST_CACHE_DIR"
	childStep  = "KRATER_TEST_CACHE_STEP" // "" or the step to stop at, from 0
	childModel = "KRATER_TEST_CACHE_MODEL"
	childKind  = "KRATER_TEST_CACHE_KIND" // of kinds
	childPeak  = "KRATER_TEST_CACHE_PEAK" // a model's folder: see TestPeakMemory
)

// peakChild converts a model and tells its peak memory, where that can be measured.
var peakChild func(dir string)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childPeak); dir != "" && peakChild != nil {
		peakChild(dir)
		return
	}
	if dir, model := os.Getenv(childDir), os.Getenv(childModel); dir != "" || model != "" {
		child(dir, model)
		return
	}
	os.Exit(m.Run())
}

// child builds, prints a line before every step, and at the chosen step waits to
// be killed.
func child(dir, model string) {
	stop, n := -1, 0
	if s := os.Getenv(childStep); s != "" {
		stop, _ = strconv.Atoi(s)
	}
	onStep := func(name string) {
		os.Stdout.WriteString("step " + name + "\n")
		if n == stop {
			os.Stdout.WriteString("stopped\n")
			bufio.NewReader(os.Stdin).ReadByte()
		}
		n++
	}
	notice := func(line string) { os.Stdout.WriteString("notice " + line + "\n") }
	var err error
	switch kind := os.Getenv(childKind); kind {
	case "matrices", "more matrices":
		o, _ := matrixOptions(dir)
		o.onStep, o.Notice = onStep, notice
		var made int
		if made, err = fillMatrices(nil, o, wanted()); err == nil {
			fmt.Printf("made %d\n", made)
		}
	default:
		o, src, _ := options(nil, dir)
		if kind == "both" {
			o.Also = []Plan{forGPU(o.Plan)}
		}
		o.Model, o.onStep, o.Notice = model, onStep, notice
		var r *Report
		if r, err = Build(context.Background(), *o); err == nil {
			fmt.Printf("built %d resumed %d asked %d found %v %s\n", r.Built, r.Resumed, len(src.asked), r.Found, r.Path)
		}
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

// start runs the child; its standard input stays open until it ends.
func start(t *testing.T, env ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out)
}

// steps runs a whole build and lists its steps.
func steps(t *testing.T) []string {
	t.Helper()
	var list []string
	o, _, _ := options(t, t.TempDir())
	o.onStep = func(name string) { list = append(list, name) }
	if _, err := Build(context.Background(), *o); err != nil {
		t.Fatal(err)
	}
	return list
}

// forGPU is the plan of the same experts for a GPU.
func forGPU(p Plan) Plan {
	p.For = tensor.GPU
	return p
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// onlyFile fails if the folder holds more than the files and their locks.
func onlyFile(t testing.TB, o *Options) {
	t.Helper()
	var names []string
	for _, p := range append([]Plan{o.Plan}, o.Also...) {
		names = append(names, p.FileName())
	}
	onlyFiles(t, filepath.Dir(pathOf(o)), names...)
}

func onlyFiles(t testing.TB, dir string, names ...string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if !slices.Contains(names, strings.TrimSuffix(x.Name(), ".lock")) {
			t.Errorf("%s was left", x.Name())
		}
	}
}

func mentions(lines []string, want ...string) bool {
	all := strings.Join(lines, "\n")
	for _, w := range want {
		if !strings.Contains(all, w) {
			return false
		}
	}
	return true
}

var errTest = errors.New("a test's failure")
