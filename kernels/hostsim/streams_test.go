package hostsim

import (
	"maps"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

func init() { maps.Copy(cases, streamCases) }

// streamCases are the operators of models with several residual streams or compressed entries.
var streamCases = map[string]func(r *rig) []device.Mat{
	"Compress": func(r *rig) []device.Mat {
		p := device.Compress{Dim: 8, Ratio: 2, Overlap: true, Eps: 1e-6, Rope: device.Rope{Heads: 1, HeadDim: 8, Offset: 4, Dim: 4}, BlockTokens: 4}
		entries, list := r.zero(tensor.F32, 12, 8), device.Spans{List: spans}
		run(r.dev, r.s, func(l *device.List) {
			l.Compress(device.KV{Mat: entries}, list, device.KV{Mat: r.weight(12, 32)}, list, r.weight(1, 8), r.normal(2, 16), r.normal(8, 4), &p)
		})
		return []device.Mat{entries}
	},
	"Compressed": func(r *rig) []device.Mat {
		p := device.Compressed{Heads: 2, Dim: 8, Window: 2, Ratio: 2, Scale: 0.5, BlockTokens: 4}
		out, list := r.zero(tensor.F32, 3, 16), device.Spans{List: spans}
		run(r.dev, r.s, func(l *device.List) {
			l.Compressed(out, r.normal(3, 16), device.KV{Mat: r.weight(12, 8)}, list, device.KV{Mat: r.weight(12, 8)}, list, device.Mat{}, r.normal(1, 2), &p)
		})
		return []device.Mat{out}
	},
	"RouteByToken": func(r *rig) []device.Mat {
		ids, weights := r.zero(tensor.I32, 3, 2), r.zero(tensor.F32, 3, 2)
		table := put(r.t, r.dev, tensor.F32, 4, 2, []float32{0, 1, 1, 2, 2, 3, 3, 0})
		run(r.dev, r.s, func(l *device.List) {
			p := &device.Router{Experts: 4, TopK: 2, Scoring: device.ScoreSqrtSoftplus, Normalize: true, Scale: 1}
			l.RouteByToken(ids, weights, r.normal(3, 4), r.ids(2, 3, 1), table, p)
		})
		return []device.Mat{ids, weights}
	},
	"Sigmoid": func(r *rig) []device.Mat {
		x := r.normal(3, 16)
		run(r.dev, r.s, func(l *device.List) { l.Sigmoid(x, device.Sigmoid{Silu: true, In: 0.5, Out: 2}) })
		return []device.Mat{x}
	},
	"Collapse": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 8)
		run(r.dev, r.s, func(l *device.List) { l.Collapse(out, r.normal(3, 16), r.normal(3, 16)) })
		return []device.Mat{out}
	},
	"Spread": func(r *rig) []device.Mat {
		out := r.normal(3, 16)
		run(r.dev, r.s, func(l *device.List) { l.Spread(out, r.normal(3, 8), r.normal(3, 2), out) })
		return []device.Mat{out}
	},
	"StreamGates": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 2)
		run(r.dev, r.s, func(l *device.List) { l.StreamGates(out, r.normal(3, 16), r.normal(3, 16)) })
		return []device.Mat{out}
	},
	"Collapse of whole streams": func(r *rig) []device.Mat {
		out := r.zero(tensor.F32, 3, 8)
		run(r.dev, r.s, func(l *device.List) { l.Collapse(out, r.normal(3, 16), r.normal(3, 2)) })
		return []device.Mat{out}
	},
	"Spread of mixed streams": func(r *rig) []device.Mat {
		out := r.normal(3, 16)
		run(r.dev, r.s, func(l *device.List) { l.Spread(out, r.normal(3, 8), r.normal(3, 6), out) })
		return []device.Mat{out}
	},
	"MixWeights": func(r *rig) []device.Mat {
		out := r.normal(3, 8)
		run(r.dev, r.s, func(l *device.List) {
			l.MixWeights(out, r.normal(3, 16), r.normal(1, 8), r.normal(1, 3), device.StreamMix{Streams: 2, Iterations: 3, Eps: 1e-6, NormEps: 1e-6})
		})
		return []device.Mat{out}
	},
}
