package mla

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

var (
	kLatentIn  = launch.Named("kr_latent_absorb")
	kLatentOut = launch.Named("kr_latent_expand")
	kShares    = launch.Named("kr_latent_join")
	kLatent    = map[tensor.DType]launch.Kernel{
		tensor.BF16:   launch.Named("kr_latent_attend_bf16"),
		tensor.F8E4M3: launch.Named("kr_latent_attend_e4m3"),
	}
)

// The sizes of mla_latent.cu.
const (
	latentGroup, latentThreads   = 64, 256
	projectBlock, projectThreads = 64, 128
	latentShare                  = 128 // positions of a block, of generated rows
	latentTile                   = 64
	projectShared                = 4 * projectBlock * 128
	latentShared                 = latentGroup*2*rank + 2*latentTile*2*rank + latentGroup*2*latentTile + 4*4*latentGroup
)

// CanLatent reports whether Latents takes these: heads without rotated values, a latent of 512, keys and values of multiples of 64, queries and kv_b of BF16, a cache
// of BF16 or F8E4M3, all aligned to 16 bytes, and a GPU whose blocks can have 201 KiB of shared memory.
func CanLatent(gpu launch.GPU, q launch.Mat, cache launch.KV, kvb launch.Weight, p device.MLA) bool {
	_, ok := kLatent[cache.DType]
	return ok && p.Rope == 0 && p.Rank == rank && p.Nope%projectBlock == 0 && p.V%projectBlock == 0 && readable(q, &cache, &kvb) && gpu.SharedMax >= latentShared
}

// latentShares is the number of blocks that share a row.
func latentShares(rows Rows, positions int) int {
	if !rows.Decode {
		return 1
	}
	return int(over(positions, latentShare))
}

// LatentScratch returns the scratch memory of Latents in bytes, for rows that choose at most that number of positions.
func LatentScratch(rows Rows, positions int, p device.MLA) int {
	n := align(2 * rows.Count * p.Heads * rank)
	if shares := latentShares(rows, positions); shares > 1 {
		n += 4 * rows.Count * shares * p.Heads * (rank + 2)
	}
	return n
}

// Latents is Sparse for some rows of a batch, with matrix products: generated rows, or rows of prompts, where First counts all rows of the batch and Least
// is 0. It reads the chosen rows of the cache only, all of which chosen lists. scratch has LatentScratch bytes, aligned to 16.
func Latents(l *launch.List, gpu launch.GPU, out, q launch.Mat, cache launch.KV, kvb launch.Weight, chosen, table launch.Mat, rows Rows, scratch launch.Ptr, p device.MLA) {
	const op = "SparseMLA"
	positions(op, chosen, q.Rows)
	check(op, out, q, &cache, &kvb, table, p)
	if !CanLatent(gpu, q, cache, kvb, p) || rows.First < 0 || rows.First+rows.Count > q.Rows || rows.Least != 0 || scratch%16 != 0 {
		refuse(op, "no kernel for rows %+v of q %v, cache %v, kv_b %v", rows, q, cache.Mat, kvb.F)
	}
	if rows.Count == 0 {
		return
	}
	n, heads, shares := uint32(rows.Count), uint32(p.Heads), latentShares(rows, chosen.Cols)
	each := chosen.Cols + latentTile
	var part, marks launch.Ptr // of shares
	if shares > 1 {
		each = latentShare
		part = scratch + launch.Ptr(align(2*rows.Count*p.Heads*rank))
		marks = part + launch.Ptr(4*rows.Count*shares*p.Heads*rank)
	}
	at, kvbAt, kvbStride := launch.P(scratch), launch.P(kvb.F.At), launch.I32(kvb.F.Stride)
	of := []launch.Arg{launch.P(table.At), launch.I32(flag(rows.Decode)), launch.I32(rows.First)}
	sizes := []launch.Arg{launch.I32(rows.Count), launch.I32(p.Nope), launch.I32(p.V)}
	project := launch.Config{Grid: launch.Dim{X: rank / projectBlock, Y: heads, Z: over(rows.Count, projectBlock)}, Block: launch.Dim{X: projectThreads}, Shared: projectShared, PDL: true}
	add := func(k launch.Kernel, c launch.Config, args ...[]launch.Arg) {
		var all []launch.Arg
		for _, a := range args {
			all = append(all, a...)
		}
		l.Add(k, c, all...)
	}
	add(kLatentIn, project, []launch.Arg{at, launch.P(q.At), launch.I32(q.Stride), kvbAt, kvbStride}, of, sizes)
	add(kLatent[cache.DType], launch.Config{Grid: launch.Dim{X: uint32(shares), Y: over(p.Heads, latentGroup), Z: n}, Block: launch.Dim{X: latentThreads}, Shared: latentShared, PDL: true},
		[]launch.Arg{at, launch.P(part), launch.P(marks), launch.P(cache.At), launch.I32(cache.Stride), launch.P(chosen.At), launch.I32(chosen.Stride), launch.I32(chosen.Cols)}, of,
		[]launch.Arg{launch.I32(p.Heads), launch.I32(each), launch.F32(float32(float64(p.Scale) * log2E)), launch.I32(p.BlockTokens)})
	if shares > 1 {
		l.Add(kShares, launch.Config{Grid: launch.Dim{X: heads, Y: n}, Block: launch.Dim{X: rank / 4}, PDL: true}, at, launch.P(part), launch.P(marks), launch.I32(shares))
	}
	project.Grid.X = uint32(p.V / projectBlock)
	add(kLatentOut, project, []launch.Arg{launch.P(out.At), wide(op, out), launch.I32(out.Stride), at, kvbAt, kvbStride}, of, sizes)
}
