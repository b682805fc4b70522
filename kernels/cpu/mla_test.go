package cpu_test

import (
	"fmt"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// tiny is the default model's attention.
var tiny = device.MLA{Heads: 8, Nope: 32, Rope: 16, V: 32, Rank: 64, Scale: 0.144, BlockTokens: 16}

var mlaSizes = []device.MLA{
	{Heads: 5, Nope: 16, Rope: 16, V: 32, Rank: 32, Scale: 0.2, BlockTokens: 16},
	{Heads: 3, Nope: 5, Rope: 6, V: 7, Rank: 13, Scale: 0.3, BlockTokens: 5},
	{Heads: 17, Nope: 8, Rope: 0, V: 9, Rank: 32, Scale: 0.2, BlockTokens: 1},
}

// scene is an attention problem: a cache filled at random, block tables that are neither in order
// nor apart.
type scene struct {
	p             device.MLA
	cache         device.KV
	kvB           device.KVB
	cacheRef, kvs []float32
	table         []int32
	q             []float32
	rows          int
}

func newScene(d *cpu.Device, p device.MLA, cacheType, weightType tensor.DType, positions, rows int) *scene {
	r := kerneltest.Rand(7)
	c := &scene{p: p, rows: rows}
	blocks := (positions + p.BlockTokens - 1) / p.BlockTokens
	slots, width := blocks*p.BlockTokens, p.Rank+p.Rope
	c.cache, c.cacheRef = newKV(d, cacheType, kerneltest.Normal(r, slots*width, 1), slots, width, kvGroup(p))
	c.kvB.F, c.kvs = floats(d, weightType, kerneltest.Normal(r, p.Heads*(p.Nope+p.V)*p.Rank, 0.2), p.Heads*(p.Nope+p.V), p.Rank)
	// Half in order (stretches that can be read in one go), half shuffled.
	for i := range blocks / 2 {
		c.table = append(c.table, int32(i))
	}
	for _, b := range r.Perm(blocks - blocks/2) {
		c.table = append(c.table, int32(blocks/2+b))
	}
	c.q = kerneltest.Normal(r, rows*p.Heads*(p.Nope+p.Rope), 1)
	return c
}

// kvGroup divides both parts of a cached row.
func kvGroup(p device.MLA) int {
	x, y := p.Rank, p.Rope
	for y != 0 {
		x, y = y, x%y
	}
	return x
}

type form struct {
	name string
	run  func(d *cpu.Device, s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans []device.Span, p device.MLA)
}

var forms = []form{
	{"prefill", func(d *cpu.Device, s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans []device.Span, p device.MLA) {
		d.MLAPrefill(s, out, q, cache, kvB, device.Spans{List: spans}, p)
	}},
	{"decode", func(d *cpu.Device, s device.Stream, out, q device.Mat, cache device.KV, kvB device.KVB, spans []device.Span, p device.MLA) {
		d.MLADecode(s, out, q, cache, kvB, device.Spans{List: spans}, p)
	}},
}

// run returns the result of a form for some spans of the scene.
func (c *scene) run(t testing.TB, f form, d *cpu.Device, s device.Stream, spans []device.Span) []float32 {
	t.Helper()
	out := kerneltest.Guard[float32](c.rows*c.p.Heads*c.p.V, 4)
	clear(out.Data)
	f.run(d, s, f32s(d, out.Data, c.rows, c.p.Heads*c.p.V), f32s(d, c.q, c.rows, c.p.Heads*(c.p.Nope+c.p.Rope)), c.cache, c.kvB, spans, c.p)
	if err := out.Check(); err != nil {
		t.Errorf("%s: %v", f.name, err)
	}
	return out.Data
}

func TestMLA(t *testing.T) {
	expected := map[string][]float32{} // the same for all levels, and dear
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for _, p := range mlaSizes {
			for _, cacheType := range kvTypes {
				for _, weightType := range dtypes {
					c := newScene(d, p, cacheType, weightType, 180, 60)
					spans := []device.Span{
						{Row: 0, Len: 1, Pos: 0, Blocks: c.table},
						{Row: 1, Len: 7, Pos: 3, Blocks: c.table[1:]},
						{Row: 8, Len: 50, Pos: 90, Blocks: c.table},
						{Row: 58, Len: 1, Pos: 127, Blocks: c.table},
						{Row: 59, Len: 1, Pos: 128, Blocks: c.table},
					}
					key := fmt.Sprint(p, cacheType, weightType)
					want := expected[key]
					if want == nil {
						want = make([]float32, c.rows*p.Heads*p.V)
						ref.MLA(want, c.q, c.cacheRef, c.kvs, spans, p)
						expected[key] = want
					}
					for _, f := range forms {
						got := c.run(t, f, d, s, spans)
						// Scores are sums of Rank+Rope products; an error in a score is a relative
						// error of its weight.
						limit := 64 * kerneltest.Eps32 * kerneltest.MaxAbs(want)
						if err := kerneltest.Compare(got, want, p.Heads*p.V, kerneltest.Relative(want, 16, limit)); err != nil {
							t.Errorf("%s, %d heads, cache %s, weights %s: %v", f.name, p.Heads, cacheType, weightType, err)
						}
					}
				}
			}
		}
	})
}

