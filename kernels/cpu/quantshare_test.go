package cpu_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/tensor"
)

// The experts of three layers of DeepSeek-V2-Lite.
const (
	liteH, liteF, liteTopK = 2048, 1408, 6
	liteExperts            = 3 * 64
)

// noise is memory full of it, every page touched.
func noise(b *testing.B, d *cpu.Device, n int) device.Buffer {
	buf, err := d.Alloc(n)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(buf.Free)
	some := make([]byte, 1<<16+7)
	r := kerneltest.Rand(1)
	for i := range some {
		some[i] = byte(r.Uint32())
	}
	for at := 0; at < n; {
		at += copy(buf.Host()[at:], some)
	}
	return buf
}

// quantMat returns a matrix in noise from byte at on: values, then scales of about 0.01.
func quantMat(f tensor.Layout, buf device.Buffer, at int) device.QMat {
	m := device.QMat{Layout: f, Values: buf, ValueAt: at, Scales: buf, ScaleAt: at + f.ValueBytes()}
	scales := buf.Host()[m.ScaleAt:][:f.ScaleBytes()]
	for i := 1; i < len(scales); i += 2 {
		scales[i] = scales[i]&0x80 | 0x3c
	}
	return m
}

// liteBank makes the experts one after another; group 0 is per channel.
func liteBank(b *testing.B, d *cpu.Device, experts, bits, group int) (bank []device.QExpert, memory []byte) {
	f13 := tensor.Layout{Format: tensor.Integers(bits).By(group), Rows: 2 * liteF, Cols: liteH}
	f2 := tensor.Layout{Format: tensor.Integers(bits).By(group), Rows: liteH, Cols: liteF}
	if group == 0 {
		f13.Group, f2.Group = liteH, liteF
	}
	size13 := f13.ValueBytes() + f13.ScaleBytes()
	each := size13 + f2.ValueBytes() + f2.ScaleBytes()
	buf := noise(b, d, experts*each)
	for i := range experts {
		bank = append(bank, device.QExpert{W13: quantMat(f13, buf, i*each), W2: quantMat(f2, buf, i*each+size13)})
	}
	return bank, buf.Host()
}

// quantile of sorted values.
func quantile(v []float64, q float64) float64 { return v[int(q*float64(len(v)-1))] }

// BenchmarkQuantShareOfRead streams 0.8 GB and more through integer kernels. Windows of some 25 MB
// alternate with plain reads of as much of the same memory, so that what else the machine does
// meets both; they are short so that the best ones met nothing. gemv: one matrix, at the distances
// of prefetch there are; decode: tokens one after another through six experts of their own, with
// all that belongs to ExpertsQ.
func BenchmarkQuantShareOfRead(b *testing.B) {
	for _, l := range level.Available()[1:] {
		for _, bits := range []int{4, 8} {
			for _, group := range []int{32, 128, 0} {
				for threads := 1; threads <= runtime.NumCPU(); threads *= 2 {
					run := func(name string, f func(b *testing.B, d *cpu.Device, s device.Stream)) {
						b.Run(fmt.Sprintf("%s/int%d/g%d/threads%d/%s", l, bits, group, threads, name), func(b *testing.B) {
							d, s := open(b, cpu.Options{Threads: threads, Level: l})
							f(b, d, s)
						})
					}
					for _, ahead := range []int{0, 4096, 8192} {
						run(fmt.Sprintf("gemv%d", ahead), func(b *testing.B, d *cpu.Device, s device.Stream) {
							d.SetAhead(ahead)
							gemvShare(b, d, s, bits, group)
						})
					}
					for _, tokens := range []int{1, 4} {
						run(fmt.Sprintf("decode%d", tokens), func(b *testing.B, d *cpu.Device, s device.Stream) {
							decodeShare(b, d, s, bits, group, tokens)
						})
					}
				}
			}
		}
	}
}

func gemvShare(b *testing.B, d *cpu.Device, s device.Stream, bits, group int) {
	f := tensor.Layout{Format: tensor.Integers(bits).By(group), Rows: 16 * liteF, Cols: liteH}
	if group == 0 {
		f.Group = liteH
	}
	const matrices = 36
	memory := noise(b, d, matrices*(f.ValueBytes()+f.ScaleBytes()))
	size := len(memory.Host()) / matrices
	var w [matrices]device.QMat
	for i := range w {
		w[i] = quantMat(f, memory, i*size)
	}
	rows := newGuardedRows(d, 1, liteH, f.Group, 0).QRows
	d.QuantizeRows(s, rows, f32s(d, kerneltest.Normal(kerneltest.Rand(1), liteH, 1), 1, liteH))
	out := f32s(d, make([]float32, f.Rows), 1, f.Rows)
	next := 0
	shareOfRead(b, size, func() {
		d.MatMulQ(s, out, rows, w[next])
		next = (next + 1) % matrices
	}, func() {
		d.Read(cpu.ReadTurns, memory.Host()[next*size:][:size])
		next = (next + 1) % matrices
	})
}

