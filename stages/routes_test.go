package stages

import (
	"math/rand/v2"
	"slices"
	"testing"

	"krater/stages/internal/hosttest"
)

// TestRoutes: what routers choose on an accelerator stays until the step has ended, whatever
// pieces layers take the batch in and in which order, and comes back row by row.
func TestRoutes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	cfg := testLayers(4, 1)
	for range 100 {
		lim := Limits{Tokens: 1 + rng.IntN(20), Seqs: 3, Blocks: 50, BlockTokens: 4, Context: 40}
		lim.Window = 1 + rng.IntN(lim.Tokens)
		st, err := NewState(tableDevice{}, cfg, lim)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second batch finds what the first has left
			b := randomSpans(rng, lim, 1+rng.IntN(lim.Tokens))
			if err := st.Fill(hosttest.Stream{}, b); err != nil {
				t.Fatal(err)
			}
			want := make([][]int32, len(cfg.Layers))
			route := func(layer int) {
				st.Routing(layer)
				ids := st.RouterIDs.I32s()
				if len(ids) != st.T*cfg.MoE.Router.TopK {
					t.Fatalf("%d ids of %d rows", len(ids), st.T)
				}
				for i := range ids {
					ids[i] = rng.Int32N(4)
				}
				want[layer] = append(want[layer], ids...)
			}
			for _, part := range [][]int{{1, 2}, {3}} {
				for i := range st.Windows() {
					if st.Windows() > 1 {
						st.Look(i)
					}
					for _, layer := range part {
						route(layer)
					}
				}
			}
			st.Whole()
			st.FetchRoutes(hosttest.Stream{})
			for layer := range want {
				if got := st.Routes(layer); !slices.Equal(got, want[layer]) {
					t.Fatalf("%+v, layer %d: %v, want %v", lim, layer, got, want[layer])
				}
			}
		}
	}
}

// TestRoutesOfHost: where the host sees every layer's choice, layers share the room for it.
func TestRoutesOfHost(t *testing.T) {
	st := testState(t)
	if err := st.Fill(hosttest.Stream{}, mixed()); err != nil {
		t.Fatal(err)
	}
	before := st.RouterIDs
	st.Routing(1)
	st.FetchRoutes(hosttest.Stream{})
	if st.RouterIDs.Off != before.Off || st.RouterIDs.Rows != before.Rows || st.full.routerIDs.Rows != st.lim.Tokens || st.Routes(1) != nil {
		t.Errorf("%v became %v of %v", before, st.RouterIDs, st.full.routerIDs)
	}
}
