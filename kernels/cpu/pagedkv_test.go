package cpu_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// kvTypes are the element types of a cache.
var kvTypes = []tensor.DType{tensor.F32, tensor.BF16, tensor.F8E4M3, tensor.I8}

// newKV makes a cache with values in it; it gives what is stored. Rows of 8 bits and their scales
// lie apart.
func newKV(d *cpu.Device, dt tensor.DType, values []float32, rows, width, group int) (device.KV, []float32) {
	if dt == tensor.F32 || dt == tensor.BF16 {
		m, stored := floats(d, dt, values, rows, width)
		return device.KV{Mat: m}, stored
	}
	const gap = 3
	slots := make([]int32, rows)
	for i := range slots {
		slots[i] = int32(i)
	}
	c := device.KV{Mat: wrap(d, dt, make([]uint8, rows*(width+gap)), rows, width+gap).ColRange(0, width)}
	if dt == tensor.F8E4M3 {
		cells := make([]uint8, rows*width)
		ref.StoreRowsF8(cells, values, slots, width)
		for r := range rows {
			copy(c.Buf.Host()[r*c.Stride:], cells[r*width:(r+1)*width])
		}
		return c, ref.WidenF8(cells)
	}
	groups := width / group
	cells, scales := make([]int8, rows*width), make([]float32, rows*groups)
	ref.StoreRowsI8(cells, scales, values, slots, width, group)
	apart := make([]float32, rows*(groups+1))
	for r := range rows {
		copy(c.Buf.Host()[r*c.Stride:], kerneltest.Bytes(cells[r*width:(r+1)*width]))
		copy(apart[r*(groups+1):], scales[r*groups:(r+1)*groups])
	}
	c.Scales, c.Group = f32s(d, apart, rows, groups+1).ColRange(0, groups), group
	return c, ref.WidenI8(cells, scales, width, group)
}

// Stored rows have the bits of ref, and nothing outside the rows is written.
func TestStoreRowsOf8Bits(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for width := 1; width < 200; width += 7 {
			for _, group := range []int{1, 5, width} {
				if width%group != 0 {
					continue
				}
				const rows = 9
				r := kerneltest.Rand(uint64(width))
				before, src := kerneltest.Normal(r, rows*width, 1), kerneltest.Normal(r, 3*width, 2)
				for i := 0; i < len(src); i += 5 {
					src[i] = []float32{float32(math.NaN()), float32(math.Inf(1)), -1e30, 1e-6, 0, float32(math.Inf(-1))}[i/5%6]
				}
				slots := []int32{8, 0, 5}
				for _, dt := range kvTypes[2:] {
					cache, _ := newKV(d, dt, before, rows, width, group)
					expected := slices.Clone(before)
					for i, slot := range slots {
						copy(expected[int(slot)*width:], src[i*width:(i+1)*width])
					}
					want, _ := newKV(d, dt, expected, rows, width, group)
					d.StoreRows(s, cache, f32s(d, src, 3, width), wrap(d, tensor.I32, slots, 3, 1))
					if !slices.Equal(cache.Buf.Host(), want.Buf.Host()) {
						t.Fatalf("%s, width %d, group %d: %v, want %v", dt, width, group, cache.Buf.Host(), want.Buf.Host())
					}
					if dt == tensor.I8 && !slices.Equal(cache.Scales.Buf.Host(), want.Scales.Buf.Host()) {
						t.Fatalf("width %d, group %d: other scales", width, group)
					}
				}
			}
		}
	})
}

// TestStoreRowsMarks: rows with a NaN or an infinity are noted once, whatever the cache is of;
// values whose squares overflow are no such.
func TestStoreRowsMarks(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		const rows, width, group = 6, 40, 8
		for at := range width {
			for _, dt := range kvTypes {
				src := kerneltest.Normal(kerneltest.Rand(uint64(at)), rows*width, 1)
				src[at], src[width+at] = float32(math.NaN()), float32(math.Inf(-1))
				src[2*width+at], src[3*width+at] = float32(math.Inf(1)), 3e38
				src[5*width+at] = float32(math.NaN())
				cache, _ := newKV(d, dt, make([]float32, rows*width), rows, width, group)
				marks := []int32{0, 0, 0, 0, 0, 2}
				cache.Marks, cache.Mark = wrap(d, tensor.I32, marks, rows, 1), 4
				d.StoreRows(s, cache, f32s(d, src, rows, width), wrap(d, tensor.I32, []int32{0, 1, 2, 3, 4, 5}, rows, 1))
				if got := cache.Marks.I32s(); !slices.Equal(got, []int32{4, 4, 4, 0, 0, 2}) {
					t.Fatalf("%s, column %d: marks %v", dt, at, got)
				}
			}
		}
	})
}

