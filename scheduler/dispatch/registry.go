package dispatch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

type entry struct {
	name     string
	strategy Strategy
}

// registry lists the strategies by number, from 1. The number of a strategy never changes.
var registry = [...]entry{
	{"cpu_only", cpuOnly{}},
	{"chunked", chunked{}},
	{"active_only", activeOnly{}},
	{"static_pin", staticPin{}},
	{"weighted_pin", weightedPin{}},
	{"lru", lru{}},
	{"persistent", persistent{}},
	{"layer_grouped", layerGrouped{buffers: 2}},
	{"hot_cached_static", hotCachedStatic{}},
	{"learned", learned{}},
}

// All returns the strategies, by number.
func All() []Strategy {
	var all []Strategy
	for _, r := range registry {
		all = append(all, r.strategy)
	}
	return all
}

// Names lists the strategies as "1 cpu_only", by number.
func Names() []string {
	var names []string
	for i, r := range registry {
		names = append(names, fmt.Sprintf("%d %s", i+1, r.name))
	}
	return names
}

// Parse returns the strategy with a name or number, such as "lru" or "6". The number of groups may
// follow layer_grouped, "layer_grouped:4", and then the number of staging buffers, 1 or 2,
// "layer_grouped:4:1"; the default is 2. For an unknown name the error wraps ErrUnknown and lists
// all names.
func Parse(text string) (Strategy, error) {
	name, argument, has := strings.Cut(text, ":")
	i := slices.IndexFunc(registry[:], func(e entry) bool { return e.name == name })
	if n, err := strconv.Atoi(name); i < 0 && err == nil && n >= 1 && n <= len(registry) {
		i = n - 1
	}
	if i < 0 {
		return nil, fmt.Errorf("%w: %q: there are %s", ErrUnknown, text, strings.Join(Names(), ", "))
	}
	s := registry[i].strategy
	if _, grouped := s.(layerGrouped); has && grouped {
		return parseGroups(argument)
	}
	if has {
		return nil, fmt.Errorf("%w: %s takes no number, got %q", ErrUnknown, registry[i].name, argument)
	}
	return s, nil
}

// parseGroups reads the numbers of layer_grouped.
func parseGroups(text string) (Strategy, error) {
	groups, buffers, has := strings.Cut(text, ":")
	g := layerGrouped{buffers: 2}
	var err error
	if g.groups, err = strconv.Atoi(groups); err != nil || g.groups < 2 || g.groups > groupsMost {
		return nil, fmt.Errorf("%w: layer_grouped: %q groups, want 2 to %d", ErrUnknown, groups, groupsMost)
	}
	if has {
		if g.buffers, err = strconv.Atoi(buffers); err != nil || g.buffers < 1 || g.buffers > 2 {
			return nil, fmt.Errorf("%w: layer_grouped: %q staging buffers, want 1 or 2", ErrUnknown, buffers)
		}
	}
	return g, nil
}

// Divisor returns the strategy of an --expert-divisor: 0 is chunked, 1 persistent, and a larger n
// layer_grouped with n groups.
func Divisor(n int) (Strategy, error) {
	switch n {
	case 0:
		return chunked{}, nil
	case 1:
		return persistent{}, nil
	}
	return parseGroups(strconv.Itoa(n))
}
