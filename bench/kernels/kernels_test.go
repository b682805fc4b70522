package kernels

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krater/bench/read"
	"krater/kernels/cpu"
	"krater/kernels/tensor"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// names are the kernels of one number of threads on a machine with AVX-512.
var names = strings.Fields(`gemv_int3_g64 gemv_int3_g128 gemv_int4_g32 gemv_int4_g64 gemv_int4_g128 gemv_int8
	` + files("gemv_%s ") + files("gemm_%s_m5 ") + `
	` + made("experts_%[1]s layer_one_%[1]s layer_%[1]s experts_%[1]s_m5 gemm_%[1]s_m5 ") + `
	gemv_int3_g64_avx2 gemv_int3_g128_avx2 gemv_int4_g32_avx2 gemv_int4_g64_avx2 gemv_int4_g128_avx2 gemv_int8_avx2
	` + files("gemv_%s_avx2 "))

// made writes the formats of experts.
func made(format string) (text string) {
	for _, name := range []string{"int3_g64", "int3_g128", "int4_g32", "int4_g128", "int8"} {
		text += fmt.Sprintf(format, name)
	}
	return text
}

// files writes the encodings of files.
func files(format string) (text string) {
	for _, name := range tensor.StoredEncodings() {
		text += fmt.Sprintf(format, name)
	}
	return text
}

// TestRun measures shortly: every kernel is there for every number of threads with figures of a
// possible size.
func TestRun(t *testing.T) {
	var told []string
	last := -1.0
	rep, err := Run(Options{Threads: []int{1, 2}, Seconds: 0.01, Bytes: 100e6, Rows: []int{5}, Progress: func(s string, done, all float64) {
		if done < last || done > all || all != 0.02 {
			t.Errorf("%s: %v of %v s after %v", s, done, all, last)
		}
		if last = done; !slices.Contains(told, s) {
			told = append(told, s)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := names
	if all, err := variants(); err != nil {
		t.Fatal(err)
	} else if len(all) == 1 {
		want = names[:31+2*len(tensor.StoredEncodings())]
	}
	for _, threads := range []int{1, 2} {
		var got []string
		for _, k := range rep.Kernels {
			if k.Threads != threads {
				continue
			}
			got = append(got, k.Name)
			if k.GBps < 0.001 || k.Best > 1e4 || k.P50 > k.P90 || k.P90 > k.P99 || k.Ratio <= 0 || k.BestRatio <= 0 || k.Windows < 1 || (k.GOPS > 0) != strings.HasSuffix(k.Name, "_m5") {
				t.Errorf("%+v", k)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d threads: %q", threads, got)
		}
	}
	if len(rep.Read) != 2 || len(rep.Read[1].Loops) != len(cpu.ReadLoops) || rep.ReadGBps != rep.Read[1].GBps || len(told) != 2 || last != 0.02 {
		t.Errorf("%+v, told %q", rep.Read, told)
	}
	if rep.Bytes < 100e6 || rep.Bytes%read.WindowBytes != 0 {
		t.Errorf("%d bytes", rep.Bytes)
	}
}

func TestRefusesWhatDoesNotFit(t *testing.T) {
	_, err := Run(Options{Threads: []int{1}, Bytes: 8e9, Available: 9e9})
	if err == nil || !strings.Contains(err.Error(), "--size") || !strings.Contains(err.Error(), "9.00 GB are available") {
		t.Errorf("%v", err)
	}
}

// TestNothingTwice: weights come back only after the whole set has been handed out, and scales stay
// inside their memory.
func TestNothingTwice(t *testing.T) {
	s := &set{values: make([]byte, 1<<20)}
	taken := make([]int, 0, 100) // starts, in order
	for i := range 300 {
		n := 1000 + 77*i%5000
		at := s.take(n)
		if at%alignment != 0 || at+n > len(s.values) {
			t.Fatalf("%d bytes at %d", n, at)
		}
		if at == 0 {
			taken = taken[:0]
		}
		if len(taken) > 0 && at <= taken[len(taken)-1] {
			t.Fatalf("%d after %v", at, taken)
		}
		taken = append(taken, at)
	}
	for _, f := range formats {
		b := &builder{set: s}
		s.at = 0
		w := b.weights(matrix(f, 64, hidden))
		if w.ScaleAt*scaleShare != w.ValueAt || w.ScaleBytes() > w.ValueBytes()/scaleShare {
			t.Errorf("%+v: %d bytes of scales for %d of values", f, w.ScaleBytes(), w.ValueBytes())
		}
	}
}

// example returns a report of made-up samples: with two threads, a machine that had two cores for
// three rounds of four.
func example(t *testing.T) *Report {
	t.Helper()
	r := &Report{Level: "avx512", Bytes: 805306368, Seconds: 8}
	for _, threads := range []int{1, 2} {
		dev, err := cpu.New(cpu.Options{Threads: threads})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		reader := read.New(dev)
		gemv, gemm := &kernel{name: "gemv_int4_g128"}, &kernel{name: "gemm_int4_g128_m48", ops: 1}
		for round := range 4 {
			state, rate := "", 30e9
			if threads == 2 {
				state, rate = "two cores", 50e9
				if round == 1 {
					state, rate = "one core", 33e9
				}
			}
			reader.Fake(rate)
			gemv.rates.Add(0.95 * rate)
			gemm.rates.Add(0.1 * rate)
			gemm.speeds.Add(20 * rate)
			reader.Mark(state)
			for _, k := range []*kernel{gemv, gemm} {
				k.rates.Mark(state)
				k.speeds.Mark(state)
			}
		}
		r.add(threads, reader, []*kernel{gemv, gemm})
	}
	r.sum()
	return r
}

// TestScalingChart: with three numbers of threads there is a line for reads and for each kernel of
// one row.
func TestScalingChart(t *testing.T) {
	r := &Report{}
	for i, threads := range []int{1, 2, 4} {
		r.Read = append(r.Read, Read{Threads: threads, GBps: 10 * float64(i+1)})
		r.Kernels = append(r.Kernels, Kernel{Name: "gemv_int8", Threads: threads, GBps: 9 * float64(i+1)},
			Kernel{Name: "gemm_int8_m48", Threads: threads, GOPS: 1}, Kernel{Name: "gemv_int8_avx2", Threads: threads, GBps: 1})
	}
	charts := r.Charts()
	if len(charts) != 3 || len(charts[2].Series) != 2 {
		t.Fatalf("%+v", charts)
	}
	if s := charts[2].Series[1]; s.Name != "gemv_int8" || !slices.Equal(s.X, []float64{1, 2, 4}) || !slices.Equal(s.Y, []float64{9, 18, 27}) {
		t.Errorf("%+v", s)
	}
}

// TestReport holds the report of made-up samples, as JSON, text and charts, against a golden file.
func TestReport(t *testing.T) {
	r := example(t)
	var b bytes.Buffer
	for _, v := range []any{r, r.Charts()} {
		enc := json.NewEncoder(&b)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(&b)
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "report.golden")
	if *rewrite {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("got\n%s\nwant\n%s", b.Bytes(), want)
	}
}