// A NaN or an infinity is gone when it was stored: what is read back is finite.
func TestCacheOf8BitsHoldsNoNaN(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, dt := range kvTypes[2:] {
		_, stored := newKV(device1(t), dt, []float32{nan, 1, inf, -inf, math.MaxFloat32, -1000, nan, nan}, 2, 4, 2)
		for i, v := range stored {
			if v != v || math.IsInf(float64(v), 0) {
				t.Errorf("%s: value %d is %g", dt, i, v)
			}
		}
		if stored[0] != 0 || stored[6] != 0 || !(stored[2] > 400) || !(stored[3] < -400) {
			t.Errorf("%s: %g", dt, stored)
		}
	}
}

// device1 returns a device of its own.
func device1(t *testing.T) *cpu.Device {
	t.Helper()
	d, _ := open(t, cpu.Options{})
	return d
}

func TestCacheOf8BitsIsChecked(t *testing.T) {
	d, s := open(t, cpu.Options{})
	const rows, width, group = 32, 24, 4
	p := device.MLA{Heads: 2, Nope: 8, Rope: 8, V: 8, Rank: 16, Scale: 1, BlockTokens: 16}
	g := device.GQA{Heads: 1, KVHeads: 1, HeadDim: 12, Scale: 1, BlockTokens: 16}
	good, _ := newKV(d, tensor.I8, make([]float32, rows*width), rows, width, group)
	kvB, _ := floats(d, tensor.F32, make([]float32, 32*16), 32, 16)
	zeros := func(cols int) device.Mat { return f32s(d, make([]float32, cols), 1, cols) }
	slot := wrap(d, tensor.I32, []int32{0}, 1, 1)
	spans := []device.Span{{Len: 1, Blocks: []int32{1}}}
	ops := map[string]func(c device.KV){
		"StoreRows": func(c device.KV) { d.StoreRows(s, c, zeros(width), slot) },
		"MLADecode": func(c device.KV) {
			d.MLADecode(s, zeros(16), zeros(32), c, device.KVB{F: kvB}, device.Spans{List: spans}, p)
		},
		"MLAPrefill": func(c device.KV) {
			d.MLAPrefill(s, zeros(16), zeros(32), c, device.KVB{F: kvB}, device.Spans{List: spans}, p)
		},
		"GQA": func(c device.KV) { d.GQA(s, zeros(12), zeros(12), c, device.Mat{}, device.Spans{List: spans}, g) },
	}
	for op, f := range ops {
		f(good)
		for name, change := range map[string]func(c *device.KV){
			"no scales":     func(c *device.KV) { c.Scales = device.Mat{} },
			"no group":      func(c *device.KV) { c.Group = 0 },
			"group":         func(c *device.KV) { c.Group, c.Scales.Cols = 5, 4 },
			"negative":      func(c *device.KV) { c.Group = -4 },
			"few scales":    func(c *device.KV) { c.Scales.Cols-- },
			"scale rows":    func(c *device.KV) { c.Scales.Rows-- },
			"scale type":    func(c *device.KV) { c.Scales.DType = tensor.I32 },
			"type":          func(c *device.KV) { c.DType = tensor.U8 },
			"width":         func(c *device.KV) { c.Cols--; c.Group, c.Scales.Cols = 1, 23 },
			"beyond memory": func(c *device.KV) { c.Off = 5 },
		} {
			bad := good
			change(&bad)
			t.Run(op+"/"+name, func(t *testing.T) { panicsWith(t, op, func() { f(bad) }) })
		}
	}
	// A group that divides the row but not what it is made of.
	mixed, _ := newKV(d, tensor.I8, make([]float32, rows*width), rows, width, 12)
	ops["GQA"](mixed)
	panicsWith(t, "MLADecode", func() { ops["MLADecode"](mixed) })
	whole, _ := newKV(d, tensor.I8, make([]float32, rows*width), rows, width, 24)
	panicsWith(t, "GQA", func() { ops["GQA"](whole) })
}

