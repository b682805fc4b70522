package dispatch

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestFalls: what does not fit falls along one chain, step by step, to the last that
// needs nothing.
func TestFalls(t *testing.T) {
	setup := Setup{Experts: 4, Bytes: 10}
	for l := range int32(5) {
		setup.Layers = append(setup.Layers, l)
	}
	const grouped = "persistent layer_grouped:2 layer_grouped:3 layer_grouped:4 layer_grouped:5 layer_grouped:5:1 chunked cpu_only"
	for _, c := range []struct {
		from   string
		budget int64
		want   string // what is tried; the last fits
	}{
		{"persistent", 200, "persistent"},
		{"persistent", 199, "persistent layer_grouped:2 layer_grouped:3"},
		{"persistent", 160, "persistent layer_grouped:2 layer_grouped:3"},
		{"persistent", 159, "persistent layer_grouped:2 layer_grouped:3 layer_grouped:4"},
		{"persistent", 80, strings.TrimSuffix(grouped, " layer_grouped:5:1 chunked cpu_only")},
		{"persistent", 79, strings.TrimSuffix(grouped, " chunked cpu_only")},
		{"persistent", 40, strings.TrimSuffix(grouped, " chunked cpu_only")},
		{"persistent", 39, strings.TrimSuffix(grouped, " cpu_only")},
		{"persistent", 10, strings.TrimSuffix(grouped, " cpu_only")},
		{"persistent", 9, grouped},
		{"layer_grouped", 79, "layer_grouped layer_grouped:5:1"},
		{"layer_grouped:4", 79, "layer_grouped:4 layer_grouped:5 layer_grouped:5:1"},
		{"layer_grouped:99", 79, "layer_grouped:99 layer_grouped:5:1"},
		{"layer_grouped:3:1", 79, "layer_grouped:3:1 chunked"},
		{"chunked", 0, "chunked cpu_only"},
		{"active_only", 9, "active_only cpu_only"}, {"static_pin", 9, "static_pin cpu_only"}, {"weighted_pin", 9, "weighted_pin cpu_only"},
		{"lru", 9, "lru cpu_only"}, {"hot_cached_static", 9, "hot_cached_static cpu_only"}, {"learned", 9, "learned cpu_only"}, {"cpu_only", 0, "cpu_only"},
		{"active_only", 10, "active_only"}, {"static_pin", 10, "static_pin"}, {"weighted_pin", 10, "weighted_pin"},
		{"lru", 10, "lru"}, {"hot_cached_static", 10, "hot_cached_static"}, {"learned", 10, "learned"},
	} {
		s, err := Parse(c.from)
		if err != nil {
			t.Fatal(err)
		}
		setup.Budget = c.budget
		x, err := Settle(s, &setup)
		if err != nil {
			t.Fatal(err)
		}
		tried := []string{c.from}
		for _, f := range x.Falls {
			if f.From != tried[len(tried)-1] || !errors.Is(f.Why, ErrNoRoom) || !strings.HasPrefix(f.Why.Error(), f.From+": ") {
				t.Errorf("after %s: %+v", tried, f)
			}
			tried = append(tried, f.To)
		}
		if want := strings.Fields(c.want); !slices.Equal(tried, want) || x.Name() != want[len(want)-1] {
			t.Errorf("%s with %d bytes: %s, tried %v; want %v", c.from, c.budget, x.Name(), tried, want)
		}
	}
	if _, err := Settle(persistent{}, &Setup{Layers: []int32{1}}); !errors.Is(err, ErrSetup) {
		t.Errorf("an impossible setup: %v", err)
	}
}

