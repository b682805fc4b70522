package cpu_test

import (
	"fmt"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

var gqaSizes = []device.GQA{
	{Heads: 4, KVHeads: 2, HeadDim: 32, Scale: 0.2, BlockTokens: 16},
	{Heads: 3, KVHeads: 1, HeadDim: 10, Scale: 0.3, BlockTokens: 5},
	{Heads: 14, KVHeads: 2, HeadDim: 7, Scale: -0.2, BlockTokens: 1},
	{Heads: 2, KVHeads: 2, HeadDim: 66, Scale: 0.1, BlockTokens: 200},
	{Heads: 1, KVHeads: 1, HeadDim: 1, Scale: 1, BlockTokens: 16},
	{Heads: 6, KVHeads: 2, HeadDim: 16, Scale: 0.25, BlockTokens: 16, Window: 8},
	{Heads: 2, KVHeads: 1, HeadDim: 33, Scale: 0.2, BlockTokens: 5, Window: 129},
	{Heads: 1, KVHeads: 1, HeadDim: 8, Scale: 0.2, BlockTokens: 16, Window: 1},
}

// gqaScene is an attention problem as scene is.
type gqaScene struct {
	p        device.GQA
	cache    device.KV
	cacheRef []float32
	table    []int32
	q        []float32
	rows     int
	sinks    device.Mat // absent: none
	sinksRef []float32
}

func newGQAScene(d *cpu.Device, p device.GQA, cacheType tensor.DType, positions, rows int) *gqaScene {
	r := kerneltest.Rand(9)
	c := &gqaScene{p: p, rows: rows}
	blocks := (positions + p.BlockTokens - 1) / p.BlockTokens
	slots := blocks * p.BlockTokens
	c.cache, c.cacheRef = newKV(d, cacheType, kerneltest.Normal(r, slots*p.Width(), 1), slots, p.Width(), p.HeadDim)
	for i := range blocks / 2 {
		c.table = append(c.table, int32(i))
	}
	for _, b := range r.Perm(blocks - blocks/2) {
		c.table = append(c.table, int32(blocks/2+b))
	}
	c.q = kerneltest.Normal(r, rows*p.Heads*p.HeadDim, 1)
	return c
}

func (c *gqaScene) width() int { return c.p.Heads * c.p.HeadDim }

// run returns the result for some spans of the scene; out and q have rows that lie apart.
func (c *gqaScene) run(t testing.TB, d *cpu.Device, s device.Stream, spans []device.Span) []float32 {
	t.Helper()
	const gap = 3
	wide := c.width() + gap
	out, q := kerneltest.Guard[float32](c.rows*wide, 4), make([]float32, c.rows*wide)
	clear(out.Data)
	for r := range c.rows {
		copy(q[r*wide:], c.q[r*c.width():(r+1)*c.width()])
	}
	d.GQA(s, f32s(d, out.Data, c.rows, wide).ColRange(0, c.width()), f32s(d, q, c.rows, wide).ColRange(0, c.width()), c.cache, c.sinks, device.Spans{List: spans}, c.p)
	if err := out.Check(); err != nil {
		t.Error(err)
	}
	var dense []float32
	for r := range c.rows {
		dense = append(dense, out.Data[r*wide:][:c.width()]...)
		for _, v := range out.Data[r*wide+c.width():][:gap] {
			if v != 0 {
				t.Fatalf("written behind row %d", r)
			}
		}
	}
	return dense
}

func TestGQA(t *testing.T) {
	expected := map[string][]float32{} // the same for all levels, and dear
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for i, p := range gqaSizes {
			for _, cacheType := range kvTypes {
				c := newGQAScene(d, p, cacheType, 300, 200)
				if i%2 == 1 {
					c.sinks, c.sinksRef = floats(d, dtypes[i/2%2], kerneltest.Normal(kerneltest.Rand(uint64(i)), p.Heads, 3), 1, p.Heads)
				}
				spans := []device.Span{
					{Row: 0, Len: 1, Pos: 0, Blocks: c.table},
					{Row: 1, Len: 7, Pos: 3, Blocks: c.table[min(1, len(c.table)-1):]},
					{Row: 8, Len: 50, Pos: 90, Blocks: c.table},
					{Row: 58, Len: 1, Pos: 127, Blocks: c.table},
					{Row: 59, Len: 1, Pos: 128, Blocks: c.table},
					{Row: 60, Len: 140, Pos: 0, Blocks: c.table},
				}
				key := fmt.Sprint(p, cacheType)
				want := expected[key]
				if want == nil {
					want = make([]float32, c.rows*c.width())
					ref.GQA(want, c.q, c.cacheRef, c.sinksRef, spans, p)
					expected[key] = want
				}
				// Scores are sums of HeadDim products; an error in a score is a relative error of
				// its weight.
				limit := 64 * kerneltest.Eps32 * kerneltest.MaxAbs(want)
				if err := kerneltest.Compare(c.run(t, d, s, spans), want, c.width(), kerneltest.Relative(want, 16, limit)); err != nil {
					t.Errorf("%+v, cache %s: %v", p, cacheType, err)
				}
			}
		}
	})
}

