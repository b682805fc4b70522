package group

import (
	"slices"

	"krater/kernels/device"
	"krater/stages"
)

// Walk is the position of a batch in a group: the layers of a part for one piece of
// the batch after the other, then the next part. With one part that is all layers for
// the first piece, then for the second; with one piece it is the layers in their
// order.
type Walk struct {
	Layer, Window int

	windows    int
	parts      []int // of the whole model
	begin, end int   // layers of the part in hand
}

// Walk begins a way of st, which sees its first piece now. parts are layers of the model
// at which a part begins, rising; nil: one part.
func (g *Group) Walk(st *stages.State, parts []int) Walk {
	w := Walk{Layer: g.First, windows: st.Windows(), parts: parts}
	if w.windows > 1 {
		st.Look(0)
	}
	w.part(g, g.First)
	return w
}

// part begins the part that layer is in.
func (w *Walk) part(g *Group, layer int) {
	i, _ := slices.BinarySearch(w.parts, layer+1)
	w.begin, w.end = layer, g.Last
	if i < len(w.parts) {
		w.end = min(w.end, w.parts[i])
	}
}

// Next goes on to the next layer of a piece, or the next piece, which st then sees;
// false at the end, where st sees all rows again.
func (g *Group) Next(s device.Stream, st *stages.State, w *Walk) bool {
	if w.Layer++; w.Layer < w.end {
		return true
	}
	if w.windows == 1 {
		w.part(g, w.Layer)
		return w.Layer < g.Last
	}
	st.On(g.dev, s, nil).Send()
	if w.Window++; w.Window < w.windows {
		w.Layer = w.begin
		st.Look(w.Window)
		return true
	}
	if w.Layer == g.Last {
		st.Whole()
		return false
	}
	w.part(g, w.Layer)
	w.Window = 0
	st.Look(0)
	return true
}
