package mla

import (
	"fmt"

	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var kPlain, kSelect = launch.Named("kr_mla_plain"), launch.Named("kr_select")

const plainThreads = 128

// PlainPrefill computes latent attention of the rows of all prompts in table (package spans): out
// [T, heads*v], q [T, heads*(nope+rope)], both F32 or BF16; kvb is rows of F32 or BF16
// [heads*(nope+v), rank]; a cache of F32, BF16, F8E4M3 or I8. Rows of out that belong to no
// prompt are unchanged. It needs no scratch memory.
func PlainPrefill(l *launch.List, out, q launch.Mat, cache launch.KV, kvb launch.Weight, table launch.Mat, p device.MLA) {
	anySize("plain MLAPrefill", l, out, q, cache, kvb, table, launch.Mat{}, p, 0)
}

// PlainDecode computes latent attention of all generated rows.
func PlainDecode(l *launch.List, out, q launch.Mat, cache launch.KV, kvb launch.Weight, table launch.Mat, p device.MLA) {
	anySize("plain MLADecode", l, out, q, cache, kvb, table, launch.Mat{}, p, 1)
}

// Sparse is PlainPrefill, or with decode PlainDecode, of rows that see the positions of their rows of chosen
// [T, topK] I32. A row that may see no more than topK positions sees all of them.
func Sparse(l *launch.List, out, q launch.Mat, cache launch.KV, kvb launch.Weight, chosen, table launch.Mat, decode bool, p device.MLA) {
	const op = "SparseMLA"
	positions(op, chosen, q.Rows)
	anySize(op, l, out, q, cache, kvb, table, chosen, p, flag(decode))
}

// positions panics unless chosen is I32 with a row for each of rows.
func positions(op string, chosen launch.Mat, rows int) {
	if chosen.Zero() || chosen.DType != tensor.I32 || chosen.Rows != rows || chosen.Cols < 1 {
		refuse(op, "chosen is %v, need I32 of %d rows", chosen, rows)
	}
}

func flag(decode bool) int {
	if decode {
		return 1
	}
	return 0
}

// SelectMax is the most values of an index query: they are in the memory that a block shares.
const SelectMax = 8192

// CheckIndex names the size that no kernel takes; the zero Index has none.
func CheckIndex(p device.Index) error {
	if p.Heads*p.Dim > SelectMax {
		return fmt.Errorf("sparse attention: %d index heads of %d, a GPU takes at most %d values", p.Heads, p.Dim, SelectMax)
	}
	return nil
}

// Select computes the choice of an indexer for the rows of all prompts in table, or with decode of all
// generated rows: chosen [T, Positions] I32, q [T, heads*dim] and weights [T, heads] F32 or BF16, a cache of
// F32, BF16, F8E4M3 or I8. Rows of chosen that belong to no span are unchanged.
func Select(l *launch.List, chosen, q, weights launch.Mat, keys launch.KV, table launch.Mat, decode bool, p device.Index) {
	const op = "Select"
	kind := cacheKind(op, &keys)
	checkIndex(op, chosen, q, weights, &keys, table, p)
	if q.Rows == 0 {
		return
	}
	const digits, states = 2048, 4
	config := launch.Config{
		Grid:   launch.Dim{X: uint32(q.Rows)},
		Block:  launch.Dim{X: plainThreads},
		Shared: uint32(4 * (p.Heads*p.Dim + p.Heads + digits + plainThreads + states)),
		PDL:    true,
	}
	l.Add(kSelect, config,
		launch.P(chosen.At), launch.I32(chosen.Stride), launch.P(q.At), wide(op, q), launch.I32(q.Stride), launch.P(weights.At), wide(op, weights), launch.I32(weights.Stride),
		launch.P(keys.At), launch.P(keys.Scales.At), launch.I32(kind), launch.I32(keys.Stride), launch.I32(keys.Scales.Stride), launch.I32(keys.Group),
		launch.P(table.At), launch.I32(flag(decode)), launch.I32(p.Heads), launch.I32(p.Dim), launch.I32(p.TopK),
		launch.I32(max(1, p.Pool)), launch.I32(flag(p.Entries)), launch.I32(p.BlockTokens))
}

// checkIndex panics unless the matrices have p's sizes.
func checkIndex(op string, chosen, q, weights launch.Mat, keys *launch.KV, table launch.Mat, p device.Index) {
	positions(op, chosen, q.Rows)
	switch {
	case p.Heads < 1 || p.Dim < 1 || p.BlockTokens < 1 || chosen.Cols != p.Positions() || CheckIndex(p) != nil:
		refuse(op, "sizes %+v, chosen %v", p, chosen)
	case q.Cols != p.Heads*p.Dim || weights.Rows != q.Rows || weights.Cols != p.Heads || keys.Cols != p.Dim:
		refuse(op, "q %v, weights %v, keys %v for %d heads of %d", q, weights, keys.Mat, p.Heads, p.Dim)
	case table.Zero() || table.DType != tensor.I32 || table.At%16 != 0:
		refuse(op, "a table of spans %v", table)
	}
}

func anySize(op string, l *launch.List, out, q launch.Mat, c launch.KV, kvb launch.Weight, table, chosen launch.Mat, p device.MLA, decode int) {
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
		launch.I32(p.Nope), launch.I32(p.Rope), launch.I32(p.V), launch.I32(p.Rank), launch.F32(float32(float64(p.Scale)*log2E)), launch.I32(p.BlockTokens),
		launch.P(chosen.At), launch.I32(chosen.Stride), launch.I32(chosen.Cols))
}