// Scores that rise with every key, far beyond where the exponential overflows: each block has a new
// maximum.
func TestGQARisingScores(t *testing.T) {
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		p := device.GQA{Heads: 2, KVHeads: 1, HeadDim: 2, Scale: 1, BlockTokens: 16}
		c := newGQAScene(d, p, tensor.F32, 300, 1)
		for pos := range 300 {
			slot := int(c.table[pos/16])*16 + pos%16
			copy(c.cacheRef[4*slot:], []float32{float32(pos), -float32(pos)}) // the mat's own memory
		}
		copy(c.q, []float32{1, 0, 0, 1}) // the second head's scores fall
		spans := []device.Span{{Row: 0, Len: 1, Pos: 299, Blocks: c.table}}
		want := make([]float32, 4)
		ref.GQA(want, c.q, c.cacheRef, c.sinksRef, spans, p)
		if err := kerneltest.Compare(c.run(t, d, s, spans), want, 4, kerneltest.Relative(want, 64, 0)); err != nil {
			t.Error(err)
		}
	})
}

// Neither the chunk of a prompt nor the other sequences change a bit, nor does it
// matter whether a row was decoded, whatever the number of threads.
func TestGQAIsBatchInvariant(t *testing.T) {
	for _, p := range slices.Concat(gqaSizes[:3], gqaSizes[5:]) {
		for _, cacheType := range kvTypes {
			t.Run(fmt.Sprint(p.Heads, cacheType), func(t *testing.T) {
				forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
					n := 140
					c := newGQAScene(d, p, cacheType, 2*n, n)
					whole := c.run(t, d, s, []device.Span{{Row: 0, Len: n, Pos: 0, Blocks: c.table}})
					for row := 0; row < n; row += 9 {
						span := device.Span{Row: row, Len: 1, Pos: row, Blocks: c.table}
						if err := kerneltest.SameBits(c.run(t, d, s, []device.Span{span})[row*c.width():][:c.width()], whole[row*c.width():][:c.width()]); err != nil {
							t.Fatalf("row %d alone: %v", row, err)
						}
					}
					for _, chunk := range []int{1, 3, 7, 32, 139} {
						var spans []device.Span
						for from := 0; from < n; from += chunk {
							spans = append(spans, device.Span{Row: from, Len: min(chunk, n-from), Pos: from, Blocks: c.table})
						}
						if err := kerneltest.SameBits(c.run(t, d, s, spans), whole); err != nil {
							t.Fatalf("chunks of %d: %v", chunk, err)
						}
					}
				})
			})
		}
	}
}

// A row's keys are divided in stretches with fixed bounds: the bits are the same whether threads share them, and whether the row
// belongs to a prompt.
func TestGQAStretches(t *testing.T) {
	const positions, rows = 9400, 40
	for i, p := range []device.GQA{
		{Heads: 4, KVHeads: 1, HeadDim: 8, Scale: 0.3, BlockTokens: 16},
		{Heads: 6, KVHeads: 2, HeadDim: 10, Scale: 0.3, BlockTokens: 64, Window: 300},
		{Heads: 2, KVHeads: 2, HeadDim: 33, Scale: -0.2, BlockTokens: 5, Window: 700},
	} {
		for _, l := range level.Available() {
			if testing.Short() && l == level.Pure && level.Best() != level.Pure {
				continue
			}
			alone := map[int][]float32{} // by position, of one thread
			for _, threads := range []int{1, 3, 8} {
				d, s := open(t, cpu.Options{Threads: threads, Level: l})
				d.ShareEverything()
				c := newGQAScene(d, p, kvTypes[i%len(kvTypes)], positions, rows)
				if i == 1 {
					c.sinks, c.sinksRef = floats(d, tensor.F32, kerneltest.Normal(kerneltest.Rand(3), p.Heads, 3), 1, p.Heads)
				}
				for _, at := range []int{230, 500, 8180, positions - rows} {
					prompt := []device.Span{{Row: 0, Len: rows, Pos: at, Blocks: c.table}}
					whole := c.run(t, d, s, prompt)
					for _, row := range []int{0, 11, 12, rows - 1} {
						one := c.run(t, d, s, []device.Span{{Row: row, Len: 1, Pos: at + row, Blocks: c.table}})
						if err := kerneltest.SameBits(one[row*c.width():][:c.width()], whole[row*c.width():][:c.width()]); err != nil {
							t.Fatalf("%+v, %s, %d threads, position %d: %v", p, l, threads, at+row, err)
						}
					}
					if threads > 1 {
						if err := kerneltest.SameBits(whole, alone[at]); err != nil {
							t.Fatalf("%+v, %s, %d threads, position %d: %v", p, l, threads, at, err)
						}
						continue
					}
					alone[at] = whole
					want := make([]float32, rows*c.width())
					ref.GQA(want, c.q, c.cacheRef, c.sinksRef, prompt, p)
					if err := kerneltest.Compare(whole, want, c.width(), kerneltest.Relative(want, 16, 64*kerneltest.Eps32*kerneltest.MaxAbs(want))); err != nil {
						t.Errorf("%+v, %s, position %d: %v", p, l, at, err)
					}
				}
			}
		}
	}
}

