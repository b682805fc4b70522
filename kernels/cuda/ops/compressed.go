package ops

import (
	"krater/kernels/cuda/compressed"
	"krater/kernels/cuda/launch"
	"krater/kernels/device"
)

// Compress makes the entries of windows that rows of the prompts of list, or its generated rows, complete.
func (b *Builder) Compress(entries launch.KV, table launch.Mat, near launch.KV, nearTable launch.Mat, norm, ape, angles launch.Mat, list []device.Span, decode bool, p device.Compress) {
	rows := 0
	for i := range list {
		rows = max(rows, list[i].Row+list[i].Len)
	}
	compressed.Compress(b.List, entries, table, near, nearTable, norm, ape, angles, rows, decode, p)
}

// Compressed computes attention over the newest tokens and over entries, of the prompts of list or of its generated rows.
func (b *Builder) Compressed(out, q launch.Mat, c compressed.Caches, chosen, sinks launch.Mat, list []device.Span, decode bool, p device.Compressed) {
	if len(list) > 0 {
		compressed.Attend(b.List, out, q, c, chosen, sinks, decode, p)
	}
}
