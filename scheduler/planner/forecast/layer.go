package forecast

// cpuOnly: rows go to the processors and come back, shared experts run meanwhile.
func cpuOnly(c *calc, _ layout, m float64, few bool) Time { return split(c, layout{}, m, few) }

// split has the hottest experts on the card and the others on the processors, at the
// same time.
func split(c *calc, l layout, m float64, few bool) Time {
	hot, cold := c.picks[:l.kept], c.picks[l.kept:]
	t := Time{Card: c.shared(m, few) + c.experts(hot, m), Wanted: active(c.picks, m), Found: active(hot, m)}
	if len(cold) > 0 {
		t.Host, t.HandOver = c.host(cold, m), c.handOver(cold, m)
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
	return fetch(c, l, ownHits(c.picks[l.kept:], m, float64(l.slots)/float64(c.s.MoE)), m, few)
}

// pooled does the same with one cache for all layers.
func pooled(c *calc, l layout, m float64, few bool) Time {
	return fetch(c, l, sharedHits(c.picks[l.kept:], m, float64(l.slots)/float64(c.s.MoE-l.layers)), m, few)
}

// grouped, of generated rows: other experts than those that stay come when they are
// chosen, to buffers that the layers of other groups use too. Prompts are computed by
// pipeline.
func grouped(c *calc, l layout, m float64, few bool) Time {
	groups := min(l.groups, c.s.MoE-l.layers)
	return fetch(c, l, slotHits(c.picks[l.kept:], m, float64(groups)/float64(l.buffers)), m, few)
}

// fetch copies what is not found of the experts that m rows take and that do not stay.
// The host has to see the router's choice first. Experts that are there are computed
// while others come, the last one after its copy.
func fetch(c *calc, l layout, found, m float64, few bool) Time {
	need, n := active(c.picks, m), active(c.picks[l.kept:], m)*(1-found)
	t := Time{Card: c.shared(m, few) + c.experts(c.picks, m), Copied: n * float64(c.s.ExpertCard), Wanted: need, Found: max(0, need-n)}
	if n > 0 {
		t.HandOver = micro * c.card.SyncUS
	}
	t.Copies = c.copies(n, t.Card)
	last := min(1, n) / max(1, need) * c.experts(c.picks, m)
	t.Total = t.HandOver + max(t.Card, t.Copies+last)
	return t
}

// pipeline is a prompt through groups of layers: the experts of a group come once, all
// passes of the prompt are computed with them, and with two buffers the next group's
// come meanwhile. Layers that stay are spread evenly, the first among them, so that
// something can be computed during the first copy. work is what the card computes in
// all; every layer has the same part of it.
func (c *calc) pipeline(l layout, work Time) Time {
	layers, stay := c.s.MoE, l.layers
	streamed := layers - stay
	groups := min(l.groups, streamed)
	x := work.Total / float64(layers)
	busy := work.Total / float64(streamed) // of the card, while a layer comes
	if l.buffers == 1 && groups == streamed {
		busy = 0
	}
	y := c.copies(float64(c.s.Experts), busy)
	begun := make([]float64, groups) // when the parts of the model begin
	var copied, computed float64     // ends so far
	group, n := 0, 0                 // of streamed layers
	for i := range layers {
		if i*stay%layers < stay {
			computed += x
			continue
		}
		if n == (group+1)*streamed/groups {
			group++
			begun[group] = computed
		}
		n++
		// Its buffer is free when the part begins that comes after the former one in it.
		copied = max(copied, begun[max(0, group-l.buffers+1)]) + y
		computed = max(computed, copied) + x
	}
	t := work
	t.Total, t.Copies = computed, y*float64(streamed)
	t.Copied = float64(streamed*c.s.Experts) * float64(c.s.ExpertCard)
	t.Found = t.Wanted * float64(stay) / float64(layers)
	return t
}
