package cpu_test

import (
	"fmt"
	"math"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/btile"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// unitSizes are sizes that the tile unit takes, with groups of kv_b's integers.
var unitSizes = []kvbCase{
	{device.MLA{Heads: 5, Nope: 16, Rope: 16, V: 32, Rank: 32, Scale: 0.2, BlockTokens: 16}, 0, 32},
	{device.MLA{Heads: 2, Nope: 128, Rope: 64, V: 128, Rank: 96, Scale: 0.05, BlockTokens: 5}, 64, 32},
	{device.MLA{Heads: 3, Nope: 66, Rope: 30, V: 64, Rank: 32, Scale: 0.1, BlockTokens: 1}, 32, 0},
}

// unitScene is a scene for the tile unit; every second has kv_b in integers, and kvs holds what they stand for.
func unitScene(d *cpu.Device, i, positions, rows int) *scene {
	size := unitSizes[i]
	c := newScene(d, size.p, []tensor.DType{tensor.BF16, tensor.F8E4M3}[i%2], tensor.BF16, positions, rows)
	if i%2 == 1 {
		var w ref.KVB
		c.kvB, w = newKVB(d, size, tensor.INT4)
		c.kvs = w.Widen(size.p)
	}
	return c
}

// Prompts on the tile unit are within the roundings of keys and values to BF16.
func TestMLAOnTheTileUnit(t *testing.T) {
	d, s := openTiles(t, 3)
	plain, ps := open(t, cpu.Options{Threads: 1, Level: d.Level()})
	for i, size := range unitSizes {
		c := unitScene(d, i, 180, 90)
		spans := []device.Span{
			{Row: 0, Len: 1, Pos: 0, Blocks: c.table}, {Row: 1, Len: 7, Pos: 3, Blocks: c.table[1:]}, {Row: 8, Len: 80, Pos: 90, Blocks: c.table},
			{Row: 88, Len: 1, Pos: 127, Blocks: c.table}, {Row: 89, Len: 1, Pos: 128, Blocks: c.table},
		}
		want := make([]float32, c.rows*size.p.Heads*size.p.V)
		ref.MLA(want, c.q, c.cacheRef, c.kvs, spans, size.p)
		got, on := c.run(t, forms[0], d, s, spans), unitScene(plain, i, 180, 90)
		out, q := f32s(d, make([]float32, len(got)), c.rows, size.p.Heads*size.p.V), f32s(d, c.q, c.rows, size.p.Heads*(size.p.Nope+size.p.Rope))
		var off, all float64
		for j, v := range want {
			off, all = off+math.Pow(float64(got[j])-float64(v), 2), all+math.Pow(float64(v), 2)
		}
		distance := math.Sqrt(off / all)
		t.Logf("heads of %d and %d: relative distance %.1e", size.p.Nope+size.p.Rope, size.p.V, distance)
		if !(distance < 0x1p-8) {
			t.Errorf("%+v: relative distance %g", size.p, distance)
		}
		if n := kerneltest.Allocations(func() {
			d.MLAPrefill(s, out, q, c.cache, c.kvB, device.Spans{List: spans}, c.p)
		}); n > 0 {
			t.Errorf("%+v: %v allocations a run", size.p, n)
		}
		if kerneltest.SameBits(got, on.run(t, forms[0], plain, ps, spans)) == nil {
			t.Errorf("%+v: prompts have the bits that they have without the unit", size.p)
		}
	}
}

// Neither chunks nor other sequences nor threads change a bit of a prompt.
func TestMLAOnTheTileUnitIsBatchInvariant(t *testing.T) {
	n, sizes := 1100, unitSizes // more keys than are expanded at once
	if testing.Short() {
		n, sizes = 140, sizes[:1]
	}
	for i, size := range sizes {
		var whole []float32
		for _, threads := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d/%d", i, threads), func(t *testing.T) {
				d, s := openTiles(t, threads)
				c := unitScene(d, i, n, n)
				if got := c.run(t, forms[0], d, s, []device.Span{{Row: 0, Len: n, Pos: 0, Blocks: c.table}}); whole == nil {
					whole = got
				} else if err := kerneltest.SameBits(got, whole); err != nil {
					t.Fatal(err)
				}
				width := size.p.Heads * size.p.V
				for row := 0; row < n; row += n / 7 {
					span := device.Span{Row: row, Len: 1, Pos: row, Blocks: c.table}
					if err := kerneltest.SameBits(c.run(t, forms[0], d, s, []device.Span{span})[row*width:][:width], whole[row*width:][:width]); err != nil {
						t.Fatalf("row %d alone: %v", row, err)
					}
				}
				for _, chunk := range []int{n / 3, 32, 129, n - 1} {
					var spans []device.Span
					for from := 0; from < n; from += chunk {
						spans = append(spans, device.Span{Row: from, Len: min(chunk, n-from), Pos: from, Blocks: c.table})
					}
					if err := kerneltest.SameBits(c.run(t, forms[0], d, s, spans), whole); err != nil {
						t.Fatalf("chunks of %d: %v", chunk, err)
					}
				}
			})
		}
	}
}

