package group

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/merge"
)

// Attend runs a layer up to its experts: input norm, attention (storing the batch's keys and
// values), residual, post norm, and then the router, or in a dense layer the whole feed-forward
// network. It leaves the router's choice in st. In layers that are dense or Resident the operators
// are sent with the next ones.
func (g *Group) Attend(s device.Stream, st *stages.State, layer int, probe stages.Probe) {
	l := &g.layers[layer-g.First]
	p := st.On(g.dev, s, probe)
	p.Generated = st.Generated()
	kept := g.kept[layer-g.First]
	if layer == g.First { // a table may have to come from a disk
		for i, x := range g.ngrams[st.Queue] {
			if x != nil && i > 0 {
				x.Ahead(p, st, tail(g.kept[i]))
			}
		}
	}
	if x := g.ngrams[st.Queue][layer-g.First]; x != nil {
		x.Run(p, st, tail(kept), layer)
	}
	l.Mixer.Enter(p, st.Normed, st.Hidden, st.Mix, layer, "attn_hc_")
	p.Observe(layer, "input_norm", st.Normed)
	g.mixers[st.Queue][layer-g.First].Run(p, st, l.Attention, kept, layer)
	if !l.MixerNorm.Zero() {
		p.Observe(layer, "mixer_raw", st.Delta)
		p.RMSNorm(st.Delta, st.Delta, l.MixerNorm, g.cfg.NormEps)
	}
	p.Observe(layer, "mixer_out", st.Delta)
	l.Mixer.Leave(p, st.Hidden, st.Delta, st.Mix)
	if g.cfg.Streams.Several() {
		p.Observe(layer, "streams_mid", st.Hidden)
	}
	l.Network.Enter(p, st.Normed, st.Hidden, st.Mix, layer, "mlp_hc_")
	p.Observe(layer, "post_norm", st.Normed)
	if l.MoE() {
		g.route(p, st, l, layer)
		l.Bank.Prepare(&p.List, st)
		if !g.Resident(layer) {
			p.Send()
		}
		return
	}
	if l.Dense.Integer() {
		p.QuantizeRows(st.Input.Q, st.Input.X)
	}
	p.FFN(st.Delta, st.Normed, st.Input.Q, &l.Dense)
	g.finish(p, st, layer)
}

// tail returns the states that a layer keeps for its table of n-grams, which are the last two.
func tail(kept []device.KV) []device.KV { return kept[len(kept)-2:] }

// route runs the router of a layer. Where each part of the layer has norms of its own it also runs the
// shared experts, and leaves in st.Normed what the routed ones read.
func (g *Group) route(p *stages.Program, st *stages.State, l *Layer, layer int) {
	own, eps := l.OwnNorms, g.cfg.NormEps
	if own == nil {
		l.Router.Run(p, st, layer)
		return
	}
	if l.Bank.Shared.Integer() {
		p.QuantizeRows(st.Input.Q, st.Input.X)
	}
	l.Bank.RunShared(p, st, st.Shared, layer)
	p.RMSNorm(st.Shared, st.Shared, own.Shared, eps)
	p.RMSNorm(st.Normed, st.Hidden, own.Router, eps)
	p.Observe(layer, "router_norm", st.Normed)
	l.Router.Run(p, st, layer)
	p.RMSNorm(st.Normed, st.Hidden, own.Expert, eps)
	p.Observe(layer, "expert_norm", st.Normed)
}

// shared appends the shared experts, unless route has.
func (g *Group) shared(p *stages.Program, st *stages.State, layer int) {
	if l := &g.layers[layer-g.First]; l.OwnNorms == nil {
		l.Bank.RunShared(p, st, st.Shared, layer)
	}
}

// merge appends the output of the experts of a layer.
func (g *Group) merge(p *stages.Program, st *stages.State, slots device.Mat, layer int) {
	own := g.layers[layer-g.First].OwnNorms
	if own == nil {
		merge.Run(p, st, st.Shared, slots, layer)
		return
	}
	merge.Run(p, st, device.Mat{}, slots, layer)
	p.RMSNorm(st.Delta, st.Delta, own.Experts, g.cfg.NormEps)
	p.Add(st.Delta, st.Shared)
}

// Ask has the host learn the router's choice after Attend, once s is synchronised.
func (g *Group) Ask(s device.Stream, st *stages.State, _ int) { st.FetchRouterIDs(s) }

// Work lists the routed rows of st by expert, experts and assignments rising.
// It runs on the host: the stream of Ask must be synchronised. The list is
// valid until st's next Work.
func (g *Group) Work(st *stages.State, _ int) []device.ExpertRows { return expert.Split(st) }

// Experts computes the rows of st.ExpertOut that work lists. Disjoint lists may
// run on several streams at once; each stream must have passed Attend.
func (g *Group) Experts(s device.Stream, st *stages.State, layer int, work []device.ExpertRows) {
	g.Bank(layer).Run(s, g.dev, st, work)
}

