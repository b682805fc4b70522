package cpu_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

func TestLayerNorm(t *testing.T) {
	r := kerneltest.Rand(3)
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, n := range []int{1, 5, 32, 129} {
			for _, dt := range dtypes {
				const rows = 3
				x := kerneltest.Normal(r, rows*n, 2)
				w, wide := floats(d, dt, kerneltest.Normal(r, n, 1), 1, n)
				b, bias := floats(d, dt, kerneltest.Normal(r, n, 1), 1, n)
				want, got := make([]float32, len(x)), slices.Clone(x)
				ref.LayerNorm(want, x, wide, bias, 1e-6)
				in := f32s(d, got, rows, n)
				d.LayerNorm(s, in, in, w, b, 1e-6)
				if err := kerneltest.Compare(got, want, n, kerneltest.Relative(want, 16, 16*kerneltest.Eps32*kerneltest.MaxAbs(want))); err != nil {
					t.Errorf("%d values, %s: %v", n, dt, err)
				}
			}
		}
	})
}

// choice is a problem of an indexer in small integers: every arithmetic is exact, and many scores are
// equal.
type choice struct {
	p          device.Index
	keys       device.KV
	kept       []float32
	q, weights []float32
	rows       int
	table      []int32
}

func newChoice(d *cpu.Device, p device.Index, dt tensor.DType, blocks, rows int) *choice {
	r := kerneltest.Rand(11)
	integers := func(n, most int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(r.IntN(2*most+1) - most)
		}
		return v
	}
	slots := blocks * p.BlockTokens
	values := integers(slots*p.Dim, 2)
	if dt == tensor.I8 {
		for i := 0; i < len(values); i += p.Dim {
			values[i] = 127 // a scale of 1
		}
	}
	c := &choice{p: p, rows: rows, q: integers(rows*p.Heads*p.Dim, 2), weights: integers(rows*p.Heads, 3)}
	c.keys, c.kept = newKV(d, dt, values, slots, p.Dim, p.Dim)
	for _, b := range r.Perm(blocks) {
		c.table = append(c.table, int32(b))
	}
	return c
}

// run returns what is chosen for spans.
func (c *choice) run(t testing.TB, d *cpu.Device, s device.Stream, spans []device.Span) []int32 {
	t.Helper()
	out := kerneltest.Guard[int32](c.rows*c.p.Positions(), 4)
	clear(out.Data)
	d.Select(s, wrap(d, tensor.I32, out.Data, c.rows, c.p.Positions()), f32s(d, c.q, c.rows, c.p.Heads*c.p.Dim), f32s(d, c.weights, c.rows, c.p.Heads),
		c.keys, device.Spans{List: spans}, c.p)
	if err := out.Check(); err != nil {
		t.Error(err)
	}
	return slices.Clone(out.Data)
}

// TestSelect: the choice is the reference's, ties included, whatever the rows beside a row are.
func TestSelect(t *testing.T) {
	for _, p := range []device.Index{
		{Heads: 3, Dim: 32, TopK: 7, BlockTokens: 16}, {Heads: 17, Dim: 5, TopK: 100, BlockTokens: 7}, {Heads: 1, Dim: 33, TopK: 1, BlockTokens: 1},
		{Heads: 6, Dim: 32, TopK: 2, Pool: 4, BlockTokens: 16}, {Heads: 2, Dim: 5, TopK: 9, Pool: 3, BlockTokens: 7},
		{Heads: 2, Dim: 5, TopK: 5, Pool: 1, BlockTokens: 7}, {Heads: 3, Dim: 7, TopK: 3, Pool: 4, Entries: true, BlockTokens: 16}, {Heads: 1, Dim: 5, TopK: 2, Pool: 10, Entries: true, BlockTokens: 7},
	} {
		for _, dt := range kvTypes {
			t.Run(fmt.Sprint(p, dt), func(t *testing.T) {
				forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
					c := newChoice(d, p, dt, 2600/p.BlockTokens+1, 12)
					spans := []device.Span{
						{Len: 1, Pos: 0, Blocks: c.table}, {Row: 1, Len: 8, Pos: 95, Blocks: c.table}, {Row: 9, Len: 1, Pos: 127, Blocks: c.table},
						{Row: 10, Len: 2, Pos: 2500, Blocks: c.table},
					}
					want := make([]int32, c.rows*p.Positions())
					ref.Select(want, c.q, c.weights, c.kept, spans, p)
					if got := c.run(t, d, s, spans); !slices.Equal(got, want) {
						t.Fatalf("chose\n%v, want\n%v", got, want)
					}
					for _, sp := range spans {
						for r := range sp.Len {
							alone := c.run(t, d, s, []device.Span{{Row: sp.Row + r, Len: 1, Pos: sp.Pos + r, Blocks: c.table}})
							if n := p.Positions(); !slices.Equal(alone[(sp.Row+r)*n:][:n], want[(sp.Row+r)*n:][:n]) {
								t.Fatalf("row %d alone: %v", sp.Row+r, alone[(sp.Row+r)*n:][:n])
							}
						}
					}
				})
			})
		}
	}
}

