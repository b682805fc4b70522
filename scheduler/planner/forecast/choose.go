package forecast

import (
	"fmt"
	"slices"

	"krater/scheduler/planner"
)

// asFast: what is so much of the fastest counts as fast, and takes less memory.
const asFast = 0.99

// asMuch: memory of so much of another's counts as much.
const asMuch = 0.9

// choose predicts both phases: the fastest prefill, then the fastest decode in what it
// leaves. Of prefills that are as fast the one counts that leaves most to decode with; one that
// is nearly as fast counts where decode gains much more: divide.
func (x *chooser) choose(f *Forecast) {
	list := f.Candidates
	for i := range list {
		list[i].Prefill = x.prefill(&x.of[i], list[i].Groups)
	}
	p, d, decode := x.pair(list)
	why := ""
	if p >= 0 {
		if v := x.divide(list, p, d, decode); v != nil {
			why = v.why(x.s, &list[p], list[p].Prefill, &decode[d])
			f.PrefillExperts = v.side.layout.experts(x.s)
			p, d, decode = v.p, v.d, v.decode
			list[p].Prefill, x.divided = v.side, true
		}
	}
	for i := range list {
		list[i].Decode = decode[i]
	}
	if p >= 0 {
		if s := &x.of[p]; x.of[d].lends() && s.borrows() && list[p].Groups > 0 && x.b.Prefill == 0 && !list[p].Prefill.layout.whole(x.s) {
			l := list[p].Prefill.layout.borrowed(x.s, list[d].Decode.layout.experts(x.s))
			list[p].Prefill = x.side(s, l, x.windows(l), false)
		}
		f.Prefill, f.Decode = &list[p], &list[d]
		list[p].Prefill.Chosen, list[d].Decode.Chosen = true, true
	}
	for i := range list {
		x.explain(&list[i].Prefill, f.Prefill, false)
		if i == p && why != "" {
			list[i].Prefill.Reason = why + "; " + list[i].Prefill.Reason
		}
		x.explain(&list[i].Decode, f.Decode, true)
	}
}

// pair returns the best prefill and decode with all decodes beside that prefill; below 0 if
// nothing fits. A prefill that leaves nothing to decode with does not fit.
func (x *chooser) pair(list []Candidate) (p, d int, decode []Side) {
	for p = -1; p < 0; {
		fastest := 0.0
		for i := range list {
			if s := &list[i].Prefill; s.Fits && x.wanted[0].is(&list[i]) {
				fastest = max(fastest, s.Score)
			}
		}
		if fastest == 0 {
			return -1, -1, x.beside(list, -1, layout{})
		}
		for i := range list {
			s := &list[i].Prefill
			if !s.Fits || s.Score < asFast*fastest || !x.wanted[0].is(&list[i]) {
				continue
			}
			sides := x.beside(list, i, s.layout)
			best := x.best(list, sides)
			if best < 0 {
				first := slices.IndexFunc(list, func(c Candidate) bool { return x.wanted[1].is(&c) })
				s.Fits, s.Reason = false, "no strategy decodes beside it: "+sides[first].Reason
				continue
			}
			if p < 0 || x.better(list, i, &sides[best], p, &decode[d]) {
				p, d, decode = i, best, sides
			}
		}
	}
	return p, d, decode
}

// better compares decodes beside two prefills a and b, which are as fast: the faster
// one, or the one of less memory.
func (x *chooser) better(list []Candidate, a int, with *Side, b int, than *Side) bool {
	v, w := with.Score, than.Score
	switch {
	case min(v, w) < asFast*max(v, w):
		return v > w
	}
	return before(&list[a], &list[b], with.VRAM, than.VRAM)
}

// beside predicts the decodes of all candidates beside prefill p, whose layout is first; p below
// 0: beside none.
func (x *chooser) beside(list []Candidate, p int, first layout) []Side {
	sides := make([]Side, len(list))
	for i := range list {
		sides[i] = x.decode(i, list[i].Groups, p, first)
	}
	return sides
}

// preferred are strategies in the order that decides between those that are as fast in
// as much memory: what copies least first.
var preferred = []string{"persistent", "learned", "hot_cached_static", "layer_grouped", "weighted_pin", "static_pin", "lru", "active_only", "chunked", "cpu_only"}

// before decides between two that take memory v and w.
func before(a, b *Candidate, v, w int64) bool {
	x, y := slices.Index(preferred, a.Strategy), slices.Index(preferred, b.Strategy)
	if x == y || float64(min(v, w)) < asMuch*float64(max(v, w)) {
		return v < w
	}
	return x < y
}

// best returns the index of the fastest side, of those as fast the one that takes least
// memory; below 0 if none fits.
func (x *chooser) best(list []Candidate, sides []Side) int {
	fastest, at := 0.0, -1
	for i := range sides {
		if sides[i].Fits && x.wanted[1].is(&list[i]) {
			fastest = max(fastest, sides[i].Score)
		}
	}
	for i := range sides {
		s := &sides[i]
		if !s.Fits || s.Score < asFast*fastest || !x.wanted[1].is(&list[i]) {
			continue
		}
		if at < 0 || before(&list[i], &list[at], s.VRAM, sides[at].VRAM) {
			at = i
		}
	}
	return at
}

