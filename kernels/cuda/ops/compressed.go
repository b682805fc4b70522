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
	switch {
	case len(list) == 0:
	case b.Plain || !compressed.CanAttend(b.GPU, out, q, &c, p):
		compressed.Attend(b.List, out, q, c, chosen, sinks, decode, p)
	case decode:
		splits := compressed.Splits(seesMost(p, chosen.Cols, Pitch(list)))
		parts := b.Scratch(compressed.PartsBytes(len(list), splits, p.Heads))
		compressed.AttendGenerated(b.List, out, q, c, chosen, sinks, len(list), splits, parts, p)
	default:
		compressed.AttendPrompts(b.List, out, q, c, chosen, sinks, p)
	}
}

// seesMost returns the largest number of tokens and entries that a row sees in a context: topK entries, if topK is not 0.
func seesMost(p device.Compressed, topK, context int) int {
	entries := p.Sees(context - 1)
	if topK > 0 {
		entries = min(entries, topK)
	}
	return p.Window + entries
}

// needCompressed adds the scratch memory of attention over entries, of which a row sees most where all are of as few tokens as they may be.
func needCompressed(s *device.StepSizes, need func(parts ...int)) {
	need(compressed.PartsBytes(s.Seqs, compressed.Splits(max(s.Compressed.Window+s.Index.TopK, seesMost(s.Compressed, 0, pitchOf(s.Context)))), s.Compressed.Heads))
}
