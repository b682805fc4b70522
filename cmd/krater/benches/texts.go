package benches

import (
	"krater/actors/local/config"
	"krater/actors/placement"
	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/drive"
	"krater/stages/synth"
)

// prompt returns n tokens that depend on the seed.
func (b *strategiesBench) prompt(n, seed int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*i*31 + i*7919 + 13 + seed*1009) % b.s.Config.Vocab)
	}
	synth.Text(ids, 0, b.c.RoutingDrift, b.s.Config.Vocab)
	return ids
}

// sequence is a prompt of the given length, and n tokens that follow. Where routing drifts it is given which.
func (b *strategiesBench) sequence(length, n, seed int) *drive.Sequence {
	ids := b.prompt(length+n, seed)
	q := &drive.Sequence{Prompt: ids[:length:length], New: n}
	if b.c.RoutingDrift > 0 {
		q.Given = ids[length:]
	}
	return q
}

// warmUp counts how often the router chooses each expert.
func (b *strategiesBench) warmUp() error {
	seen := func(index int, work []dispatch.Rows) {
		for len(b.heat) <= index {
			b.heat = append(b.heat, make([]uint32, b.s.Config.MoE.Experts))
		}
		for _, w := range work {
			b.heat[index][w.Expert] += uint32(w.Rows)
		}
	}
	return b.placed(placement.Options{Prefill: b.named(config.CPUOnly), Decode: b.named(config.CPUOnly), Seen: seen}, func(m *placement.Model, _ *placement.Placement) error {
		if n := b.c.Counted; n > 0 {
			return drive.Run(m, []*drive.Sequence{{Prompt: b.prompt(n, 5)}}, drive.Options{Probe: noProbe{}})
		}
		n := min(512, b.s.Config.MaxContext-b.c.Decode, b.s.Parts.Limits.Blocks*b.s.Parts.Limits.BlockTokens-b.c.Decode)
		return drive.Run(m, []*drive.Sequence{b.sequence(n, b.c.Decode, 5)}, drive.Options{})
	})
}

// noProbe has a step show its work and looks at nothing: the host then learns every choice of a router.
type noProbe struct{}

func (noProbe) Observe(device.Stream, int, string, device.Mat, *stages.State) {}
