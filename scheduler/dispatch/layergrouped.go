package dispatch

import (
	"fmt"
	"math"
)

// layerGrouped keeps as many layers on the device as it can and copies the experts of
// the others group by group, all of a group, once for all rows of a prefill. With two
// staging buffers the next group is copied while one is worked on.
//
// Of L layers R stay, spread evenly. The first layer is one of them, so that it can be
// computed during the first copy. The other L-R are cut into the given number of groups,
// and a buffer holds the largest of them.
type layerGrouped struct {
	groups  int // 0: one layer each
	buffers int // for staging: 2, or 1 without overlap
}

func (g layerGrouped) Name() string {
	switch {
	case g.buffers == 1:
		return fmt.Sprintf("layer_grouped:%d:1", g.groups)
	case g.groups == 0:
		return "layer_grouped"
	}
	return fmt.Sprintf("layer_grouped:%d", g.groups)
}

// count returns the number of groups of the streamed layers.
func (g layerGrouped) count(streamed int) int {
	if g.groups == 0 {
		return streamed
	}
	return min(g.groups, streamed)
}

// layers returns the number of layers that fit if stay of them stay.
func (g layerGrouped) layers(total, stay int) int {
	if stay == total {
		return total
	}
	n := g.count(total - stay)
	return stay + min(n, g.buffers)*((total-stay+n-1)/n)
}

func (g layerGrouped) Start(s *Setup) (Start, error) {
	if err := s.check(); err != nil || len(s.Layers) == 0 {
		return Start{}, err
	}
	total := len(s.Layers)
	stay, room := total, s.slots()/s.Experts
	for ; g.layers(total, stay) > room; stay-- {
		if stay == 0 {
			return Start{}, s.room(g.Name(), g.layers(total, 0)*s.Experts)
		}
	}
	start := Start{Slots: g.layers(total, stay) * s.Experts, Places: make([]Place, total), Parts: []int{0}, Fixed: [Phases]bool{true, stay == total}}
	groups := g.count(total - stay)
	buffer := 0 // layers of one
	if groups > 0 {
		buffer = (total - stay + groups - 1) / groups
	}
	kept := s.kept()
	group, at, streamed, slot := 0, 0, 0, int32(0)
	for i, layer := range s.Layers {
		if i*stay%total < stay {
			for e := range int32(s.Experts) {
				if k := (Key{layer, e}); !kept[k] {
					start.Loads = append(start.Loads, Load{slot, k})
				}
				slot++
			}
			continue
		}
		if streamed == (group+1)*(total-stay)/groups {
			group++
			at = 0
			start.Parts = append(start.Parts, i)
		}
		staged := stay + group%g.buffers*buffer + at
		start.Places[i] = Place{int32(staged * s.Experts), int32(s.Experts)}
		at++
		streamed++
	}
	return start, nil
}

// Borrow cuts all layers into groups. A buffer holds the experts of a group that are not
// kept, of the group that has the most of them.
func (g layerGrouped) Borrow(s *Setup) (Start, error) {
	if err := s.check(); err != nil || len(s.Layers) == 0 {
		return Start{}, err
	}
	total, kept := len(s.Layers), s.kept()
	groups := g.count(total)
	start := Start{Places: make([]Place, total), Staged: make([][]int32, total), Fixed: [Phases]bool{true, false}}
	buffer := int32(0) // slots of one
	for group := range groups {
		first, at := group*total/groups, int32(0)
		start.Parts = append(start.Parts, first)
		for i := first; i < (group+1)*total/groups; i++ {
			for e := range int32(s.Experts) {
				if !kept[Key{s.Layers[i], e}] {
					start.Staged[i] = append(start.Staged[i], e)
				}
			}
			start.Places[i] = Place{at, int32(len(start.Staged[i]))}
			at += start.Places[i].Slots
		}
		buffer = max(buffer, at)
	}
	for group, first := range start.Parts {
		for i := first; i < (group+1)*total/groups; i++ {
			start.Places[i].First += int32(group%g.buffers) * buffer
		}
	}
	if buffer == 0 { // all experts are there, and no part has to be waited for
		start.Parts = []int{0}
	}
	start.Slots = min(groups, g.buffers) * int(buffer)
	return start, s.room(g.Name(), start.Slots)
}

func (g layerGrouped) Decide(out *Decision, in *Step) {
	out.reset()
	if in.Phase == Decode {
		g.active(out, in)
		return
	}
	w := out.wave()
	for i := range in.Work {
		w.Work = append(w.Work, int32(i))
	}
	w.Loads = in.missing(w.Loads, in.Index)
	parts := in.Start.Parts
	part := 0
	for part+1 < len(parts) && parts[part+1] <= in.Index {
		part++
	}
	if in.Index != parts[part] && len(w.Loads) == 0 {
		return // the rest was seen to with the part's first layer
	}
	end := len(in.Setup.Layers)
	if last := part + g.buffers; last < len(parts) { // the next part too, where it has a buffer
		end = parts[last]
	}
	w = out.wave()
	for i := in.Index + 1; i < end; i++ {
		w.Loads = in.missing(w.Loads, i)
	}
	if len(w.Loads) == 0 {
		out.Waves = out.Waves[:1]
	}
}

// missing adds the loads of all experts of a layer that are not there.
func (in *Step) missing(loads []Load, index int) []Load {
	p := in.place(index)
	if p.Slots == 0 {
		return loads
	}
	for i := range p.Slots {
		k := Key{in.Setup.Layers[index], i}
		if in.Start.Staged != nil {
			k.Expert = in.Start.Staged[index][i]
		}
		if _, ok := in.Residency.Slot(k); !ok {
			loads = append(loads, Load{p.First + i, k})
		}
	}
	return loads
}

// active loads what the router chose: for a few rows all experts are too many. Every
// expert of a layer has a slot.
func (g layerGrouped) active(out *Decision, in *Step) {
	out.split(in)
	if len(out.hits) > 0 {
		w := out.wave()
		w.Work = append(w.Work, out.hits...)
	}
	if len(out.misses) == 0 {
		return
	}
	w := out.wave()
	for _, i := range out.misses {
		e := in.Work[i].Expert
		w.Loads = append(w.Loads, Load{in.place(in.Index).First + e, Key{in.Layer(), e}})
		w.Work = append(w.Work, i)
	}
}

// Smaller has more and so smaller groups, then one buffer, then parts of a layer.
func (g layerGrouped) Smaller(s *Setup) Strategy {
	most := len(s.Layers)
	switch {
	case g.buffers == 1 || most < 2:
		return chunked{}
	case g.groups > 0 && g.groups < most:
		return layerGrouped{g.groups + 1, g.buffers}
	}
	return layerGrouped{most, 1}
}

// groupsMost bounds the number of groups that Parse takes.
const groupsMost = math.MaxInt16
