package forecast

import "math"

// cpuOnly: rows go to the processors and come back, shared experts run meanwhile.
func cpuOnly(c *calc, _ layout, m float64, few bool) Time { return split(c, layout{}, m, few) }

// split has the hottest experts on the GPU and the others on the processors, at the
// same time.
func split(c *calc, l layout, m float64, few bool) Time {
	hot, cold := c.picks[:l.kept], c.picks[l.kept:]
	t := Time{Card: c.shared(m, few) + c.experts(hot, m), Wanted: active(c.picks, m), Found: active(hot, m)}
	if len(cold) > 0 {
		t.Host, t.HandOver = c.host(cold, m), c.handOver(m)
	}
	t.Total = max(t.Card, t.Host+t.HandOver)
	return t
}

// resident: everything is there.
func resident(c *calc, _ layout, m float64, few bool) Time {
	t := Time{Card: c.shared(m, few) + c.experts(c.picks, m), Wanted: active(c.picks, m)}
	t.Total, t.Found = t.Card, t.Wanted
	return t
}

// chunked: all experts of a layer come, then they are computed. Only shared experts
// run beside the copies.
func chunked(c *calc, l layout, m float64, few bool) Time {
	n := float64(c.s.Experts - l.kept)
	shared, routed := c.shared(m, few), c.experts(c.picks, m)
	t := Time{Card: shared + routed, Copies: c.copies(n, shared), Copied: n * float64(c.s.ExpertCard), Wanted: active(c.picks, m), Found: active(c.picks[:l.kept], m)}
	t.Total = max(t.Copies, shared) + routed
	return t
}

// activeOnly copies what the router chose, and finds what stays and what the layer's
// own places still hold.
func activeOnly(c *calc, l layout, m float64, few bool) Time {
	own := float64(l.slots) / float64(c.s.MoE)
	return fetch(c, l, ownHits(c.picks[l.kept:], m, own), own, m, few)
}

// pooled does the same with one cache for all layers.
func pooled(c *calc, l layout, m float64, few bool) Time {
	return fetch(c, l, sharedHits(c.picks[l.kept:], m, float64(l.slots)/float64(c.s.MoE-l.layers)), float64(l.slots), m, few)
}

// grouped, of generated rows: other experts than those that stay come when they are
// chosen, to buffers that the layers of other groups use too. Prompts are computed by
// pipeline.
func grouped(c *calc, l layout, m float64, few bool) Time {
	groups := min(l.groups, c.s.MoE-l.layers)
	return fetch(c, l, slotHits(c.picks[l.kept:], m, float64(groups)/float64(l.buffers)), math.Inf(1), m, few)
}

// fetch predicts the copies of the experts that m rows take, that do not stay, and that are not
// found on the GPU, into the given number of places. The host has to see the router's choice first
// (chooser.layers). Experts that are found are one wave. The others come in waves of half the
// places: a wave is computed when all of it is there, while the next one comes. The host hands over
// and launches every wave. The first copies begin after the handover of the found experts; if
// nothing is copied, launches hide that time. If found experts lie in the places of the first
// copies, the copies wait until these are computed. Shared experts follow on the stream of the last
// wave.
func fetch(c *calc, l layout, found, places, m float64, few bool) Time {
	need, n := active(c.picks, m), active(c.picks[l.kept:], m)*(1-found)
	shared, routed := c.shared(m, few), c.experts(c.picks, m)
	t := Time{Card: shared + routed, Copied: n * float64(c.s.ExpertCard), Wanted: need, Found: max(0, need-n)}
	t.Copies = c.copies(n, routed)
	one := min(n, waveOf(places))
	if one > 0 {
		any := min(1, n) // a step in which something is missing
		t.HandOver = micro * c.card.SyncUS * (any*min(1, t.Found) + max(any, n/one))
	}
	there, last := 0.0, one/max(1, need)*routed
	if held := active(c.picks[l.kept:], m) * found; one > places-held {
		there = t.Found / max(1, need) * routed
	}
	t.Total = t.HandOver + max(routed, there+t.Copies+last) + shared
	return t
}

// waveOf returns the number of experts that come at once, half the number of places. Between two
// whole numbers of places it is the average of layers that have one or the other.
func waveOf(places float64) float64 {
	whole := math.Floor(places)
	less, more := math.Floor((whole+1)/2), math.Floor((whole+2)/2)
	if part := places - whole; part > 0 {
		less += part * (more - less)
	}
	return max(1, less)
}

// pipeline predicts a prompt that goes through groups of layers. The experts of a group that do not
// stay are copied once, and all pieces of the prompt are computed with them, one after the other.
// With two buffers the next group's experts are copied meanwhile. Layers that stay are spread evenly
// and the first layer is one of them, so that the GPU computes during the first copy. work is the
// GPU's work for the whole prompt, divided evenly over layers and pieces.
func (c *calc) pipeline(l layout, work Time, pieces int) Time {
	layers, stay := c.s.MoE, l.layers
	streamed := layers - stay
	groups := min(l.groups, streamed)
	x := work.Total / float64(layers*pieces)
	busy := work.Total / float64(streamed) // of the GPU, while a layer comes
	if l.buffers == 1 && groups == streamed {
		busy = 0
	}
	stayHot := float64(l.kept) + float64(l.more)/float64(streamed) // experts of each streamed layer
	y := c.copies(float64(c.s.Experts)-stayHot, busy)
	begun := make([]float64, groups) // when the parts of the model begin
	var copied, computed float64     // ends so far
	var part []float64               // when the experts of each of its layers are there; 0: they stay
	pass := func() {
		for range pieces {
			for _, there := range part {
				computed = max(computed, there) + x
			}
		}
		part = part[:0]
	}
	group, n := 0, 0 // of streamed layers
	for i := range layers {
		if i*stay%layers < stay {
			part = append(part, 0)
			continue
		}
		if n == (group+1)*streamed/groups {
			pass()
			group++
			begun[group] = computed
		}
		n++
		// Its buffer is free when the part begins that comes after the former one in it.
		copied = max(copied, begun[max(0, group-l.buffers+1)]) + y
		part = append(part, copied)
	}
	pass()
	t := work
	t.Total, t.Copies = computed, y*float64(streamed)
	t.Copied = float64(streamed) * (float64(c.s.Experts) - stayHot) * float64(c.s.ExpertCard)
	t.Found = t.Wanted * (float64(stay) + float64(streamed)*stayHot/float64(c.s.Experts)) / float64(layers)
	return t
}
