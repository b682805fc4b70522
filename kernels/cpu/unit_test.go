package cpu_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/cpu/qtile"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// openUnit returns a device that uses the tile unit for every product it can.
func openUnit(t testing.TB, threads int) (*cpu.Device, device.Stream) {
	t.Helper()
	if err := qtile.Available(); err != nil {
		t.Skip(err)
	}
	d, s := open(t, cpu.Options{Threads: threads, Level: level.Best()})
	d.UseUnit(1)
	return d, s
}

// The tile unit gives the bits of ref, also where only a part of the tiles is for it: odd numbers
// of tiles, a last one that is not full.
func TestMatMulQOnTheTileUnit(t *testing.T) {
	d, s := openUnit(t, 3)
	d.ShareEverything()
	for i, size := range [][3]int{{32, 128, 128}, {16, 64, 64}, {50, 256, 64}, {130, 256, 128}, {15, 128, 128}, {97, 512, 256}, {64, 100, 128}, {64, 704, 704}, {50, 384, 384}} {
		n, k, group := size[0], size[1], size[2]
		w, rw := newQMat(d, uint64(i), n, k, tensor.Integers(4+4*(i%2)), group)
		for _, m := range []int{1, 5, 8, 31, 33, 130, 200} {
			x := kerneltest.Normal(kerneltest.Rand(uint64(i)+7), m*k, 1)
			got, want := kerneltest.Guard[float32](m*n, 4*(m%16)), make([]float32, m*n)
			ref.MatMulQ(want, ref.QuantizeRows(x, k, group), rw)
			d.MatMulQ(s, f32s(d, got.Data, m, n), quantized(d, s, x, m, k, group), w)
			if err := kerneltest.SameBits(got.Data, want); err != nil {
				t.Fatalf("%v, %d rows: %v", size, m, err)
			}
			if err := got.Check(); err != nil {
				t.Fatalf("%v, %d rows: %v", size, m, err)
			}
		}
	}
}

// Weights that are blocks on the tile unit: several packs, a panel of several tiles, K of several
// slices, a last tile that is not full.
func TestBlocksOnTheTileUnit(t *testing.T) {
	d, s := openUnit(t, 3)
	d.ShareEverything()
	for i, name := range tensor.StoredEncodings() {
		n, k := 16*(3+i%4)+5*(i%2), 512+1024*(i%3/2)
		w, rw := newBlocks(t, d, uint64(i), n, k, tensor.EncodingOf(name))
		for _, m := range []int{1, 5, 17, 33 + i, 64 + 9*i} {
			x := kerneltest.Normal(kerneltest.Rand(uint64(i)+7), m*k, 1)
			got, want := kerneltest.Guard[float32](m*n, 4*(m%16)), make([]float32, m*n)
			ref.MatMulQ(want, ref.QuantizeRows(x, k, tensor.BlockGroup), rw)
			d.MatMulQ(s, f32s(d, got.Data, m, n), quantized(d, s, x, m, k, tensor.BlockGroup), w)
			if err := errors.Join(kerneltest.SameBits(got.Data, want), got.Check()); err != nil {
				t.Fatalf("%s [%d, %d], %d rows: %v", name, n, k, m, err)
			}
		}
	}
}

// An expert whose rows go to the tile unit beside one whose few rows do not.
func TestExpertsOfBlocksOnTheTileUnit(t *testing.T) {
	d, s := openUnit(t, 3)
	d.UseUnit(16)
	for i := range tensor.StoredEncodings() {
		expertsOfBlocks(t, d, s, i, 40, func(a int) int { return map[bool]int{true: 1}[a < 5] })
	}
}

func TestExpertsQOnTheTileUnit(t *testing.T) {
	d, s := openUnit(t, 3)
	d.ShareEverything()
	const experts, topK, h, f, group, tokens = 4, 2, 128, 80, 64, 90
	var bank []device.QExpert
	var banks []ref.QExpert
	for i := range experts {
		e, w := newQExpert(d, uint64(i), h, f, tensor.INT4, group, 96)
		bank, banks = append(bank, e), append(banks, w)
	}
	x := kerneltest.Normal(kerneltest.Rand(5), tokens*h, 1)
	work := assignments(3, tokens, topK, experts)
	got, want := make([]float32, tokens*topK*h), make([]float32, tokens*topK*h)
	for _, item := range work {
		for _, a := range item.Assign {
			row := ref.QuantizeRows(x[int(a)/topK*h:(int(a)/topK+1)*h], h, group)
			copy(want[int(a)*h:], composed(d, row, 1, banks[item.Expert]))
		}
	}
	d.ExpertsQ(s, f32s(d, got, tokens*topK, h), quantized(d, s, x, tokens, h, group), bank, work, topK)
	if err := kerneltest.SameBits(got, want); err != nil {
		t.Fatal(err)
	}
}

// TestProbe: whatever is found is one of the candidates, or the rule, or never; and nothing without
// a unit.
func TestProbe(t *testing.T) {
	for _, l := range []level.Level{level.Pure, level.Auto} {
		d, _ := open(t, cpu.Options{Level: l})
		before, held := d.Choices(), d.Scratch()
		d.Probe()
		after := d.Choices()
		pairs := [][2]int{{before.UnitFine, after.UnitFine}, {before.UnitCoarse, after.UnitCoarse}}
		for kind, rows := range after.UnitBlocks {
			pairs = append(pairs, [2]int{before.UnitBlocks[kind], rows})
		}
		for _, x := range pairs {
			if before.UnitCoarse == 0 && x[1] != 0 || x[1] != x[0] && !slices.Contains([]int{0, 8, 12, 16, 24, 32}, x[1]) {
				t.Errorf("%s: from %d rows on before, %d after", l, x[0], x[1])
			}
		}
		if d.Scratch() != held {
			t.Errorf("%d bytes of scratch held, %d before", d.Scratch(), held)
		}
		t.Logf("%s", after)
	}
}

// BenchmarkUnit measures how many times as fast as AVX-512 the tile unit is on one core, with both in turn
// and in the second-level cache: unitFor says where it overtakes, and Probe measures it.
func BenchmarkUnit(b *testing.B) {
	formats := []tensor.Format{tensor.INT4.By(64), tensor.INT4.By(128), tensor.INT8.By(128)}
	for _, name := range tensor.StoredEncodings() {
		if e := tensor.EncodingOf(name); e.Sub() == tensor.BlockGroup { // the unit takes no others
			formats = append(formats, e.By(tensor.BlockGroup))
		}
	}
	for _, f := range formats {
		for _, m := range []int{8, 12, 16, 24, 32, 64, 128} {
			b.Run(fmt.Sprintf("%s/m%d", f, m), func(b *testing.B) {
				d, _ := openUnit(b, 1)
				for b.Loop() {
					b.ReportMetric(d.Gain(f, m), "gain")
				}
			})
		}
	}
}
