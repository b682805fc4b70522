package hostsim

import (
	"maps"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

func init() { maps.Copy(cases, streamCases) }

// streamCases are the operators on several residual streams.
var streamCases = map[string]func(r *rig) []device.Mat{
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
