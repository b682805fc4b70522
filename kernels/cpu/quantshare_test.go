package cpu_test

import (
	"fmt"
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

// liteBank makes the experts; weights and scales of one follow one another.
func liteBank(b *testing.B, d *cpu.Device, experts, bits, group int) (bank []device.QExpert, memory []byte) {
	f13 := tensor.FormatB{Rows: 2 * liteF, Cols: liteH, Bits: bits, Group: group}
	f2 := tensor.FormatB{Rows: liteH, Cols: liteF, Bits: bits, Group: group}
	if group == 0 {
		f13.Group, f2.Group = liteH, liteF
	}
	sizes := []int{f13.ValueBytes(), f13.ScaleBytes(), f2.ValueBytes(), f2.ScaleBytes()}
	each := 0
	for _, size := range sizes {
		each += size
	}
	buf, err := d.Alloc(experts * each)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(buf.Free)
	memory = buf.Host()
	noise := make([]byte, 1<<16+7)
	r := kerneltest.Rand(1)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	for at := 0; at < len(memory); {
		at += copy(memory[at:], noise)
	}
	for i := range experts {
		at := i * each
		q := func(f tensor.FormatB) device.QMat {
			m := device.QMat{FormatB: f, Values: buf, ValueAt: at, Scales: buf, ScaleAt: at + f.ValueBytes()}
			scales := memory[m.ScaleAt : m.ScaleAt+f.ScaleBytes()]
			for j := 1; j < len(scales); j += 2 {
				scales[j] = scales[j]&0x80 | 0x3c // about 0.01
			}
			at += m.Bytes()
			return m
		}
		bank = append(bank, device.QExpert{W13: q(f13), W2: q(f2)})
	}
	return bank, memory
}

// quantile of sorted values.
func quantile(v []float64, q float64) float64 { return v[int(q*float64(len(v)-1))] }

// BenchmarkQuantShareOfRead decodes: one token after another through six experts
// of its own. Windows of about 100 MB alternate with plain reads of as much of
// the same memory, so that what else the machine does meets both.
func BenchmarkQuantShareOfRead(b *testing.B) {
	for _, l := range level.Available()[1:] {
		for _, bits := range []int{4, 8} {
			for _, group := range []int{32, 128, 0} {
				for _, threads := range []int{1, 2} {
					for _, tokens := range []int{1, 4} {
						for _, ahead := range []int{0, 4096, 8192} {
							if tokens == 4 && ahead != 8192 {
								continue
							}
							b.Run(fmt.Sprintf("%s/int%d/g%d/threads%d/tokens%d/ahead%d", l, bits, group, threads, tokens, ahead), func(b *testing.B) {
								d, s := open(b, cpu.Options{Threads: threads, Level: l})
								d.SetAhead(ahead)
								shareOfRead(b, d, s, bits, group, tokens)
							})
						}
					}
				}
			}
		}
	}
}

func shareOfRead(b *testing.B, d *cpu.Device, s device.Stream, bits, group, tokens int) {
	bank, memory := liteBank(b, d, liteExperts, bits, group)
	x := f32s(d, kerneltest.Normal(kerneltest.Rand(1), tokens*liteH, 1), tokens, liteH)
	y := f32s(d, make([]float32, tokens*liteTopK*liteH), tokens*liteTopK, liteH)
	rows := newGuardedRows(d, tokens, liteH, bank[0].W13.Group, 0).QRows
	size := len(memory) / len(bank) * liteTopK // of six experts
	perWindow := max(1, 100<<20/size)
	var work [liteTopK]device.ExpertRows
	for i := range work {
		for t := range tokens {
			work[i].Assign = append(work[i].Assign, int32(t*liteTopK+i))
		}
	}
	var own, read []float64
	next := 0 // expert
	for b.Loop() {
		start := time.Now()
		for range perWindow {
			for i := range work {
				work[i].Expert = int32((next + i) % len(bank))
			}
			next = (next + liteTopK) % len(bank)
			d.QuantizeRows(s, rows, x)
			d.ExpertsQ(s, y, rows, bank, work[:], liteTopK)
		}
		middle := time.Now()
		for range perWindow {
			d.Read(memory[next/liteTopK*size:][:size])
			next = (next + liteTopK) % len(bank)
		}
		rate := func(t time.Duration) float64 { return float64(perWindow*size) / float64(t.Nanoseconds()) }
		own, read = append(own, rate(middle.Sub(start))), append(read, rate(time.Since(middle)))
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