// BenchmarkDecodeKV is a decoded row over caches of every type, taken in turn so that what else the
// machine does meets all.
func BenchmarkDecodeKV(b *testing.B) {
	lite := device.MLA{Heads: 16, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.1, BlockTokens: 64}
	dense := device.GQA{Heads: 28, KVHeads: 4, HeadDim: 128, Scale: 0.1, BlockTokens: 64}
	small := device.GQA{Heads: 14, KVHeads: 2, HeadDim: 64, Scale: 0.1, BlockTokens: 64}
	for _, depth := range []int{2000, 8000} {
		for _, threads := range []int{1, 2} {
			for _, name := range []string{"v2lite", "qwen7b", "qwen0.5b"} {
				b.Run(fmt.Sprintf("%s/ctx%d/threads%d", name, depth, threads), func(b *testing.B) {
					d, s := open(b, cpu.Options{Threads: threads})
					// Four caches of a type, so that none is where the last step left it.
					const layers = 4
					times := make([][]float64, len(kvTypes))
					steps := make([]func(layer int), len(kvTypes))
					for i, dt := range kvTypes {
						steps[i] = decodeStep(b, d, s, name, dt, depth, layers, lite, dense, small)
					}
					for b.Loop() {
						for i, step := range steps {
							for layer := range layers {
								times[i] = append(times[i], elapsed(func() { step(layer) }))
							}
						}
					}
					for i := range times {
						slices.Sort(times[i])
					}
					b.ReportMetric(times[1][len(times[1])/2], "bf16-us")
					for i, dt := range kvTypes {
						b.ReportMetric(times[i][len(times[i])/2]/times[1][len(times[1])/2], dt.String()+"/bf16")
					}
				})
			}
		}
	}
}

// decodeStep is attention of one row with a cache of some layers.
func decodeStep(b *testing.B, d *cpu.Device, s device.Stream, name string, dt tensor.DType, depth, layers int, lite device.MLA, dense, small device.GQA) func(layer int) {
	width, group, heads, values := lite.Rank+lite.Rope, 64, lite.Heads*(lite.Nope+lite.Rope), lite.Heads*lite.V
	p := dense
	if name != "v2lite" {
		if name == "qwen0.5b" {
			p = small
		}
		width, group, heads, values = p.Width(), p.HeadDim, p.Heads*p.HeadDim, p.Heads*p.HeadDim
	}
	slots := (depth + 64) / 64 * 64
	var caches []device.KV
	for range layers {
		c, err := device.AllocKV(d, dt, slots, width, group)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(c.Free)
		row, at := f32s(d, kerneltest.Normal(kerneltest.Rand(1), width, 1), 1, width), []int32{0}
		for i := range slots {
			at[0] = int32(i)
			d.StoreRows(s, c, row, wrap(d, tensor.I32, at, 1, 1))
		}
		caches = append(caches, c)
	}
	blocks := make([]int32, slots/64)
	for i := range blocks {
		blocks[i] = int32(i)
	}
	spans := []device.Span{{Len: 1, Pos: depth - 1, Blocks: blocks}}
	q, out := f32s(d, kerneltest.Normal(kerneltest.Rand(2), heads, 1), 1, heads), f32s(d, make([]float32, values), 1, values)
	kvB, _ := floats(d, tensor.BF16, kerneltest.Normal(kerneltest.Rand(3), lite.Heads*(lite.Nope+lite.V)*lite.Rank, 0.1), lite.Heads*(lite.Nope+lite.V), lite.Rank)
	return func(layer int) {
		if name == "v2lite" {
			d.MLADecode(s, out, q, caches[layer], device.KVB{F: kvB}, device.Spans{List: spans}, lite)
		} else {
			d.GQA(s, out, q, caches[layer], device.Mat{}, device.Spans{List: spans}, p)
		}
	}
}

// elapsed returns the time of f in microseconds.
func elapsed(f func()) float64 {
	start := time.Now()
	f()
	return float64(time.Since(start).Nanoseconds()) / 1e3
}