func TestGQARefuses(t *testing.T) {
	d, s := open(t, cpu.Options{})
	p := gqaSizes[0]
	c := newGQAScene(d, p, tensor.F32, 64, 4) // 4 blocks
	good := device.Span{Row: 0, Len: 4, Pos: 60, Blocks: c.table}
	c.run(t, d, s, []device.Span{good})
	for name, bad := range map[string]device.Span{
		"short table":    {Row: 0, Len: 4, Pos: 61, Blocks: c.table},
		"block beyond":   {Row: 0, Len: 1, Pos: 0, Blocks: []int32{4}},
		"negative block": {Row: 0, Len: 1, Pos: 0, Blocks: []int32{-1}},
		"rows beyond":    {Row: 1, Len: 4, Pos: 0, Blocks: c.table},
		"negative row":   {Row: -1, Len: 1, Pos: 0, Blocks: c.table},
		"negative pos":   {Row: 0, Len: 1, Pos: -1, Blocks: c.table},
		"no rows":        {Row: 0, Len: 0, Pos: 0, Blocks: c.table},
		"overflow":       {Row: 0, Len: 4, Pos: 1<<63 - 2, Blocks: c.table},
		"near overflow":  {Row: 0, Len: 4, Pos: 1<<63 - 6, Blocks: c.table},
	} {
		t.Run(name, func(t *testing.T) {
			panicsWith(t, "GQA", func() { c.run(t, d, s, []device.Span{bad}) })
		})
	}
	for name, bad := range map[string]device.GQA{
		"no key heads":     {Heads: 4, HeadDim: 32, BlockTokens: 16},
		"no heads":         {KVHeads: 2, HeadDim: 32, BlockTokens: 16},
		"uneven groups":    {Heads: 4, KVHeads: 3, HeadDim: 32, BlockTokens: 16},
		"no block":         {Heads: 4, KVHeads: 2, HeadDim: 32},
		"another width":    {Heads: 4, KVHeads: 1, HeadDim: 32, BlockTokens: 16},
		"another head dim": {Heads: 4, KVHeads: 2, HeadDim: 16, BlockTokens: 16},
	} {
		t.Run(name, func(t *testing.T) {
			q, out := f32s(d, c.q, 4, c.width()), f32s(d, make([]float32, 4*c.width()), 4, c.width())
			panicsWith(t, "GQA", func() { d.GQA(s, out, q, c.cache, device.Mat{}, device.Spans{List: []device.Span{good}}, bad) })
		})
	}
}

func BenchmarkGQA(b *testing.B) {
	small := device.GQA{Heads: 14, KVHeads: 2, HeadDim: 64, Scale: 0.125, BlockTokens: 64}
	large := device.GQA{Heads: 28, KVHeads: 4, HeadDim: 128, Scale: 0.088, BlockTokens: 64}
	for _, c := range []struct {
		name      string
		p         device.GQA
		rows, pos int
	}{
		{"qwen0.5b/decode/ctx2000", small, 1, 2000}, {"qwen0.5b/prefill/512", small, 512, 0},
		{"qwen7b/decode/ctx2000", large, 1, 2000}, {"qwen7b/decode/ctx16000", large, 1, 16000}, {"qwen7b/prefill/512", large, 512, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			d, s := open(b, cpu.Options{Threads: 1})
			scene := newGQAScene(d, c.p, tensor.BF16, c.pos+c.rows, c.rows)
			// As the cache of a server lies: in huge pages where there are any.
			cache, err := device.AllocMat(d, tensor.BF16, scene.cache.Rows, scene.cache.Cols)
			if err != nil {
				b.Fatal(err)
			}
			defer cache.Buf.Free()
			copy(cache.Buf.Host(), scene.cache.Buf.Host())
			scene.cache.Mat = cache
			out, q := f32s(d, make([]float32, len(scene.q)), c.rows, scene.width()), f32s(d, scene.q, c.rows, scene.width())
			spans := []device.Span{{Row: 0, Len: c.rows, Pos: c.pos, Blocks: scene.table}}
			ns := kerneltest.Quartile(b, 1, func() { d.GQA(s, out, q, scene.cache, device.Mat{}, device.Spans{List: spans}, c.p) })
			pairs := c.rows*c.pos + c.rows*(c.rows+1)/2
			kerneltest.Report(b, ns, (c.pos+c.rows)*c.p.Width()*2, 4*pairs*c.p.Heads*c.p.HeadDim)
		})
	}
}
