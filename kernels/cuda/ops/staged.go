package ops

import (
	"krater/kernels/cuda/elem"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/spans"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// staged calls f for each prompt of list with its part of a cache in host memory, copied to the GPU: many rows read it,
// and most of its rows several times. blockTokens are the tokens of a block.
func (b *Builder) staged(cache launch.KV, list []device.Span, table launch.Mat, f func(cache launch.KV, list []device.Span, table launch.Mat), blockTokens int) {
	for i := range list {
		blocks := (list[i].Pos + list[i].Len + blockTokens - 1) / blockTokens
		a := arena{at: b.Hold(stagedBytes(blocks, blockTokens, rowBytes(&cache)))}
		near := cache
		near.Far = false
		own := launch.Mat{At: a.cut(4 * spans.Words(1, blocks)), DType: tensor.I32, Rows: 1, Cols: spans.Words(1, blocks), Stride: spans.Words(1, blocks)}
		for _, m := range [...]struct{ from, to *launch.Mat }{{&cache.Mat, &near.Mat}, {&cache.Scales, &near.Scales}} {
			if m.from.Zero() {
				continue
			}
			bytes := blockTokens * m.from.Stride * m.from.DType.Size()
			m.to.At, m.to.Rows = a.cut(blocks*bytes), blocks*blockTokens
			elem.StageBlocks(b.List, own.At, table.At, i, m.to.At, m.from.At, bytes, blocks)
		}
		f(near, list[i:i+1], own)
	}
	b.Hold(0)
}

// near holds memory for the rows of a cache in host memory that some generated rows see, each at most width of them.
func (b *Builder) near(cache *launch.KV, rows, width int) (n elem.Near) {
	if !cache.Far {
		return n
	}
	a := arena{at: b.Hold(nearBytes(rows*width, rowBytes(cache)))}
	return elem.NewNear(cache, rows, width, a.cut)
}

// nearBytes bounds what near holds of that many rows.
func nearBytes(rows, row int) int { return rows*row + 2*256 }

// rowBytes is the size of a row of a cache with its scales.
func rowBytes(c *launch.KV) int {
	return c.Stride*c.DType.Size() + c.Scales.Stride*c.Scales.DType.Size()
}

// stagedBytes bounds what staged holds of a prompt with that many blocks.
func stagedBytes(blocks, blockTokens, row int) int {
	return 4*spans.Words(1, blocks) + blocks*blockTokens*row + 3*256
}
