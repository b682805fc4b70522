package forecast

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"krater/scheduler/planner"
)

// layout describes the experts and slots that a strategy has in a GPU's memory.
type layout struct {
	layers  int // layers of which all experts stay there
	kept    int // the hottest experts of each other layer that do
	more    int // of these layers, how many keep one more
	slots   int // places for others, which come and go
	groups  int // of layers whose experts come together; 0: no groups
	buffers int // for groups: with 2 the next one comes while one is computed
}

// stay returns the number of experts that always stay on the GPU.
func (l layout) stay(s *Shape) int { return l.layers*s.Experts + l.kept*(s.MoE-l.layers) + l.more }

// experts returns the number of experts that the GPU has places for.
func (l layout) experts(s *Shape) int { return l.stay(s) + l.slots }

// whole reports whether all experts stay.
func (l layout) whole(s *Shape) bool { return l.stay(s) == s.all() }

// strategy is one of the ten.
type strategy struct {
	name string
	// hosts: the processors compute experts. copies: experts are copied in a step. asks: the
	// host has to see the router's choice of every layer, as long as not all experts stay, and
	// where any could be missing even then.
	hosts, copies, asks bool
	// layouts returns the ways to use memory for room experts besides those that base says
	// stay already; none, with the reason, if it is too little. The fastest is taken.
	layouts func(s *Shape, room int, base layout, groups int) ([]layout, string)
	// layer is the routed experts of one layer for m rows, with the shared ones; not all
	// of the layer stay.
	layer func(c *calc, l layout, m float64, few bool) Time
	// between: experts are copied between steps, beside their work. What a step finds is Case.Learned.
	between bool
}

// looks reports whether the host waits for the choice of every layer, of those too that stay:
// it does not know beforehand which step asks for something else. Groups that all stay are
// known to.
func (s *strategy) looks(l layout, shape *Shape) bool {
	return s.asks && !(s.name == groupedName && l.whole(shape))
}

// lends reports whether experts stay in their slots for generated tokens, so that a prefill that
// borrows works in these and has none of its own.
func (s *strategy) lends() bool { return s.name == "hot_cached_static" || s.name == "learned" }

func (s *strategy) borrows() bool { return s.name == groupedName || s.name == "chunked" }

// strategies are all, by number. What they do is scheduler/dispatch's.
var strategies = []strategy{
	{"cpu_only", true, false, false, nothing, cpuOnly, false},
	{"chunked", false, true, false, buffer, chunked, false},
	{"active_only", false, true, true, pool, activeOnly, false},
	{"static_pin", false, true, true, pins, activeOnly, false},
	{"weighted_pin", false, true, true, pins, activeOnly, false},
	{"lru", false, true, true, pool, pooled, false},
	{"persistent", false, false, false, everything, resident, false},
	{groupedName, false, true, true, staging, grouped, false},
	{"hot_cached_static", true, false, false, hot, split, false},
	{name: "learned", hosts: true, between: true, layouts: hot, layer: learned},
}

// learnedNumber is where learned is.
const learnedNumber = 9

// short returns the message that memory for room experts is too little.
func short(s *Shape, what string, need, room int) string {
	experts := "an expert"
	if need != 1 {
		experts = fmt.Sprintf("%d experts", need)
	}
	return fmt.Sprintf("no room for %s: %s, %s; %d fit", what, experts, planner.Size(s.expertBytes(need)), max(0, room))
}

// nothing: what stays for another phase is not used either.
func nothing(*Shape, int, layout, int) ([]layout, string) { return []layout{{}}, "" }

// buffer is one layer's experts, or as many as there is room for.
func buffer(s *Shape, room int, base layout, _ int) ([]layout, string) {
	if room < 1 {
		return nil, short(s, "a buffer", 1, room)
	}
	base.slots = min(s.Experts, room)
	return []layout{base}, ""
}

// pool is all room there is for what comes and goes.
func pool(s *Shape, room int, base layout, _ int) ([]layout, string) {
	if room < 1 {
		return nil, short(s, "a cache", 1, room)
	}
	base.slots = min(s.all()-base.stay(s), room)
	return []layout{base}, ""
}

// pinRest is the part of its room, 1/pinRest, that a pinning strategy leaves to the
// experts that come and go.
const pinRest = 4

// pins keep the hottest. With one skew for all layers the hottest of the whole model
// are equally many of each.
func pins(s *Shape, room int, base layout, _ int) ([]layout, string) {
	if room < 1 {
		return nil, short(s, "pins and a cache", 1, room)
	}
	others := s.all() - base.stay(s)
	if room >= others {
		return []layout{{kept: s.Experts}}, ""
	}
	base.slots = max(1, room/pinRest)
	base.kept = min(s.Experts, base.kept+(room-base.slots)/(s.MoE-base.layers))
	return []layout{base}, ""
}

