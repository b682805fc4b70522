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

// registry has every strategy under its number, from 1 on; a number keeps its
// strategy. Those without one are not part of this version.
var registry = [...]entry{
	{"cpu_only", cpuOnly{}},
	{"chunked", nil},
	{"active_only", nil},
	{"static_pin", nil},
	{"weighted_pin", nil},
	{"lru", nil},
	{"persistent", persistent{}},
	{"layer_grouped", nil},
	{"hot_cached_static", nil},
}

// All gives the strategies there are, by number.
func All() []Strategy {
	var all []Strategy
	for _, r := range registry {
		if r.strategy != nil {
			all = append(all, r.strategy)
		}
	}
	return all
}

// Names lists the strategies there are as "1 cpu_only", by number.
func Names() []string {
	var names []string
	for i, r := range registry {
		if r.strategy != nil {
			names = append(names, fmt.Sprintf("%d %s", i+1, r.name))
		}
	}
	return names
}

// Parse finds a strategy by its name or number. ErrUnknown lists what there is.
func Parse(text string) (Strategy, error) {
	name, argument, has := strings.Cut(text, ":")
	i := slices.IndexFunc(registry[:], func(e entry) bool { return e.name == name })
	if n, err := strconv.Atoi(name); i < 0 && err == nil && n >= 1 && n <= len(registry) {
		i = n - 1
	}
	switch {
	case i < 0:
		return nil, fmt.Errorf("%w: %q: there are %s", ErrUnknown, text, strings.Join(Names(), ", "))
	case registry[i].strategy == nil:
		return nil, fmt.Errorf("%w in this version: %s: there are %s", ErrUnknown, registry[i].name, strings.Join(Names(), ", "))
	case has:
		return nil, fmt.Errorf("%w: %s takes no number, got %q", ErrUnknown, registry[i].name, argument)
	}
	return registry[i].strategy, nil
}
