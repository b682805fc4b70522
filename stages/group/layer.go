package group

import (
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/expert"
	"krater/stages/merge"
)

// Attend runs a layer up to its experts: pending delta and input norm,
// attention (storing the batch's keys and values), residual, post norm, and then
// the router, or in a dense layer the whole feed-forward network. It leaves the
// router's choice in st; the dense network's output is added, or pending.
func (g *Group) Attend(s device.Stream, st *stages.State, layer int, probe stages.Probe) {
	l := &g.layers[layer-g.First]
	pending := st.Pending
	if g.forms != nil {
		g.forms.Generated(s, st.Generated())
	}
	g.norm(s, st, l.InputNorm, probe)
	if probe != nil {
		if pending {
			probe.Observe(s, layer-1, "layer_out", st.Hidden, st)
		}
		probe.Observe(s, layer, "input_norm", st.Normed, st)
	}
	g.mixers[st.Lane][layer-g.First].Run(s, st, l.Attention, g.caches[layer-g.First], layer, probe)
	g.norm(s, st, l.PostNorm, probe)
	if probe != nil {
		probe.Observe(s, layer, "post_norm", st.Normed, st)
	}
	if l.MoE() {
		l.Router.Run(s, g.ops, st, layer, probe)
		return
	}
	st.Input.Made(s, g.ops)
	expert.AddFFN(s, g.ops, st, &l.Dense, probe)
	if probe != nil {
		probe.Observe(s, layer, "mlp_out", st.Delta, st)
	}
	g.finish(s, st, layer, probe)
}

// norm has st.Input be the norm of the residual stream, what is pending added to it.
func (g *Group) norm(s device.Stream, st *stages.State, w device.Mat, probe stages.Probe) {
	if st.Pending {
		g.ops.AddRMSNorm(s, st.Normed, st.Hidden, st.Delta, w, g.cfg.NormEps)
		st.Input.Changed()
		st.Pending = false
		return
	}
	st.Input.Norm(s, g.ops, st.Hidden, w, g.cfg.NormEps)
	if probe != nil {
		st.Input.Made(s, g.ops)
	}
}

// Ask has the host learn the router's choice after Attend, once s is synchronised, and makes
// what several streams of Experts take.
func (g *Group) Ask(s device.Stream, st *stages.State, layer int) {
	st.FetchRouterIDs(s)
	g.Bank(layer).Prepare(s, g.ops, st)
}

// Work lists the routed rows of st by expert, experts and assignments rising.
// It runs on the host: the stream of Ask must be synchronised. The list is
// valid until st's next Work.
func (g *Group) Work(st *stages.State, _ int) []device.ExpertRows { return expert.Split(st) }

// Experts computes the rows of st.ExpertOut that work lists. Disjoint lists may
// run on several streams at once; each stream must have passed Attend.
func (g *Group) Experts(s device.Stream, st *stages.State, layer int, work []device.ExpertRows) {
	g.Bank(layer).Run(s, g.ops, st, work)
}

// Shared computes the shared experts of st; it may run at the same time as
// Experts, on another stream.
func (g *Group) Shared(s device.Stream, st *stages.State, layer int, probe stages.Probe) {
	g.Bank(layer).RunShared(s, g.ops, st, layer, probe)
}

// Combine ends a MoE layer: the weighted sum of the experts and the shared
// expert become st's pending delta. s must have passed all Experts and Shared
// of this layer.
func (g *Group) Combine(s device.Stream, st *stages.State, layer int, probe stages.Probe) {
	merge.Run(s, g.ops, st, layer, probe)
	g.finish(s, st, layer, probe)
}

// Resident reports whether the device itself reads the router's choice of a MoE
// layer, all its experts being there: Mix takes the place of Work, Experts, Shared and
// Combine then, and nobody waits for the host.
func (g *Group) Resident(layer int) bool { return g.Bank(layer).Resident() }

// Mix ends a MoE layer that is Resident.
func (g *Group) Mix(s device.Stream, st *stages.State, layer int, probe stages.Probe) {
	g.MixOf(s, st, layer, &g.Bank(layer).Here, probe)
}

// MixOf is Mix with the layer's experts where here says; those that are nowhere add nothing.
// A probe needs all of them there.
func (g *Group) MixOf(s device.Stream, st *stages.State, layer int, here *device.Bank, probe stages.Probe) {
	b := g.Bank(layer)
	if g.mix != nil && probe == nil {
		if g.adds != nil && g.adds.Adds(s, st.T) {
			g.mix.AddMix(s, st.Hidden, st.Delta, st.ExpertOut, st.Shared, st.Normed, here, &b.Shared, st.RouterIDs, st.RouterWeights)
		} else {
			g.mix.Mix(s, st.Delta, st.ExpertOut, st.Shared, st.Normed, here, &b.Shared, st.RouterIDs, st.RouterWeights)
			st.Pending = true
		}
		g.finish(s, st, layer, probe)
		return
	}
	g.ExpertsOn(s, st, here)
	b.RunShared(s, g.ops, st, layer, probe)
	g.Combine(s, st, layer, probe)
}

// Rest ends a MoE layer whose routed experts are all computed by somebody else, who adds them
// to st.Hidden.
func (g *Group) Rest(s device.Stream, st *stages.State, layer int) {
	if b := g.Bank(layer); !b.Shared.Zero() {
		expert.AddFFN(s, g.ops, st, &b.Shared, nil)
	}
	g.finish(s, st, layer, nil)
}

// ExpertsOn computes the rows of st.ExpertOut whose experts are where here says, on a device
// that finds them by itself.
func (g *Group) ExpertsOn(s device.Stream, st *stages.State, here *device.Bank) {
	expert.RunOn(s, g.ops, st, here)
}

// finish adds the pending delta where a group ends, since only Hidden travels.
func (g *Group) finish(s device.Stream, st *stages.State, layer int, probe stages.Probe) {
	if layer+1 < g.Last {
		return
	}
	if st.Pending {
		g.ops.Add(s, st.Hidden, st.Delta)
		st.Pending = false
	}
	if probe != nil {
		probe.Observe(s, layer, "layer_out", st.Hidden, st)
	}
}