// TestPoolKeys: keys are the reference's, with the same bits however a sequence is cut and beside others, whose
// rows stay theirs.
func TestPoolKeys(t *testing.T) {
	for _, p := range []device.Index{{Dim: 32, Pool: 4}, {Dim: 77, Pool: 3}, {Dim: 1, Pool: 1}, {Dim: 5, Pool: 16}} {
		forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
			const rows = 40
			r, d2 := kerneltest.Rand(uint64(p.Dim)), 2*p.Dim
			x, bias, tail := kerneltest.Normal(r, rows*d2, 2), kerneltest.Normal(r, p.Pool*p.Dim, 2), kerneltest.Normal(r, 3*p.Pool*d2, 2)
			run := func(out, tail []float32, spans ...device.Span) {
				d.PoolKeys(s, f32s(d, out, rows, p.Dim), f32s(d, x, rows, d2), f32s(d, bias, p.Pool, p.Dim), device.KV{Mat: f32s(d, tail, 3*p.Pool, d2)}, device.Spans{List: spans}, p)
			}
			spans := []device.Span{{Len: 1, Pos: 4*p.Pool - 1, Slot: 2}, {Row: 2, Len: 37, Pos: 2*p.Pool + 1, Slot: 1}}
			want, wantTail := make([]float32, rows*p.Dim), slices.Clone(tail)
			ref.PoolKeys(want, x, bias, wantTail, spans, p)
			got, kept := make([]float32, rows*p.Dim), slices.Clone(tail)
			run(got, kept, spans...)
			if err := kerneltest.Compare(got, want, p.Dim, kerneltest.Relative(want, 16, 16*kerneltest.Eps32*kerneltest.MaxAbs(want))); err != nil {
				t.Fatalf("%+v: %v", p, err)
			}
			if err := kerneltest.SameBits(kept, wantTail); err != nil {
				t.Fatalf("%+v, kept: %v", p, err)
			}
			cut, parts := make([]float32, rows*p.Dim), slices.Clone(tail)
			run(cut, parts, spans[0])
			for from, n := range []int{0: 1, 1: 2, 3: 11, 14: 23} {
				if n > 0 {
					run(cut, parts, device.Span{Row: 2 + from, Len: n, Pos: spans[1].Pos + from, Slot: 1})
				}
			}
			for _, x := range [][2][]float32{{cut, got}, {parts, kept}} {
				if err := kerneltest.SameBits(x[0], x[1]); err != nil {
					t.Fatalf("%+v, in pieces: %v", p, err)
				}
			}
		})
	}
}