func everything(s *Shape, room int, base layout, _ int) ([]layout, string) {
	if others := s.all() - base.stay(s); room < others {
		return nil, short(s, "all", others, room)
	}
	return []layout{{kept: s.Experts}}, ""
}

// hotMost bounds the layouts of hot.
const hotMost = 512

// hot keeps the hottest experts of the model: as many as there is room for, or any smaller number of every
// layer, since with too many the processors have too little to do.
func hot(s *Shape, room int, base layout, _ int) (list []layout, reason string) {
	if base.whole(s) {
		return []layout{base}, ""
	}
	layers := s.MoE - base.layers
	if room < layers && base.stay(s) == 0 {
		return nil, short(s, "an expert of each layer", layers, room)
	}
	more := max(0, room) % layers
	for n := min(s.Experts, base.kept+max(0, room)/layers); n > base.kept || n == base.kept && len(list) == 0; n -= 1 + s.Experts/hotMost {
		if n == s.Experts {
			more = 0
		}
		list = append(list, layout{layers: base.layers, kept: n, more: more})
		more = 0
	}
	return list, ""
}

// staging keeps as many whole layers as it can and has two buffers for groups of the
// others, or where they do not fit one for groups of one layer.
func staging(s *Shape, room int, base layout, groups int) (list []layout, reason string) {
	for buffers := 2; buffers >= 1 && list == nil; buffers-- {
		if buffers == 1 && groups < s.MoE {
			break
		}
		need := func(stay int) int { // layers
			if stay == s.MoE {
				return stay
			}
			n := min(groups, s.MoE-stay)
			return stay + min(n, buffers)*((s.MoE-stay+n-1)/n)
		}
		stay := s.MoE
		for stay > 0 && need(stay) > room/s.Experts {
			stay--
		}
		if n := need(stay); n > room/s.Experts {
			what := fmt.Sprintf("two buffers of %d layers", n/2)
			switch {
			case n == 2:
				what = "two buffers of a layer"
			case buffers == 1:
				what = "a buffer of a layer"
			case n == s.MoE:
				what = "two buffers for all layers"
			}
			reason = short(s, what, n*s.Experts, room)
			continue
		}
		list = append(list, layout{layers: max(stay, base.layers), kept: base.kept, slots: (need(stay) - stay) * s.Experts, groups: groups, buffers: buffers})
	}
	return list, reason
}

// borrowed returns the layout of groups whose buffers are lent slots of the hottest experts, of which there are room: the
// others stay, and a buffer holds what layers lack.
func (l layout) borrowed(s *Shape, room int) layout {
	buffers := float64(l.buffers * ((s.MoE + l.groups - 1) / l.groups)) // in layers
	n := float64(room) - buffers*float64(s.Experts)
	if n < 0 || buffers >= float64(s.MoE) {
		return l
	}
	stay := int(n / (1 - buffers/float64(s.MoE)))
	l.layers, l.kept, l.more = 0, stay/s.MoE, stay%s.MoE
	l.slots = max(0, room-stay)
	return l
}

// groupings are the numbers of groups that are worth a look, or wanted.
func groupings(s *Shape, wanted []want) (list []int) {
	for n := 2; n < s.MoE; n *= 2 {
		list = append(list, n)
	}
	list = append(list, s.MoE)
	for _, w := range wanted {
		if w.groups > 0 {
			list = append(list, w.groups)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// groupedName is the strategy that there are several candidates of.
const groupedName = "layer_grouped"

// want is a strategy that was asked for; no name: any.
type want struct {
	name   string
	groups int
}

// is reports whether a candidate is wanted.
func (w want) is(c *Candidate) bool {
	return w.name == "" || w.name == c.Strategy && (w.groups == 0 || w.groups == c.Groups)
}

// wantedOf reads the names of a case. Groups without a number are of one layer each.
func wantedOf(c *Case) (wanted [2]want, err error) {
	for i, text := range []string{c.Prefill, c.Decode} {
		if text == "" {
			continue
		}
		w, number, numbered := want{}, "", false
		w.name, number, numbered = strings.Cut(text, ":")
		switch {
		case w.name == groupedName && numbered:
			w.groups, err = strconv.Atoi(number)
		case w.name == groupedName:
			w.groups = c.Shape.MoE
		}
		known := slices.ContainsFunc(strategies, func(s strategy) bool { return s.name == w.name })
		if !known || err != nil || numbered && (w.name != groupedName || w.groups < 1) {
			return wanted, fmt.Errorf("%w: a strategy %.40q", ErrShape, text)
		}
		w.groups = min(w.groups, c.Shape.MoE)
		wanted[i] = w
	}
	return wanted, nil
}