// The chunk of a prompt and the other sequences do not change a bit, whatever the
// number of threads.
func TestMLAIsBatchInvariant(t *testing.T) {
	for _, f := range forms {
		for i, cacheType := range kvTypes[1:] {
			p := mlaSizes[i%2]
			t.Run(fmt.Sprintf("%s/%d/%s", f.name, p.Heads, cacheType), func(t *testing.T) {
				forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
					n := 140
					c := newScene(d, p, cacheType, tensor.BF16, 2*n, n)
					whole := c.run(t, f, d, s, []device.Span{{Row: 0, Len: n, Pos: 0, Blocks: c.table}})
					for row := 0; row < n; row += 9 {
						span := device.Span{Row: row, Len: 1, Pos: row, Blocks: c.table}
						width := p.Heads * p.V
						if err := kerneltest.SameBits(c.run(t, f, d, s, []device.Span{span})[row*width:][:width], whole[row*width:][:width]); err != nil {
							t.Fatalf("row %d alone: %v", row, err)
						}
					}
					for _, chunk := range []int{3, 7, 32, 139} {
						var spans []device.Span
						for from := 0; from < n; from += chunk {
							spans = append(spans, device.Span{Row: from, Len: min(chunk, n-from), Pos: from, Blocks: c.table})
						}
						if err := kerneltest.SameBits(c.run(t, f, d, s, spans), whole); err != nil {
							t.Fatalf("chunks of %d: %v", chunk, err)
						}
					}
				})
			})
		}
	}
}

// A generated row's keys are divided in stretches with fixed bounds: the bits are the same whatever the number of threads and the
// other rows.
func TestMLAStretches(t *testing.T) {
	const positions, rows = 8300, 8
	cases, levels := kvbCases[:4], level.Available()
	if testing.Short() {
		cases, levels = cases[:2], levels[len(levels)-1:]
	}
	for i, size := range cases {
		p := size.p
		for _, l := range levels {
			alone := map[int][]float32{} // by position, of one thread
			for _, threads := range []int{1, 3, 8} {
				d, s := open(t, cpu.Options{Threads: threads, Level: l})
				d.ShareEverything()
				c := newScene(d, p, kvTypes[i%len(kvTypes)], dtypes[i%len(dtypes)], positions, rows)
				if i%2 == 1 {
					c.kvB, _ = newKVB(d, size, tensor.INT8)
				}
				width := p.Heads * p.V
				for _, at := range []int{250, 8186} {
					whole := c.run(t, forms[1], d, s, []device.Span{{Row: 0, Len: rows, Pos: at, Blocks: c.table}})
					for _, row := range []int{0, 5, 6} {
						one := c.run(t, forms[1], d, s, []device.Span{{Row: row, Len: 1, Pos: at + row, Blocks: c.table}})
						if err := kerneltest.SameBits(one[row*width:][:width], whole[row*width:][:width]); err != nil {
							t.Fatalf("%+v, %s, %d threads, position %d: %v", p, l, threads, at+row, err)
						}
					}
					if threads > 1 {
						if err := kerneltest.SameBits(whole, alone[at]); err != nil {
							t.Fatalf("%+v, %s, %d threads, position %d: %v", p, l, threads, at, err)
						}
						continue
					}
					if alone[at] = whole; i%2 == 1 {
						continue
					}
					want := make([]float32, rows*width)
					ref.MLA(want, c.q, c.cacheRef, c.kvs, []device.Span{{Row: 0, Len: rows, Pos: at, Blocks: c.table}}, p)
					if err := kerneltest.Compare(whole, want, width, kerneltest.Relative(want, 16, 64*kerneltest.Eps32*kerneltest.MaxAbs(want))); err != nil {
						t.Errorf("%+v, %s, position %d: %v", p, l, at, err)
					}
				}
			}
		}
	}
}