// Shared computes the shared experts of st; it may run at the same time as
// Experts, on another stream.
func (g *Group) Shared(s device.Stream, st *stages.State, layer int, probe stages.Probe) {
	p := st.On(g.dev, s, probe)
	g.shared(p, st, layer)
	p.Send()
}

// Combine ends a MoE layer: the weighted sum of the experts and the shared network is added to
// st.Hidden. s must have passed all Experts and Shared of this layer. The operators are sent with
// the next ones.
func (g *Group) Combine(s device.Stream, st *stages.State, layer int, probe stages.Probe) {
	p := st.On(g.dev, s, probe)
	g.merge(p, st, st.ExpertSlot, layer)
	g.finish(p, st, layer)
}

// Resident reports whether the device itself reads the router's choice of a MoE
// layer, all its experts being there: Mix takes the place of Work, Experts, Shared and
// Combine then, and nobody waits for the host.
func (g *Group) Resident(layer int) bool { return g.Bank(layer).Resident() }

// Mix ends a MoE layer that is Resident.
func (g *Group) Mix(s device.Stream, st *stages.State, layer int, probe stages.Probe) {
	g.mix(st.On(g.dev, s, probe), st, layer, &g.Bank(layer).Here)
}

// MixOf is Mix with the layer's experts where here says; those that are nowhere add nothing.
// A probe needs all of them there. The operators are sent.
func (g *Group) MixOf(s device.Stream, st *stages.State, layer int, here *device.Bank, probe stages.Probe) {
	p := st.On(g.dev, s, probe)
	g.mix(p, st, layer, here)
	p.Send()
}

// MixRows is MixOf where the host returns rows of the experts that have no slot: take appends the wait for
// them. here may be nil: no expert has a slot.
func (g *Group) MixRows(s device.Stream, st *stages.State, layer int, here *device.Bank, take func(p *stages.Program)) {
	p := st.On(g.dev, s, nil)
	if here != nil {
		p.ExpertsOn(st.ExpertOut, st.Normed, here, st.RouterIDs)
	}
	g.shared(p, st, layer)
	take(p)
	g.merge(p, st, device.Mat{}, layer)
	g.finish(p, st, layer)
	p.Send()
}

func (g *Group) mix(p *stages.Program, st *stages.State, layer int, here *device.Bank) {
	p.ExpertsOn(st.ExpertOut, st.Normed, here, st.RouterIDs)
	if p.Probed() {
		p.Send() // fused with their sum, the experts would not write ExpertOut, which the probe's sums read
	}
	g.shared(p, st, layer)
	g.merge(p, st, here.Map, layer)
	g.finish(p, st, layer)
}

// FinishHostRouted ends a MoE layer whose routed experts all run on the host, which adds their sum
// to st.Hidden.
func (g *Group) FinishHostRouted(s device.Stream, st *stages.State, layer int) {
	p := st.On(g.dev, s, nil)
	if b := g.Bank(layer); !b.Shared.Zero() {
		b.RunShared(p, st, st.Delta, layer)
		g.finish(p, st, layer)
	}
	p.Send()
}

// ExpertsOn computes the rows of st.ExpertOut whose experts are where here says, on a device
// that finds them by itself.
func (g *Group) ExpertsOn(s device.Stream, st *stages.State, here *device.Bank) {
	p := st.On(g.dev, s, nil)
	p.ExpertsOn(st.ExpertOut, st.Normed, here, st.RouterIDs)
	p.Send()
}

// finish adds the output of the feed-forward part to st.Hidden. Where a group ends all is sent, since
// Hidden travels.
func (g *Group) finish(p *stages.Program, st *stages.State, layer int) {
	l := &g.layers[layer-g.First]
	if !l.FFNNorm.Zero() {
		p.Observe(layer, "mlp_raw", st.Delta)
		p.RMSNorm(st.Delta, st.Delta, l.FFNNorm, g.cfg.NormEps)
	}
	p.Observe(layer, "mlp_out", st.Delta)
	l.Network.Leave(p, st.Hidden, st.Delta, st.Mix)
	if !l.PerLayer.Norm.Zero() {
		g.perLayer(p, st, &l.PerLayer, layer)
	}
	if l.Scalar != 0 {
		p.Scale(st.Hidden, l.Scalar)
	}
	p.Observe(layer, "layer_out", st.Hidden)
	if layer+1 == g.Last {
		p.Send()
	}
}

// perLayer adds what follows from the rows for this layer to st.Hidden.
func (g *Group) perLayer(p *stages.Program, st *stages.State, l *PerLayer, layer int) {
	width := st.Gated.Cols
	p.MatMul(st.Gated, st.Hidden, device.QRows{}, &l.Gate)
	p.Activate(st.Gated, st.PerLayer.ColRange(layer*width, (layer+1)*width), device.GELUTanh)
	p.MatMul(st.Delta, st.Gated, device.QRows{}, &l.Proj)
	p.RMSNorm(st.Delta, st.Delta, l.Norm, g.cfg.NormEps)
	p.Observe(layer, "per_layer_out", st.Delta)
	p.Add(st.Hidden, st.Delta)
}