// Generated rows on the tile unit are close to those without it, and neither threads nor other rows change a bit.
func TestMLADecodeOnTheTileUnit(t *testing.T) {
	sizes := []kvbCase{
		{device.MLA{Heads: 5, Nope: 16, Rope: 32, V: 32, Rank: 64, Scale: 0.2, BlockTokens: 32}, 0, 32},
		{device.MLA{Heads: 18, Nope: 8, Rope: 0, V: 8, Rank: 128, Scale: 0.1, BlockTokens: 5}, 0, 32},
	}
	for i, size := range sizes {
		for j, cacheType := range []tensor.DType{tensor.BF16, tensor.F8E4M3} {
			const positions, rows = 560, 6
			plain, ps := open(t, cpu.Options{Threads: 1})
			scene := func(d *cpu.Device) *scene {
				c := newScene(d, size.p, cacheType, tensor.BF16, positions, rows)
				if (i+j)%2 == 1 {
					c.kvB, _ = newKVB(d, size, tensor.INT8)
				}
				return c
			}
			c := scene(plain)
			spans := []device.Span{{Row: 0, Len: 1, Pos: 0, Blocks: c.table}, {Row: 1, Len: 2, Pos: 254, Blocks: c.table}, {Row: 3, Len: 1, Pos: 557, Blocks: c.table}, {Row: 4, Len: 2, Pos: 99, Blocks: c.table}}
			want := c.run(t, forms[1], plain, ps, spans)
			width := size.p.Heads * size.p.V
			var first []float32
			for _, threads := range []int{1, 3} {
				d, s := openTiles(t, threads)
				c := scene(d)
				got := c.run(t, forms[1], d, s, spans)
				for _, span := range spans {
					one := c.run(t, forms[1], d, s, []device.Span{span})
					if err := kerneltest.SameBits(one[span.Row*width:][:span.Len*width], got[span.Row*width:][:span.Len*width]); err != nil {
						t.Fatalf("%+v, %s, %d threads, row %d alone: %v", size.p, cacheType, threads, span.Row, err)
					}
				}
				if first == nil {
					first = got
				} else if err := kerneltest.SameBits(got, first); err != nil {
					t.Fatalf("%+v, %s, %d threads: %v", size.p, cacheType, threads, err)
				}
			}
			var off, all float64
			for k, v := range want {
				off, all = off+math.Pow(float64(first[k])-float64(v), 2), all+math.Pow(float64(v), 2)
			}
			distance := math.Sqrt(off / all)
			t.Logf("%d heads, %s: relative distance %.1e", size.p.Heads, cacheType, distance)
			if most := []float64{0x1p-14, 0x1p-8}[(i+j)%2]; !(distance > 0 && distance < most) { // latents are rounded for integers
				t.Errorf("%+v, %s: relative distance %g", size.p, cacheType, distance)
			}
		}
	}
}

// BenchmarkMLATiles compares prompts on the tile unit with multiply-adds, on one core.
func BenchmarkMLATiles(b *testing.B) {
	lite := device.MLA{Heads: 4, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.1, BlockTokens: 64}
	for _, pos := range []int{0, 6144} {
		for _, unit := range []bool{false, true} {
			b.Run(fmt.Sprintf("pos%d/%v", pos, unit), func(b *testing.B) {
				if unit && btile.Available() != nil {
					b.Skip(btile.Available())
				}
				const rows = 2048
				d, s := open(b, cpu.Options{Threads: 1, TileBF16: unit})
				c := newScene(d, lite, tensor.BF16, tensor.BF16, pos+rows, rows)
				out := f32s(d, make([]float32, rows*lite.Heads*lite.V), rows, lite.Heads*lite.V)
				q := f32s(d, c.q, rows, lite.Heads*(lite.Nope+lite.Rope))
				spans := []device.Span{{Row: 0, Len: rows, Pos: pos, Blocks: c.table}}
				ns := kerneltest.Quartile(b, 1, func() { forms[0].run(d, s, out, q, c.cache, c.kvB, spans, lite) })
				kerneltest.Report(b, ns, 0, 2*lite.Heads*(rows*pos+rows*rows/2)*(lite.Nope+lite.Rope+lite.V))
			})
		}
	}
}

// BenchmarkMLADecodeTiles compares generated rows on the tile unit with multiply-adds, on one core.
func BenchmarkMLADecodeTiles(b *testing.B) {
	lite := device.MLA{Heads: 16, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.1, BlockTokens: 64}
	for _, pos := range []int{255, 2047, 8191} {
		for _, unit := range []bool{false, true} {
			b.Run(fmt.Sprintf("pos%d/%v", pos, unit), func(b *testing.B) {
				if unit && btile.Available() != nil {
					b.Skip(btile.Available())
				}
				d, s := open(b, cpu.Options{Threads: 1, TileBF16: unit})
				c := newScene(d, lite, tensor.BF16, tensor.BF16, pos+1, 1)
				out := f32s(d, make([]float32, lite.Heads*lite.V), 1, lite.Heads*lite.V)
				q := f32s(d, c.q, 1, lite.Heads*(lite.Nope+lite.Rope))
				spans := []device.Span{{Row: 0, Len: 1, Pos: pos, Blocks: c.table}}
				ns := kerneltest.Quartile(b, 1, func() { forms[1].run(d, s, out, q, c.cache, c.kvB, spans, lite) })
				kerneltest.Report(b, ns, 2*(pos+1)*(lite.Rank+lite.Rope), 2*lite.Heads*(pos+1)*(2*lite.Rank+lite.Rope))
			})
		}
	}
}
