package ops

import (
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/mla"
	"krater/kernels/device"
)

// MLAPrefill is latent attention of the prompts of list, whose table lies at table.
func (b *Builder) MLAPrefill(out, q launch.Mat, cache launch.KV, kvb launch.Weight, list []device.Span, table launch.Mat, p device.MLA) {
	if len(list) > 0 {
		mla.PlainPrefill(b.List, out, q, cache, kvb, table, p)
	}
}

// MLADecode is latent attention of the generated rows of list.
func (b *Builder) MLADecode(out, q launch.Mat, cache launch.KV, kvb launch.Weight, list []device.Span, table launch.Mat, p device.MLA) {
	if len(list) > 0 {
		mla.PlainDecode(b.List, out, q, cache, kvb, table, p)
	}
}