// TestStarts are the numbers of each strategy's start.
func TestStarts(t *testing.T) {
	two, both := []int32{1, 3}, [Phases]bool{true, true}
	for _, c := range []struct {
		strategy string
		setup    Setup
		want     Start
		err      string
	}{
		{"cpu_only", Setup{Layers: two[:1], Experts: 1000, Bytes: 1000, Budget: 1}, Start{Host: both, Fixed: both}, ""},
		{"persistent", Setup{Layers: two, Experts: 2, Bytes: 5, Budget: 20},
			Start{Slots: 4, Loads: []Load{{0, Key{1, 0}}, {1, Key{1, 1}}, {2, Key{3, 0}}, {3, Key{3, 1}}}, Fixed: both}, ""},
		{"persistent", Setup{Layers: two, Experts: 2, Bytes: 5, Budget: 15, Kept: []Key{{1, 1}}},
			Start{Slots: 3, Loads: []Load{{0, Key{1, 0}}, {1, Key{3, 0}}, {2, Key{3, 1}}}, Fixed: both}, ""},
		{"persistent", Setup{Layers: two, Experts: 2, Bytes: 5, Budget: 19},
			Start{}, "persistent: experts do not fit on the device: 4 experts of 5 bytes need 20 bytes, the budget is 19"},
		{"persistent", Setup{Layers: make([]int32, 1), Experts: 1 << 16, Bytes: 1 << 62, Budget: Unlimited},
			Start{}, "persistent: experts do not fit on the device: 65536 experts of 4611686018427387904 bytes"},
		{"hot_cached_static", Setup{Layers: two, Experts: 2, Bytes: 5, Budget: 10},
			Start{Slots: 2, Loads: []Load{{0, Key{1, 0}}, {1, Key{3, 0}}}, Host: both, Fixed: both}, ""},
		{"hot_cached_static", Setup{Layers: two, Experts: 2, Bytes: 5, Budget: 10, Heat: [][]uint32{{1, 5}, {4, 6}}},
			Start{Slots: 2, Loads: []Load{{0, Key{1, 1}}, {1, Key{3, 1}}}, Host: both, Fixed: both}, ""},
		{"hot_cached_static", Setup{Layers: two, Experts: 2, Bytes: 5, Budget: 10, Heat: [][]uint32{{1, 2}, {4, 6}}},
			Start{Slots: 2, Loads: []Load{{0, Key{3, 0}}, {1, Key{3, 1}}}, Host: both, Fixed: both}, ""},
		{"hot_cached_static", Setup{Layers: two, Experts: 2, Bytes: 5, Budget: 0, Kept: []Key{{1, 0}}},
			Start{Loads: []Load{}, Host: both, Fixed: both}, ""},
		{"learned", Setup{Layers: two, Experts: 2, Bytes: 5, Budget: 10, Heat: [][]uint32{{1, 2}, {4, 6}}},
			Start{Slots: 2, Loads: []Load{{0, Key{3, 0}}, {1, Key{3, 1}}}, Host: both, Fixed: both, Learns: true}, ""},
		{"learned", Setup{Layers: two, Experts: 1, Bytes: 5, Budget: 10},
			Start{Slots: 2, Loads: []Load{{0, Key{1, 0}}, {1, Key{3, 0}}}, Fixed: both}, ""},
		{"hot_cached_static", Setup{Layers: two, Experts: 2, Bytes: 5, Budget: Unlimited},
			Start{Slots: 4, Loads: []Load{{0, Key{1, 0}}, {1, Key{1, 1}}, {2, Key{3, 0}}, {3, Key{3, 1}}}, Fixed: both}, ""},
		{"chunked", Setup{Layers: two, Experts: 3, Bytes: 5, Budget: 10}, Start{Slots: 2, Places: []Place{{0, 2}, {0, 2}}}, ""},
		{"active_only", Setup{Layers: two, Experts: 3, Bytes: 5, Budget: 25}, Start{Slots: 5, Places: []Place{{0, 2}, {2, 3}}}, ""},
		{"active_only", Setup{Layers: two, Experts: 3, Bytes: 5, Budget: 5}, Start{Slots: 1, Places: []Place{{0, 1}, {0, 1}}}, ""},
		{"lru", Setup{Layers: two, Experts: 3, Bytes: 5, Budget: 25}, Start{Slots: 5, Places: []Place{{0, 5}, {0, 5}}}, ""},
		{"static_pin", Setup{Layers: two, Experts: 9, Bytes: 1, Budget: 8, Heat: [][]uint32{{8, 0, 1, 0, 7, 6, 5, 0, 0}, {0, 0, 0, 9, 0, 0, 0, 9, 0}}},
			Start{Slots: 8, Loads: []Load{{0, Key{1, 0}}, {1, Key{1, 4}}, {2, Key{1, 5}}, {3, Key{1, 6}}, {4, Key{3, 3}}, {5, Key{3, 7}}}, Places: []Place{{6, 1}, {7, 1}}}, ""},
		{"layer_grouped", Setup{Layers: []int32{1, 2, 4, 6}, Experts: 1, Bytes: 2, Budget: 7},
			Start{Slots: 3, Loads: []Load{{0, Key{1, 0}}}, Places: []Place{{}, {1, 1}, {2, 1}, {1, 1}}, Parts: []int{0, 2, 3}, Fixed: [Phases]bool{true, false}}, ""},
		{"layer_grouped:2", Setup{Layers: []int32{1, 2, 4, 6}, Experts: 1, Bytes: 2, Budget: 7},
			Start{}, "layer_grouped:2: experts do not fit on the device: 4 experts of 2 bytes need 8 bytes, the budget is 7"},
		{"layer_grouped:2:1", Setup{Layers: []int32{1, 2, 4, 6}, Experts: 1, Bytes: 2, Budget: 4},
			Start{Slots: 2, Places: []Place{{0, 1}, {1, 1}, {0, 1}, {1, 1}}, Parts: []int{0, 2}, Fixed: [Phases]bool{true, false}}, ""},
		{"persistent", Setup{Layers: []int32{1}}, Start{}, "impossible setup of experts: 1 layers of 0 experts"},
		{"cpu_only", Setup{Layers: []int32{1}, Experts: 1 << 17, Bytes: 1}, Start{}, "impossible setup of experts: 1 layers of 131072 experts"},
		{"cpu_only", Setup{Layers: []int32{1}, Experts: 1}, Start{}, "impossible setup of experts: experts of 0 bytes, a budget of 0"},
		{"lru", Setup{Layers: []int32{1}, Experts: 1, Bytes: 1, Budget: -1}, Start{}, "impossible setup of experts: experts of 1 bytes, a budget of -1"},
		{"chunked", Setup{Layers: []int32{2, 1}, Experts: 1, Bytes: 1}, Start{}, "impossible setup of experts: layers [2 1] do not rise"},
		{"static_pin", Setup{Layers: []int32{1}, Experts: 2, Bytes: 1, Heat: [][]uint32{{1}}}, Start{}, "impossible setup of experts: layer 1: heat of 1 experts of 2"},
		{"layer_grouped", Setup{Layers: []int32{1}, Experts: 2, Bytes: 1, Heat: [][]uint32{}}, Start{}, "impossible setup of experts: heat of 0 layers, the model has 1"},
	} {
		s, err := Parse(c.strategy)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Start(&c.setup)
		if c.err != "" {
			if err == nil || err.Error() != c.err || !errors.Is(err, ErrNoRoom) && !errors.Is(err, ErrSetup) {
				t.Errorf("%s, %+v: %v, want %s", c.strategy, c.setup, err, c.err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s, %+v: %+v, %v; want %+v", c.strategy, c.setup, got, err, c.want)
		}
	}
}

// TestApportion: whole numbers by weight, within the room of each.
func TestApportion(t *testing.T) {
	for _, c := range []struct {
		n       int
		weights []float64
		room    []int
		want    []int
	}{
		{0, []float64{1, 1}, []int{5, 5}, []int{0, 0}}, {3, []float64{1, 1}, []int{5, 5}, []int{2, 1}}, {6, []float64{1, 2}, []int{5, 5}, []int{2, 4}},
		{9, []float64{1, 2}, []int{5, 5}, []int{4, 5}}, {10, []float64{1, 99}, []int{5, 5}, []int{5, 5}}, {7, []float64{0.1, 0.1, 0.1}, []int{9, 9, 9}, []int{3, 2, 2}},
	} {
		if got := apportion(c.n, c.weights, c.room); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%d by %v: %v, want %v", c.n, c.weights, got, c.want)
		}
	}
}

// TestSkewHelps: pins and heat find more hits than the first by id do, where the router
// prefers others.
func TestSkewHelps(t *testing.T) {
	setup := &Setup{Layers: []int32{0, 1, 2, 3}, Experts: 32, Bytes: 1, Budget: 32}
	heat := make([][]uint32, 4)
	for i := range heat {
		heat[i] = make([]uint32, 32)
		for e := range heat[i] {
			heat[i][e] = 1
			if e >= 24 && i == 3 || e >= 28 && i < 3 {
				heat[i][e] = 100
			}
		}
	}
	for _, s := range []Strategy{hotCachedStatic{}, staticPin{}, weightedPin{}} {
		hits := func(heat [][]uint32) (n int) {
			setup.Heat = heat
			start, err := s.Start(setup)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range start.Loads {
				if l.Expert >= 28 {
					n++
				}
			}
			return n
		}
		if with, without := hits(heat), hits(nil); with < 12 || without != 0 {
			t.Errorf("%s: %d of the hot experts are there, without a heat map %d", s.Name(), with, without)
		}
	}
	// The layer whose router is undecided gets fewer pins.
	setup.Heat = [][]uint32{slices.Repeat([]uint32{7}, 32), heat[1], heat[2], slices.Repeat([]uint32{0}, 32)}
	start, err := weightedPin{}.Start(setup)
	if err != nil {
		t.Fatal(err)
	}
	var of [4]int
	for _, l := range start.Loads {
		of[l.Layer]++
	}
	if of[0] != of[3] || of[1] != of[2] || of[1] < 4*of[0] || of[0]+of[1]+of[2]+of[3] != 24 {
		t.Errorf("pins by layer: %v", of)
	}
}
