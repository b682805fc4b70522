package forecast

// beside is two things of which the longer one counts.
func beside(card, other float64) float64 { return max(card, other) }

// cpuOnly: rows go to the processors and come back, shared experts run meanwhile.
func cpuOnly(c *calc, _ layout, m float64, few bool) Time {
	return split(c, 0, m, few)
}

// hotAndCold: experts on the card and the processors' at the same time.
func hotAndCold(c *calc, l layout, m float64, few bool) Time {
	return split(c, l.kept, m, few)
}

// split has the hottest experts on the card and the others on the processors.
func split(c *calc, kept int, m float64, few bool) Time {
	hot, cold := c.picks[:kept], c.picks[kept:]
	t := Time{Card: c.shared(m, few) + c.experts(hot, m), Wanted: active(hot, m)}
	t.Found = t.Wanted
	if len(cold) > 0 {
		t.Host, t.HandOver = c.host(cold, m), c.handOver(cold, m)
	}
	t.Total = beside(t.Card, t.Host+t.HandOver)
	return t
}

// chunked: all experts of a layer come, then they are computed. Only shared experts
// run beside the copies.
func chunked(c *calc, _ layout, m float64, few bool) Time {
	n := float64(c.s.Experts)
	shared, routed := c.shared(m, few), c.experts(c.picks, m)
	t := Time{Card: shared + routed, Copies: c.copies(n, shared), Copied: n * float64(c.s.ExpertCard), Wanted: active(c.picks, m)}
	t.Total = beside(t.Copies, shared) + routed
	return t
}

// activeOnly copies what the router chose. A prompt's layers find nothing of former
// ones; generated rows find what their layer's places still hold.
func activeOnly(c *calc, l layout, m float64, few bool) Time {
	if each := l.slots / c.s.MoE; few && each >= c.s.TopK {
		return fetch(c, c.picks, hits(c.picks, m, float64(each)), m, few)
	}
	return fetch(c, c.picks, 0, m, few)
}

// pooled does the same with one cache for all layers, in either phase.
func pooled(c *calc, l layout, m float64, few bool) Time {
	return fetch(c, c.picks, hits(c.picks, m, float64(l.slots)/float64(c.s.MoE)), m, few)
}

// pinned copies what the router chose and is not pinned.
func pinned(c *calc, l layout, m float64, few bool) Time {
	need := active(c.picks, m)
	return fetch(c, c.picks, max(0, 1-active(c.picks[l.kept:], m)/need), m, few)
}

// fetch copies what is not found of the experts that m rows take. The host has to see
// the router's choice first. Experts that are there are computed while others come,
// the last one after its copy.
func fetch(c *calc, picks []float64, found, m float64, few bool) Time {
	need := active(picks, m)
	n := need * (1 - found)
	t := Time{Card: c.shared(m, few) + c.experts(picks, m), Copied: n * float64(c.s.ExpertCard), Wanted: need, Found: need - n}
	if n > 0 {
		t.HandOver = micro * c.card.SyncUS
	}
	t.Copies = c.copies(n, t.Card)
	last := min(1, n) / max(1, need) * c.experts(picks, m)
	t.Total = t.HandOver + beside(t.Card, t.Copies+last)
	return t
}

// resident: everything is there.
func resident(c *calc, _ layout, m float64, few bool) Time {
	t := Time{Card: c.shared(m, few) + c.experts(c.picks, m), Wanted: active(c.picks, m)}
	t.Total, t.Found = t.Card, t.Wanted
	return t
}

// grouped, of generated rows: the kept experts are there, others come when they are
// chosen. Prompts are computed by pipeline.
func grouped(c *calc, l layout, m float64, few bool) Time { return pinned(c, l, m, few) }

// pipeline is a prompt through groups of layers: the experts of a group come once, all
// passes of the prompt are computed with them, and with two buffers the next group's
// come meanwhile. work is what the card computes in all.
func (c *calc) pipeline(l layout, work Time) Time {
	s := c.s
	group := (s.MoE + l.groups - 1) / l.groups
	cold := float64(s.Experts - l.kept)
	t := work
	t.Copied, t.Total = cold*float64(s.MoE)*float64(s.ExpertCard), 0
	t.Found = t.Wanted * float64(l.kept) / float64(s.Experts)
	var copied, computed, before float64 // ends: of the last copy, of the last group, of the one before it
	for at := 0; at < s.MoE; at += group {
		layers := float64(min(group, s.MoE-at))
		x := work.Total * layers / float64(s.MoE)
		busy := 0.0
		if at > 0 && l.buffers > 1 {
			busy = x
		}
		y := c.copies(cold*layers, busy)
		free := before // the group that had the buffer is done
		if l.buffers == 1 {
			free = computed
		}
		copied = max(copied, free) + y
		before, computed = computed, max(copied, computed)+x
		t.Copies += y
	}
	t.Total = computed
	return t
}