// room returns the number of experts that fit beside memory for the given number of experts (windows).
func (x *chooser) room(besides int) int {
	return int(min(int64(x.s.all()), max(0, x.b.Room(x.s.expertBytes(besides)))/x.s.ExpertCard))
}

// windows returns the memory that prompts in groups of layers need beside experts, in experts, rounded up.
func (x *chooser) windows(l layout) int {
	if l.groups == 0 || l.whole(x.s) {
		return 0
	}
	return int((x.b.Window + x.s.ExpertCard - 1) / x.s.ExpertCard)
}

// prefill predicts prompts with the whole budget.
func (x *chooser) prefill(s *strategy, groups int) Side {
	room := x.room(0)
	if x.b.Prefill > 0 {
		room = int(min(int64(room), x.b.Prefill/x.s.ExpertCard))
	}
	return x.prefillIn(s, groups, room)
}

// prefillIn predicts prompts with memory for room experts.
func (x *chooser) prefillIn(s *strategy, groups, room int) Side {
	if reason := x.crowded(); reason != "" {
		return Side{Reason: reason}
	}
	if groups > 0 && room < x.s.all() {
		room = min(room, x.room(x.windows(layout{groups: groups})))
	}
	list, reason := s.layouts(x.s, room, layout{}, groups)
	return x.fastest(s, list, reason, x.windows, false)
}

// crowded says why not even the rest of the model fits.
func (x *chooser) crowded() string {
	if x.b.Room(0) >= 0 {
		return ""
	}
	return fmt.Sprintf("weights and workspace (%s) and the KV cache (%s) exceed %.0f %% of the GPU's %s",
		planner.Size(x.b.Fixed), planner.Size(x.b.KV), 100*planner.RefuseShare, planner.Size(x.b.VRAM))
}

// decode predicts generated tokens of candidate i in what prefill p leaves, whose
// layout is first. What stays for prefill is there for decode too; places for what comes
// and goes belong to one of them, unless both are the same strategy or decode lends to prefill.
func (x *chooser) decode(i, groups, p int, first layout) Side {
	s := &x.of[i]
	if reason := x.crowded(); reason != "" {
		return Side{Reason: reason}
	}
	if i == p {
		return x.fastest(s, []layout{first}, "", func(layout) int { return x.windows(first) }, true)
	}
	if p >= 0 && s.lends() && x.of[p].borrows() {
		list, reason := s.layouts(x.s, x.room(x.windows(first)), layout{}, groups)
		side := x.fastest(s, list, reason, func(l layout) int { return x.windows(first) + max(0, first.experts(x.s)-l.stay(x.s)) }, true)
		return x.bothForms(side, s, p, first)
	}
	list, reason := s.layouts(x.s, x.room(x.windows(first))-first.experts(x.s), layout{layers: first.layers, kept: first.kept}, groups)
	if reason != "" && first.experts(x.s) > 0 {
		reason += " beside prefill's"
	}
	// Prefill's places, and what stays that this one does not count.
	side := x.fastest(s, list, reason, func(l layout) int { return x.windows(first) + first.experts(x.s) - min(first.stay(x.s), l.stay(x.s)) }, true)
	if p < 0 {
		return side
	}
	return x.bothForms(side, s, p, first)
}

// bothForms counts the host's memory of a decode beside prefill p: each form of experts is there
// once.
func (x *chooser) bothForms(side Side, s *strategy, p int, first layout) Side {
	if side.Fits {
		both := strategy{hosts: s.hosts && side.RAM > 0 || x.of[p].hosts && !first.whole(x.s), copies: (s.copies || s.between) && side.RAM > 0 || x.of[p].copies && !first.whole(x.s)}
		side.RAM = x.ram(&both, layout{})
		x.checkRAM(&side)
	}
	return side
}

// fastest returns the best of several layouts by the deciding time. held returns the number of
// experts on the GPU besides those of a layout.
func (x *chooser) fastest(s *strategy, list []layout, reason string, held func(layout) int, decode bool) Side {
	out := Side{Reason: reason}
	for _, l := range list {
		side := x.side(s, l, held(l), decode)
		if !out.Fits || side.Score > out.Score {
			out = side
		}
	}
	if out.Fits {
		x.checkKV(&out, decode)
		x.checkRAM(&out)
	}
	return out
}

func (x *chooser) checkKV(s *Side, decode bool) {
	if s.Fits && s.Score == 0 {
		s.Fits, s.Reason = false, fmt.Sprintf("the KV cache has room for %d tokens for sure, not for a prompt of %d", x.sure(), x.middle())
		if decode {
			s.Reason = fmt.Sprintf("the KV cache has room for %d tokens, not for %d streams of %d", max(0, s.KV), x.w.Streams, x.w.Context)
		}
	}
}

func (x *chooser) checkRAM(s *Side) {
	if most := planner.RefuseShare * float64(x.b.RAM); s.Fits && x.b.RAM > 0 && float64(s.RAM) > most {
		s.Fits, s.Reason = false, fmt.Sprintf("experts take %s of the host's memory, which has %s", planner.Size(s.RAM), planner.Size(x.b.RAM))
	}
}