// TestSelectOddScores: what is not a number is chosen last, and zeros of both signs are equal.
func TestSelectOddScores(t *testing.T) {
	d, s := open(t, cpu.Options{Threads: 1})
	p := device.Index{Heads: 2, Dim: 1, TopK: 3, BlockTokens: 8}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	c := &choice{p: p, rows: 1, q: []float32{1, -1}, weights: []float32{1, -1}, table: []int32{0}}
	for _, x := range []struct {
		keys []float32
		want []int32
	}{
		{[]float32{nan, 1, nan, 2, 3, nan, nan, nan}, []int32{1, 3, 4}},
		{[]float32{nan, 1, nan, nan, nan, nan, nan, nan}, []int32{0, 1, 2}},
		{[]float32{-1, 0, float32(math.Copysign(0, -1)), 0, 0, 0, 0, 0}, []int32{1, 2, 3}},
		{[]float32{-3, -2, -1, -1, -5, -1, -1, -4}, []int32{2, 3, 5}},
		{[]float32{1, inf, 2, -inf, 3, inf, 4, 5}, []int32{1, 5, 7}},
	} {
		c.keys, c.kept = newKV(d, tensor.F32, x.keys, 8, 1, 1)
		spans := []device.Span{{Len: 1, Pos: 7, Blocks: c.table}}
		got, want := c.run(t, d, s, spans), make([]int32, 3)
		ref.Select(want, c.q, c.weights, c.kept, spans, p)
		if !slices.Equal(got, x.want) || !slices.Equal(want, x.want) {
			t.Errorf("%v: chose %v, the reference %v, want %v", x.keys, got, want, x.want)
		}
	}
}

// TestSparseMLA: rows attend to what they have chosen, or to all where they see no more than that, with the
// same bits in every batch.
func TestSparseMLA(t *testing.T) {
	for i, p := range mlaSizes {
		topK := []int{7, 130, 1}[i]
		for _, cacheType := range kvTypes {
			t.Run(fmt.Sprint(p.Heads, cacheType), func(t *testing.T) {
				forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
					const rows, pos = 12, 200
					c := newScene(d, p, cacheType, tensor.BF16, pos+rows, rows)
					spans := []device.Span{{Len: 8, Pos: max(0, topK-2), Blocks: c.table}, {Row: 8, Len: 4, Pos: pos, Blocks: c.table}}
					chosen := randomChoice(rows, topK, spans)
					run := func(decode bool) form {
						return form{"sparse", func(d *cpu.Device, s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans []device.Span, p device.MLA) {
							d.SparseMLA(s, out, q, cache, kvB, wrap(d, tensor.I32, chosen, rows, topK), device.Spans{List: spans, Decode: decode}, p)
						}}
					}
					want := make([]float32, rows*p.Heads*p.V)
					ref.SparseMLA(want, c.q, c.cacheRef, c.kvs, chosen, topK, spans, p)
					for _, decode := range []bool{false, true} {
						got := c.run(t, run(decode), d, s, spans)
						limit := 64 * kerneltest.Eps32 * kerneltest.MaxAbs(want)
						if err := kerneltest.Compare(got, want, p.Heads*p.V, kerneltest.Relative(want, 16, limit)); err != nil {
							t.Fatalf("generated %t: %v", decode, err)
						}
						width := p.Heads * p.V
						for _, sp := range spans {
							for r := range sp.Len {
								row := sp.Row + r
								alone := c.run(t, run(decode), d, s, []device.Span{{Row: row, Len: 1, Pos: sp.Pos + r, Blocks: sp.Blocks}})
								if err := kerneltest.SameBits(alone[row*width:][:width], got[row*width:][:width]); err != nil {
									t.Fatalf("row %d alone: %v", row, err)
								}
							}
						}
					}
				})
			})
		}
	}
}

// randomChoice is topK positions for each row of spans that sees more.
func randomChoice(rows, topK int, spans []device.Span) []int32 {
	r, chosen := kerneltest.Rand(5), make([]int32, rows*topK)
	for _, sp := range spans {
		for i := range sp.Len {
			if n := sp.Pos + i + 1; n > topK {
				for j, c := range r.Perm(n)[:topK] {
					chosen[(sp.Row+i)*topK+j] = int32(c)
				}
				list := chosen[(sp.Row+i)*topK:][:topK]
				if slices.Sort(list); i%2 == 1 && topK > 2 { // fewer, as behind a pool that is just complete
					list[topK-2], list[topK-1] = -1, -1
				}
			}
		}
	}
	return chosen
}