func decodeShare(b *testing.B, d *cpu.Device, s device.Stream, bits, group, tokens int) {
	bank, memory := liteBank(b, d, liteExperts, bits, group)
	x := f32s(d, kerneltest.Normal(kerneltest.Rand(1), tokens*liteH, 1), tokens, liteH)
	y := f32s(d, make([]float32, tokens*liteTopK*liteH), tokens*liteTopK, liteH)
	rows := newGuardedRows(d, tokens, liteH, bank[0].W13.Group, 0).QRows
	size := len(memory) / len(bank) * liteTopK // of six experts
	var work [liteTopK]device.ExpertRows
	for i := range work {
		for t := range tokens {
			work[i].Assign = append(work[i].Assign, int32(t*liteTopK+i))
		}
	}
	next := 0 // expert
	shareOfRead(b, size, func() {
		for i := range work {
			work[i].Expert = int32(next + i)
		}
		next = (next + liteTopK) % len(bank)
		d.QuantizeRows(s, rows, x)
		d.ExpertsQ(s, y, rows, bank, work[:], liteTopK)
	}, func() {
		d.Read(cpu.ReadTurns, memory[next/liteTopK*size:][:size])
		next = (next + liteTopK) % len(bank)
	})
}

// shareOfRead takes windows of both in turn; each reads size bytes.
func shareOfRead(b *testing.B, size int, compute, plain func()) {
	var own, read []float64
	rate := func(f func()) float64 {
		start := time.Now()
		f()
		return float64(size) / float64(time.Since(start).Nanoseconds())
	}
	for b.Loop() {
		own, read = append(own, rate(compute)), append(read, rate(plain))
	}
	slices.Sort(own)
	slices.Sort(read)
	b.ReportMetric(quantile(own, 0.5), "P50-GB/s")
	b.ReportMetric(quantile(own, 0.9), "P90-GB/s")
	b.ReportMetric(quantile(read, 0.5), "READ-P50-GB/s")
	b.ReportMetric(quantile(read, 0.9), "READ-P90-GB/s")
	b.ReportMetric(quantile(own, 0.5)/quantile(read, 0.5), "share-P50")
	b.ReportMetric(quantile(own, 0.9)/quantile(read, 0.9), "share-P90")
}

// BenchmarkQuantPrefill is the experts of a prompt: 48 tokens an expert, as 512 tokens give on
// average to the 64 experts of DeepSeek-V2-Lite. Calls are short (an expert a thread), so that the
// best ones met nothing else on the machine.
func BenchmarkQuantPrefill(b *testing.B) {
	for _, l := range level.Available()[1:] {
		for _, bits := range []int{4, 8} {
			for _, group := range []int{32, 128, 0} {
				for threads := 1; threads <= runtime.NumCPU(); threads *= 2 {
					b.Run(fmt.Sprintf("%s/int%d/g%d/threads%d", l, bits, group, threads), func(b *testing.B) {
						d, s := open(b, cpu.Options{Threads: threads, Level: l})
						prefill(b, d, s, bits, group, threads)
					})
				}
			}
		}
	}
}

func prefill(b *testing.B, d *cpu.Device, s device.Stream, bits, group, experts int) {
	const tokens = 48
	bank, _ := liteBank(b, d, 64, bits, group)
	x := f32s(d, kerneltest.Normal(kerneltest.Rand(1), tokens*liteH, 1), tokens, liteH)
	y := f32s(d, make([]float32, tokens*experts*liteH), tokens*experts, liteH)
	rows := newGuardedRows(d, tokens, liteH, bank[0].W13.Group, 64).QRows
	work := make([]device.ExpertRows, experts)
	for e := range work {
		for t := range tokens {
			work[e].Assign = append(work[e].Assign, int32(t*experts+e))
		}
	}
	var rates []float64
	for next := 0; b.Loop(); next += experts {
		for e := range work {
			work[e].Expert = int32((next + e) % len(bank))
		}
		start := time.Now()
		d.QuantizeRows(s, rows, x)
		d.ExpertsQ(s, y, rows, bank, work, experts)
		rates = append(rates, float64(2*3*tokens*experts*liteH*liteF)/float64(time.Since(start).Nanoseconds()))
	}
	slices.Sort(rates)
	for _, q := range []float64{0.5, 0.75, 0.9, 1} {
		b.ReportMetric(quantile(rates, q), fmt.Sprintf("P%.0f-GFLOP/s", 100*q))
	}
}
