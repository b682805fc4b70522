package cpu_test

import (
	"fmt"
	"math"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// kvbCase is a size with groups of kv_b's two halves; 0: a whole row.
type kvbCase struct {
	p              device.MLA
	kGroup, vGroup int
}

var kvbCases = []kvbCase{
	{device.MLA{Heads: 5, Nope: 16, Rope: 16, V: 32, Rank: 32, Scale: 0.2, BlockTokens: 16}, 32, 32},
	{device.MLA{Heads: 3, Nope: 5, Rope: 6, V: 7, Rank: 13, Scale: 0.3, BlockTokens: 5}, 0, 0},
	{device.MLA{Heads: 6, Nope: 40, Rope: 0, V: 17, Rank: 96, Scale: 0.2, BlockTokens: 1}, 32, 0},
	{device.MLA{Heads: 2, Nope: 128, Rope: 64, V: 65, Rank: 250, Scale: 0.05, BlockTokens: 16}, 64, 128},
	{device.MLA{Heads: 2, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.05, BlockTokens: 16}, 128, 32},
	{device.MLA{Heads: 1, Nope: 96, Rope: 2, V: 16, Rank: 64, Scale: 0.1, BlockTokens: 16}, 0, 64},
}

func newKVB(d *cpu.Device, c kvbCase, e *tensor.Encoding) (w device.KVB, r ref.KVB) {
	group := func(g, cols int) int {
		if g == 0 {
			return perChannel(cols)
		}
		return g
	}
	for h := range c.p.Heads {
		k, rk := newQMat(d, uint64(2*h), c.p.Rank, c.p.Nope, e, group(c.kGroup, c.p.Nope))
		v, rv := newQMat(d, uint64(2*h+1), c.p.V, c.p.Rank, e, group(c.vGroup, c.p.Rank))
		w.K, w.V = append(w.K, k), append(w.V, v)
		r.K, r.V = append(r.K, rk), append(r.V, rv)
	}
	return w, r
}

// decodeTolerance returns what decode may be off. The latents differ from ref's by roundings, so a
// value that lies near the middle between two integers may become the other one: a chance of about
// a ten-thousandth for each of Rank values. Three in one result are allowed, of the largest weight.
func decodeTolerance(c *scene, w ref.KVB, spans []device.Span, want []float32) kerneltest.Tolerance {
	p := c.p
	allowed := make([]float64, len(want))
	row := make([]float32, p.Rank)
	for _, s := range spans {
		for r := range s.Len {
			for h := range p.Heads {
				at := (s.Row+r)*p.Heads + h
				q := ref.QuantizeRows(ref.Latent(c.q[at*(p.Nope+p.Rope):][:p.Nope+p.Rope], c.cacheRef, w.K[h], s, r, p), p.Rank, w.V[h].Group)
				for i := range p.V {
					w.V[h].Row(row, w.V[h].Values, w.V[h].Scales, i)
					for k, v := range row {
						step := math.Abs(float64(v)) * float64(q.Scale[k/q.Group])
						allowed[at*p.V+i] = max(allowed[at*p.V+i], 3*step)
					}
				}
			}
		}
	}
	limit := 64 * kerneltest.Eps32 * kerneltest.MaxAbs(want)
	return func(i int) float64 { return allowed[i] + limit }
}

func TestMLAWithIntegers(t *testing.T) {
	type result struct {
		want []float32
		tol  kerneltest.Tolerance
	}
	expected := map[string]result{} // the same for all levels, and dear
	forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
		for i, size := range kvbCases {
			for _, enc := range encodings {
				c := newScene(d, size.p, kvTypes[i%len(kvTypes)], tensor.F32, 150, 16)
				var w ref.KVB
				c.kvB, w = newKVB(d, size, enc)
				spans := []device.Span{
					{Row: 0, Len: 1, Pos: 0, Blocks: c.table}, {Row: 1, Len: 7, Pos: 3, Blocks: c.table[1:]},
					{Row: 8, Len: 6, Pos: 124, Blocks: c.table}, {Row: 14, Len: 1, Pos: 127, Blocks: c.table}, {Row: 15, Len: 1, Pos: 128, Blocks: c.table},
				}
				for _, f := range forms {
					key := fmt.Sprint(i, enc.Name(), f.name)
					x, ok := expected[key]
					if !ok {
						x.want = make([]float32, c.rows*c.p.Heads*c.p.V)
						if f.name == "prefill" {
							ref.MLA(x.want, c.q, c.cacheRef, w.Widen(c.p), spans, c.p)
							x.tol = kerneltest.Relative(x.want, 16, 64*kerneltest.Eps32*kerneltest.MaxAbs(x.want))
						} else {
							ref.MLAAbsorbed(x.want, c.q, c.cacheRef, w, spans, c.p)
							x.tol = decodeTolerance(c, w, spans, x.want)
						}
						expected[key] = x
					}
					if err := kerneltest.Compare(c.run(t, f, d, s, spans), x.want, c.p.Heads*c.p.V, x.tol); err != nil {
						t.Errorf("%s, %+v, %s: %v", f.name, size, enc.Name(), err)
					}
				}
			}
		}
	})
}

