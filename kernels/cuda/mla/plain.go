package mla

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
)

var kPlain = launch.Named("kr_mla_plain")

const plainThreads = 128

// PlainPrefill computes latent attention of the rows of all prompts in table (package spans): out
// [T, heads*v], q [T, heads*(nope+rope)], both F32 or BF16; kvb is rows of F32 or BF16
// [heads*(nope+v), rank]; a cache of F32, BF16, F8E4M3 or I8. Rows of out that belong to no
// prompt are unchanged. It needs no scratch memory.
func PlainPrefill(l *launch.List, out, q launch.Mat, cache launch.KV, kvb launch.Weight, table launch.Mat, p device.MLA) {
	anySize("plain MLAPrefill", l, out, q, cache, kvb, table, p, 0)
}

// PlainDecode computes latent attention of all generated rows.
func PlainDecode(l *launch.List, out, q launch.Mat, cache launch.KV, kvb launch.Weight, table launch.Mat, p device.MLA) {
	anySize("plain MLADecode", l, out, q, cache, kvb, table, p, 1)
}

func anySize(op string, l *launch.List, out, q launch.Mat, c launch.KV, kvb launch.Weight, table launch.Mat, p device.MLA, decode int) {
	check(op, out, q, &c, &kvb, table, p)
	kind := cacheKind(op, &c)
	if q.Rows == 0 {
		return
	}
	config := launch.Config{
		Grid:   launch.Dim{X: uint32(p.Heads), Y: uint32(q.Rows)},
		Block:  launch.Dim{X: plainThreads},
		Shared: uint32(4 * (2*p.Rank + p.Rope + 2*plainThreads + 2*plainThreads/32)),
		PDL:    true,
	}
	l.Add(kPlain, config,
		launch.P(out.At), wide(op, out), launch.I32(out.Stride), launch.P(q.At), wide(op, q), launch.I32(q.Stride),
		launch.P(c.At), launch.P(c.Scales.At), launch.I32(kind), launch.I32(c.Stride), launch.I32(c.Scales.Stride), launch.I32(c.Group),
		launch.P(kvb.F.At), wide(op, kvb.F), launch.I32(kvb.F.Stride), launch.P(table.At), launch.I32(decode),
		launch.I32(p.Nope), launch.I32(p.Rope), launch.I32(p.V), launch.I32(p.Rank), launch.F32(float32(float64(p.Scale)*log2E)), launch.I32(p.BlockTokens))
}
