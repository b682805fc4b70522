package cards

import (
	"fmt"

	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// moveBlocks copies KV blocks of latent attention between the cache and other memory, with one
// kernel for all layers. Both sides are in GPU memory, so it measures the kernel and not the link
// to the host.
func moveBlocks(moves, layers int, dt tensor.DType, save bool, p device.MLA) *Case {
	const blocks = 24
	size := p.BlockTokens * (p.Rank + p.Rope) * dt.Size()
	to := "from the host"
	if save {
		to = "to the host"
	}
	c := &Case{
		Op:    "move blocks",
		Shape: fmt.Sprintf("%d of %d layers %s", moves, layers, to),
		DType: "cache " + dt.String(),
		Bytes: float64(2 * moves * layers * size),
	}
	c.Rotate, c.Size = int(c.Bytes), 2*layers*blocks*size
	c.build = func(d *desk) *job {
		// Rows have eight elements; the checks read a few of them.
		const cols = 8
		perBlock := size / dt.Size() / cols
		src := d.numbers(dt, layers*blocks*perBlock, cols, unit)
		dst := d.room(dt, layers*blocks*perBlock, cols)
		from, into := make([]int32, moves), make([]int32, moves)
		order, places := d.rng.Perm(blocks), d.rng.Perm(blocks)
		for i := range from {
			from[i], into[i] = int32(order[i]), int32(places[i])
		}
		// Each copy of the data has a table of its own, with that copy's addresses.
		tableOf := func(i int) []byte {
			parts := make([]elem.BlockPart, layers)
			for l := range parts {
				at := launch.Ptr(l * blocks * size)
				parts[l] = elem.BlockPart{Cache: dst.of(i).At + at, Host: src.of(i).At + at, Bytes: size}
				if save {
					parts[l].Cache, parts[l].Host = parts[l].Host, parts[l].Cache
				}
			}
			return elem.BlockTable(nil, parts, from, into)
		}
		n := (len(tableOf(0)) + align - 1) / align * align
		tables := d.mat(tensor.I8, d.copies, n, func(b []byte) {
			for i := range d.copies {
				copy(b[i*n:], tableOf(i))
			}
		})
		return &job{
			run: func(b *ops.Builder, i int) {
				elem.MoveBlocks(b.List, tables.At+launch.Ptr(i*n), layers, moves, save)
			},
			outs: []data{dst},
			check: func(read reader) []Sample {
				var s []Sample
				for _, i := range d.spread(layers*moves*perBlock, 200) {
					layer, move, row := i/(moves*perBlock), i/perBlock%moves, i%perBlock
					got := (layer*blocks+int(into[move]))*perBlock + row
					want := src.row((layer*blocks+int(from[move]))*perBlock + row)
					for col, v := range read(dst.RowRange(got, got+1)) {
						s = append(s, Sample{v, want[col], 0})
					}
				}
				return s
			},
		}
	}
	return c
}