// Any number of rows, chunk and thread gives a row the same bits.
func TestMLAWithIntegersIsBatchInvariant(t *testing.T) {
	for _, f := range forms {
		for i, size := range kvbCases[1:4] {
			t.Run(fmt.Sprintf("%s/%d", f.name, i), func(t *testing.T) {
				var first []float32 // of the same level with one thread
				forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
					const n, pos = 34, 100
					c := newScene(d, size.p, kvTypes[1+i], tensor.F32, pos+n, n)
					c.kvB, _ = newKVB(d, size, tensor.Integers(4+4*(i%2)))
					width := c.p.Heads * c.p.V
					whole := c.run(t, f, d, s, []device.Span{{Row: 0, Len: n, Pos: pos, Blocks: c.table}})
					if d.Team().Threads() == 1 || first == nil {
						first = whole
					} else if err := kerneltest.SameBits(whole, first); err != nil {
						t.Fatalf("other threads: %v", err)
					}
					for m := 1; m <= 9; m++ {
						if f.name == "prefill" && m > 1 && m < 9 {
							continue // its spans are apart
						}
						var spans []device.Span
						for row := range m {
							at := row * 4
							spans = append(spans, device.Span{Row: at, Len: 1, Pos: pos + at, Blocks: c.table})
						}
						got := c.run(t, f, d, s, spans)
						for _, span := range spans {
							at := span.Row * width
							if err := kerneltest.SameBits(got[at:at+width], whole[at:at+width]); err != nil {
								t.Fatalf("%d rows, row %d: %v", m, span.Row, err)
							}
						}
					}
					for _, chunk := range []int{7, 32} {
						var spans []device.Span
						for from := 0; from < n; from += chunk {
							spans = append(spans, device.Span{Row: from, Len: min(chunk, n-from), Pos: pos + from, Blocks: c.table})
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

func TestMLARefusesWrongIntegers(t *testing.T) {
	d, s := open(t, cpu.Options{})
	size := kvbCases[3]
	c := newScene(d, size.p, tensor.F32, tensor.F32, 64, 1)
	spans := []device.Span{{Row: 0, Len: 1, Pos: 5, Blocks: c.table}}
	other, _ := newKVB(d, kvbCase{size.p, 32, 32}, tensor.INT8) // whole, but in other groups
	for name, change := range map[string]func(w *device.KVB){
		"few keys":      func(w *device.KVB) { w.K = w.K[:1] },
		"few values":    func(w *device.KVB) { w.V = w.V[:1] },
		"no values":     func(w *device.KVB) { w.V = nil },
		"many":          func(w *device.KVB) { w.K, w.V = append(w.K, w.K[0]), append(w.V, w.V[0]) },
		"swapped":       func(w *device.KVB) { w.K, w.V = w.V, w.K },
		"absent":        func(w *device.KVB) { w.K[1] = device.QMat{} },
		"rank":          func(w *device.KVB) { w.K[1].Rows-- },
		"nope":          func(w *device.KVB) { w.K[1].Cols = 64 },
		"v":             func(w *device.KVB) { w.V[0].Rows++ },
		"uneven keys":   func(w *device.KVB) { w.K[1] = other.K[1] },
		"uneven values": func(w *device.KVB) { w.V[1] = other.V[1] },
		"beyond memory": func(w *device.KVB) { w.V[1].ValueAt = 128 },
	} {
		for _, f := range forms {
			op := map[string]string{"prefill": "MLAPrefill", "decode": "MLADecode"}[f.name]
			c.kvB, _ = newKVB(d, size, tensor.INT8)
			c.run(t, f, d, s, spans)
			change(&c.kvB)
			t.Run(f.name+"/"+name, func(t *testing.T) {
				panicsWith(t, op, func() { c.run(t, f, d, s, spans) })
			})
		}
	}
}

// No operator allocates once its scratch has grown, whatever the cache and kv_b are kept in.
func TestAttentionAllocatesNothing(t *testing.T) {
	d, s := open(t, cpu.Options{Threads: 2})
	d.ShareEverything()
	size := kvbCases[3]
	for _, dt := range kvTypes {
		c, g := newScene(d, size.p, dt, tensor.BF16, 150, 4), newGQAScene(d, gqaSizes[0], dt, 150, 4)
		kvBs := []device.KVB{c.kvB, {}, {}}
		kvBs[1], _ = newKVB(d, size, tensor.INT4)
		kvBs[2], _ = newKVB(d, size, tensor.INT8)
		spans := []device.Span{{Row: 0, Len: 3, Pos: 130, Blocks: c.table}, {Row: 3, Len: 1, Pos: 7, Blocks: c.table}}
		gqaSpans := []device.Span{{Row: 0, Len: 4, Pos: 130, Blocks: g.table}}
		out, q := f32s(d, make([]float32, 4*c.p.Heads*c.p.V), 4, c.p.Heads*c.p.V), f32s(d, c.q, 4, c.p.Heads*(c.p.Nope+c.p.Rope))
		gOut, gQ := f32s(d, make([]float32, len(g.q)), 4, g.width()), f32s(d, g.q, 4, g.width())
		src, slots := f32s(d, make([]float32, c.cache.Cols), 1, c.cache.Cols), wrap(d, tensor.I32, []int32{0}, 1, 1)
		run := func() {
			for _, w := range kvBs {
				for _, f := range forms {
					f.run(d, s, out, q, c.cache, w, spans, c.p)
				}
			}
			d.GQA(s, gOut, gQ, g.cache, device.Mat{}, device.Spans{List: gqaSpans}, g.p)
			d.StoreRows(s, c.cache, src, slots)
		}
		run()
		if n := testing.AllocsPerRun(20, run); n > 0 {
			t.Errorf("%s: %v allocations a run", dt, n)
		}
	}
}

// BenchmarkPrefillKV is a prompt of DeepSeek-V2-Lite's attention, one layer, with caches and kv_b
// of all kinds taken in turn.
func BenchmarkPrefillKV(b *testing.B) {
	lite := device.MLA{Heads: 16, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.1, BlockTokens: 64}
	const rows = 256
	d, s := open(b, cpu.Options{Threads: 1})
	var names []string
	var scenes []*scene
	for _, dt := range kvTypes[1:] {
		for _, bits := range []int{0, 8} {
			c := newScene(d, lite, dt, tensor.BF16, rows, rows)
			if bits > 0 {
				c.kvB, _ = newKVB(d, kvbCase{lite, 128, 128}, tensor.INT8)
			}
			names, scenes = append(names, fmt.Sprintf("%s-kvb%d", dt, bits)), append(scenes, c)
		}
	}
	out, q := f32s(d, make([]float32, rows*lite.Heads*lite.V), rows, lite.Heads*lite.V), f32s(d, scenes[0].q, rows, lite.Heads*(lite.Nope+lite.Rope))
	best := make([]float64, len(scenes))
	for b.Loop() {
		for i, c := range scenes {
			us := elapsed(func() {
				d.MLAPrefill(s, out, q, c.cache, c.kvB, device.Spans{List: []device.Span{{Len: rows, Blocks: c.table}}}, lite)
			})
			if best[i] == 0 || us < best[i] {
				best[i] = us
			}
		}
	}
	for i, name := range names {
		b.ReportMetric(best[i]/best[0], name+"/bf16")
	}
	b.ReportMetric(best[0], "bf16-us")
}

// BenchmarkKVB is a decode step of DeepSeek-V2-Lite's attention at position 200, with kv_b as BF16
// and as integers in turn, over more layers than fit a cache.
func BenchmarkKVB(b *testing.B) {
	lite := device.MLA{Heads: 16, Nope: 128, Rope: 64, V: 128, Rank: 512, Scale: 0.1, BlockTokens: 64}
	for _, threads := range []int{1, 2} {
		for _, rows := range []int{1, 8} {
			b.Run(fmt.Sprintf("threads%d/rows%d", threads, rows), func(b *testing.B) {
				d, s := open(b, cpu.Options{Threads: threads})
				const layers = 16 // 64 MB of BF16
				c := newScene(d, lite, tensor.BF16, tensor.BF16, 200, rows)
				names := []string{"bf16", "int8", "int4"}
				times := make([]float64, len(names))
				weights := make([][]device.KVB, len(names))
				for range layers {
					m, _ := floats(d, tensor.BF16, make([]float32, lite.Heads*(lite.Nope+lite.V)*lite.Rank), lite.Heads*(lite.Nope+lite.V), lite.Rank)
					w8, _ := newKVB(d, kvbCase{lite, 128, 128}, tensor.INT8)
					w4, _ := newKVB(d, kvbCase{lite, 128, 128}, tensor.INT4)
					for i, w := range []device.KVB{{F: m}, w8, w4} {
						weights[i] = append(weights[i], w)
					}
				}
				out, q := f32s(d, make([]float32, rows*lite.Heads*lite.V), rows, lite.Heads*lite.V), f32s(d, c.q, rows, lite.Heads*(lite.Nope+lite.Rope))
				var spans []device.Span
				for r := range rows {
					spans = append(spans, device.Span{Row: r, Len: 1, Pos: 199, Blocks: c.table})
				}
				for i := range times {
					times[i] = math.Inf(1)
				}
				for b.Loop() {
					for i := range weights {
						us := elapsed(func() {
							for _, w := range weights[i] {
								d.MLADecode(s, out, q, c.cache, w, device.Spans{List: spans}, lite)
							}
						})
						times[i] = min(times[i], us/layers)
					}
				}
				for i, name := range names {
					b.ReportMetric(times[i], name+"-us")
				}
			})
		}
	}
}
