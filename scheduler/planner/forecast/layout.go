package forecast

import (
	"fmt"

	"krater/scheduler/planner"
)

// layout is what a strategy puts into a card's memory.
type layout struct {
	kept    int // the hottest experts of each layer that stay there
	slots   int // places for others, which come and go
	groups  int // of layers whose experts come together; 0: no groups
	buffers int // for groups: with 2 the next one comes while one is computed
}

// experts is how many are on the card at a time at most.
func (l layout) experts(s *Shape) int { return l.kept*s.MoE + l.slots }

// strategy is one of the nine.
type strategy struct {
	name string
	// hosts: the processors compute experts. copies: experts are copied in a step.
	// keeps: some experts always stay.
	hosts, copies, keeps bool
	// layouts are the ways to use room for so many experts, none with the reason
	// where it is too little. The faster one is taken.
	layouts func(s *Shape, room, groups int) ([]layout, string)
	// layer is the routed experts of one layer for m rows, with the shared ones.
	layer func(c *calc, l layout, m float64, few bool) Time
}

// strategies are all, by number.
var strategies = []strategy{
	{"cpu_only", true, false, false, nothing, cpuOnly},
	{"chunked", false, true, false, buffer, chunked},
	{"active_only", false, true, false, compact, activeOnly},
	{"static_pin", false, true, true, pins, pinned},
	{"weighted_pin", false, true, true, pins, pinned},
	{"lru", false, true, false, pool, pooled},
	{"persistent", false, false, true, everything, resident},
	{"layer_grouped", false, true, true, staging, grouped},
	{"hot_cached_static", true, false, true, hot, hotAndCold},
}

// size writes experts and their bytes.
func size(s *Shape, experts int) string {
	return fmt.Sprintf("%d experts, %s", experts, planner.Size(s.expertBytes(experts)))
}

func short(s *Shape, what string, need, room int) string {
	return fmt.Sprintf("%s needs room for %s; there is room for %d", what, size(s, need), max(0, room))
}

func nothing(*Shape, int, int) ([]layout, string) { return []layout{{}}, "" }

// buffer is one layer's experts, or as many as there is room for.
func buffer(s *Shape, room, _ int) ([]layout, string) {
	if room < 1 {
		return nil, short(s, "its buffer", 1, room)
	}
	return []layout{{slots: min(s.Experts, room)}}, ""
}

// compact are places of each layer of its own, or one buffer for all of them where
// they would hold less than a token takes.
func compact(s *Shape, room, _ int) ([]layout, string) {
	if room < s.TopK {
		return nil, short(s, "a token's layer", s.TopK, room)
	}
	each := min(s.Experts, room/s.MoE)
	if each < s.TopK {
		return []layout{{slots: min(s.Experts, room)}}, ""
	}
	return []layout{{slots: each * s.MoE}}, ""
}

// pins keep the hottest beside a buffer for the others.
func pins(s *Shape, room, _ int) ([]layout, string) {
	if room < s.TopK {
		return nil, short(s, "a token's layer", s.TopK, room)
	}
	free := min(s.Experts, max(2*s.TopK, (s.Experts+3)/4), room)
	kept := min(s.Experts, (room-free)/s.MoE)
	if kept == s.Experts {
		free = 0
	}
	return []layout{{kept: kept, slots: free}}, ""
}

// pool is one cache for all layers.
func pool(s *Shape, room, _ int) ([]layout, string) {
	if room < s.TopK {
		return nil, short(s, "a token's layer", s.TopK, room)
	}
	return []layout{{slots: min(s.all(), room)}}, ""
}

func everything(s *Shape, room, _ int) ([]layout, string) {
	if room < s.all() {
		return nil, short(s, "keeping all", s.all(), room)
	}
	return []layout{{kept: s.Experts}}, ""
}

// hotMost bounds the layouts of hot.
const hotMost = 512

// hot keeps the hottest experts of every layer: any number of them that there is room
// for, since with too many the processors have too little to do.
func hot(s *Shape, room, _ int) (list []layout, reason string) {
	if room < s.MoE {
		return nil, short(s, "an expert of each layer", s.MoE, room)
	}
	most := min(s.Experts, room/s.MoE)
	for n := most; n > 0; n -= 1 + s.Experts/hotMost {
		list = append(list, layout{kept: n})
	}
	return list, ""
}

// staging are buffers for groups of layers; what is left keeps the hottest experts of
// every layer, which then need no place in the buffers.
func staging(s *Shape, room, groups int) (list []layout, reason string) {
	group := (s.MoE + groups - 1) / groups // layers of a group
	for buffers := 2; buffers >= 1; buffers-- {
		staged := buffers * group // layers
		if staged > s.MoE {       // more than the model
			continue
		}
		if room < staged*s.Experts {
			reason = short(s, fmt.Sprintf("a buffer of %d layers", group), staged*s.Experts, room)
			continue
		}
		kept := s.Experts
		if staged < s.MoE {
			kept = min(s.Experts, (room-staged*s.Experts)/(s.MoE-staged))
		}
		list = append(list, layout{kept: kept, slots: staged * (s.Experts - kept), groups: groups, buffers: buffers})
	}
	return list, reason
}

// groupings are the numbers of groups that are worth a look.
func groupings(s *Shape) (list []int) {
	for n := 2; n < s.MoE; n *= 2 {
		list = append(list, n)
	}
	return append(list, s.MoE)
}
