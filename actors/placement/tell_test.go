package placement

import (
	"errors"
	"slices"
	"testing"

	"krater/scheduler/dispatch"
)

// TestTellFalls: however long the chain, a phase has a line.
func TestTellFalls(t *testing.T) {
	chain := func(phase dispatch.Phase, names ...string) (list []Fall) {
		for i := range len(names) - 1 {
			list = append(list, Fall{phase, dispatch.Fall{From: names[i], To: names[i+1], Why: errors.New("no room for " + names[i])}})
		}
		return list
	}
	for _, x := range []struct {
		falls []Fall
		want  []string
	}{
		{nil, nil},
		{chain(dispatch.Decode, "lru", "cpu_only"), []string{"decode: cpu_only instead of lru: no room for lru"}},
		{
			slices.Concat(chain(dispatch.Prefill, "persistent", "layer_grouped:2", "layer_grouped:3", "layer_grouped:4", "layer_grouped:5"), chain(dispatch.Decode, "hot_cached_static", "cpu_only")),
			[]string{"prefill: layer_grouped:5 instead of persistent, layer_grouped:2 to :4: no room for layer_grouped:4", "decode: cpu_only instead of hot_cached_static: no room for hot_cached_static"},
		},
		{
			chain(dispatch.Prefill, "layer_grouped:4", "layer_grouped:5", "layer_grouped:5:1", "chunked", "cpu_only"),
			[]string{"prefill: cpu_only instead of layer_grouped:4, layer_grouped:5, layer_grouped:5:1, chunked: no room for chunked"},
		},
	} {
		if got := TellFalls(x.falls); !slices.Equal(got, x.want) {
			t.Errorf("got  %q\nwant %q", got, x.want)
		}
	}
}