func TestSparseMLARefusesWrongChoices(t *testing.T) {
	d, s := open(t, cpu.Options{})
	c := newScene(d, mlaSizes[0], tensor.F32, tensor.F32, 64, 1)
	for _, bad := range [][]int32{{-1, 2}, {2, 41}, {0, math.MaxInt32}} {
		panicsWith(t, "SparseMLA", func() {
			c.run(t, form{"sparse", func(d *cpu.Device, s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans []device.Span, p device.MLA) {
				d.SparseMLA(s, out, q, cache, kvB, wrap(d, tensor.I32, bad, 1, 2), device.Spans{List: spans}, p)
			}}, d, s, []device.Span{{Len: 1, Pos: 40, Blocks: c.table}})
		})
	}
}

// BenchmarkSparseDecode is the attention of one generated row of GLM-5 at two lengths of context, with an
// indexer that chooses 2,048 positions, and over all.
func BenchmarkSparseDecode(b *testing.B) {
	p := device.MLA{Heads: 64, Nope: 192, Rope: 64, V: 256, Rank: 512, Scale: 0.06, BlockTokens: 64}
	x := device.Index{Heads: 32, Dim: 128, TopK: 2048, BlockTokens: 64}
	d, s := open(b, cpu.Options{})
	const most = 32 << 10
	c := newScene(d, p, tensor.BF16, tensor.BF16, most, 1)
	keys, _ := newKV(d, tensor.BF16, kerneltest.Normal(kerneltest.Rand(1), most*x.Dim, 1), most, x.Dim, x.Dim)
	chosen := wrap(d, tensor.I32, make([]int32, x.TopK), 1, x.TopK)
	q := f32s(d, kerneltest.Normal(kerneltest.Rand(2), x.Heads*x.Dim, 1), 1, x.Heads*x.Dim)
	weights := f32s(d, kerneltest.Normal(kerneltest.Rand(3), x.Heads, 1), 1, x.Heads)
	out, heads := f32s(d, make([]float32, p.Heads*p.V), 1, p.Heads*p.V), f32s(d, c.q, 1, p.Heads*(p.Nope+p.Rope))
	for _, context := range []int{2 << 10, 32 << 10} {
		spans := device.Spans{List: []device.Span{{Len: 1, Pos: context - 1, Blocks: c.table}}, Decode: true}
		for name, run := range map[string]func(){
			"select": func() { d.Select(s, chosen, q, weights, keys, spans, x) },
			"sparse": func() { d.SparseMLA(s, out, heads, c.cache, c.kvB, chosen, spans, p) },
			"dense":  func() { d.MLADecode(s, out, heads, c.cache, c.kvB, spans, p) },
		} {
			d.Select(s, chosen, q, weights, keys, spans, x)
			b.Run(fmt.Sprintf("%s/%d", name, context), func(b *testing.B) {
				for b.Loop() {
					run()
				}
			})
		}
	}
}

// BenchmarkSelect is the choice for one row of a long sequence, at the sizes of releases.
func BenchmarkSelect(b *testing.B) {
	const tokens = 32 << 10
	for _, p := range []device.Index{
		{Heads: 64, Dim: 128, TopK: 2048, BlockTokens: 32}, {Heads: 32, Dim: 128, TopK: 512, Pool: 4, BlockTokens: 32},
		{Heads: 4, Dim: 128, TopK: 512, Pool: 4, BlockTokens: 32},
	} {
		b.Run(fmt.Sprintf("heads=%d/pool=%d", p.Heads, p.Pool), func(b *testing.B) {
			d, s := open(b, cpu.Options{Threads: 1})
			c := newChoice(d, p, tensor.BF16, tokens/p.BlockTokens, 1)
			out := wrap(d, tensor.I32, make([]int32, p.Positions()), 1, p.Positions())
			q, w := f32s(d, kerneltest.Normal(kerneltest.Rand(1), p.Heads*p.Dim, 1), 1, p.Heads*p.Dim), f32s(d, c.weights, 1, p.Heads)
			spans := device.Spans{List: []device.Span{{Len: 1, Pos: tokens - 1, Blocks: c.table}}}
			ns := kerneltest.Quartile(b, 1, func() { d.Select(s, out, q, w, c.keys, spans, p) })
			kerneltest.Report(b, ns, 2*p.Dim*p.Sees(tokens-1), 2*p.Heads*p.Dim*p.Sees(tokens-1))
		})
	}
}