func TestMLARefusesWrongTables(t *testing.T) {
	d, s := open(t, cpu.Options{})
	p := mlaSizes[0]
	c := newScene(d, p, tensor.F32, tensor.F32, 64, 4) // 4 blocks
	good := device.Span{Row: 0, Len: 4, Pos: 60, Blocks: c.table}
	for _, f := range forms {
		c.run(t, f, d, s, []device.Span{good})
		op := map[string]string{"prefill": "MLAPrefill", "decode": "MLADecode"}[f.name]
		for name, bad := range map[string]device.Span{
			"short table":    {Row: 0, Len: 4, Pos: 61, Blocks: c.table},
			"block beyond":   {Row: 0, Len: 1, Pos: 0, Blocks: []int32{4}},
			"negative block": {Row: 0, Len: 1, Pos: 0, Blocks: []int32{-1}},
			"rows beyond":    {Row: 1, Len: 4, Pos: 0, Blocks: c.table},
			"negative row":   {Row: -1, Len: 1, Pos: 0, Blocks: c.table},
			"negative pos":   {Row: 0, Len: 1, Pos: -1, Blocks: c.table},
			"no rows":        {Row: 0, Len: 0, Pos: 0, Blocks: c.table},
			"overflow":       {Row: 0, Len: 4, Pos: 1<<63 - 2, Blocks: c.table},
		} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				panicsWith(t, op, func() { c.run(t, f, d, s, []device.Span{bad}) })
			})
		}
	}
}

func BenchmarkMLA(b *testing.B) {
	lite := device.MLA{Heads: 16, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.1, BlockTokens: 64}
	cases := []struct {
		name      string
		p         device.MLA
		form      form
		rows, pos int
	}{
		{"tiny/decode/ctx200", tiny, forms[1], 1, 200}, {"tiny/decode/ctx2000", tiny, forms[1], 1, 2000},
		{"tiny/prefill/200", tiny, forms[0], 200, 0}, {"tiny/prefill/1000", tiny, forms[0], 1000, 0},
		{"v2lite/decode/ctx2000", lite, forms[1], 1, 2000}, {"v2lite/decode/ctx8000", lite, forms[1], 1, 8000}, {"v2lite/prefill/512", lite, forms[0], 512, 0},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			d, s := open(b, cpu.Options{Threads: 1})
			scene := newScene(d, c.p, tensor.BF16, tensor.BF16, c.pos+c.rows, c.rows)
			out := f32s(d, make([]float32, c.rows*c.p.Heads*c.p.V), c.rows, c.p.Heads*c.p.V)
			q := f32s(d, scene.q, c.rows, c.p.Heads*(c.p.Nope+c.p.Rope))
			spans := []device.Span{{Row: 0, Len: c.rows, Pos: c.pos, Blocks: scene.table}}
			ns := kerneltest.Quartile(b, 1, func() { c.form.run(d, s, out, q, scene.cache, scene.kvB, spans, c.p) })
			keys, p := 0, c.p
			for r := range c.rows {
				keys += c.pos + r + 1
			}
			flops := 2*keys*p.Heads*(p.Nope+p.Rope+p.V) + 2*(c.pos+c.rows)*p.Heads*p.Rank*(p.Nope+p.V)
			if c.form.name == "decode" {
				flops = 2*keys*p.Heads*(2*p.Rank+p.Rope) + 2*p.Heads*p.Rank*(p.Nope+p.V)
			}
			kerneltest.Report(b, ns, 0, flops)
		})
	}
}
