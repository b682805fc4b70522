package actors

import (
	"slices"
	"strings"
	"testing"

	"krater/kernels/tensor"
	"krater/stages/load"
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		layers, n int
		want      []GroupSpec
	}{
		{7, 1, []GroupSpec{{First: 0, Last: 7}}},
		{7, 3, []GroupSpec{{First: 0, Last: 3}, {First: 3, Last: 5}, {First: 5, Last: 7}}},
		{3, 3, []GroupSpec{{First: 0, Last: 1}, {First: 1, Last: 2}, {First: 2, Last: 3}}},
		{3, 4, nil}, {3, 0, nil}, {3, -1, nil}, {0, 1, nil},
	} {
		got, err := Cut(c.layers, c.n)
		if (err == nil) != (c.want != nil) || !slices.Equal(got, c.want) {
			t.Errorf("%d layers in %d groups: %v, %v", c.layers, c.n, got, err)
		}
	}
	// The loader cuts in the same way.
	for layers := 1; layers < 20; layers++ {
		for n := 1; n <= layers; n++ {
			groups, err := Cut(layers, n)
			if err != nil {
				t.Fatal(err)
			}
			if err := (&Blueprint{Groups: groups, Pools: 1, MicroBatches: 1}).Check(layers); err != nil {
				t.Error(err)
			}
			for i, size := range load.Even(layers, n) {
				if g := groups[i]; g.Last-g.First != size {
					t.Errorf("%d layers in %d: group %d has %d, loaded are %d", layers, n, i, g.Last-g.First, size)
				}
			}
		}
	}
}

func TestBlueprintCheck(t *testing.T) {
	whole := []GroupSpec{{First: 0, Last: 4}}
	for _, c := range []struct {
		b    Blueprint
		want string
	}{
		{Blueprint{Groups: whole, Pools: 1, MicroBatches: 1}, ""},
		{Blueprint{Groups: []GroupSpec{{First: 0, Last: 1, Rank: 0}, {First: 1, Last: 4, Rank: 1}}, Pools: 64, MicroBatches: 3}, ""},
		{Blueprint{Pools: 1, MicroBatches: 1}, "no layer group"},
		{Blueprint{Groups: whole, MicroBatches: 1}, "0 expert pools"},
		{Blueprint{Groups: whole, Pools: 65, MicroBatches: 1}, "65 expert pools"},
		{Blueprint{Groups: whole, Pools: 1}, "0 micro-batches"},
		{Blueprint{Groups: []GroupSpec{{First: 1, Last: 4, Rank: 0}}, Pools: 1, MicroBatches: 1}, "want it to start at 0"},
		{Blueprint{Groups: []GroupSpec{{First: 0, Last: 2, Rank: 0}, {First: 3, Last: 4, Rank: 0}}, Pools: 1, MicroBatches: 1}, "want it to start at 2"},
		{Blueprint{Groups: []GroupSpec{{First: 0, Last: 2, Rank: 0}, {First: 2, Last: 2, Rank: 0}}, Pools: 1, MicroBatches: 1}, "group 1 has layers [2, 2)"},
		{Blueprint{Groups: []GroupSpec{{First: 0, Last: 3, Rank: 0}}, Pools: 1, MicroBatches: 1}, "end at layer 3 of 4"},
		{Blueprint{Groups: []GroupSpec{{First: 0, Last: 5, Rank: 0}}, Pools: 1, MicroBatches: 1}, "end at layer 5 of 4"},
	} {
		err := c.b.Check(4)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.b, err, c.want)
		}
	}
}

func TestBlueprintString(t *testing.T) {
	b := Blueprint{Groups: []GroupSpec{{First: 0, Last: 1, Rank: 0}, {First: 1, Last: 4, Rank: 1}}, Pools: 2, MicroBatches: 3}
	const want = "schedule > embed > group0[0..0 on rank 0, 2 pools] > link[direct] > group1[1..3 on rank 1, 2 pools] > head > sample > stream; micro-batches: 3"
	if got := b.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// TestStartRefuses a blueprint that is not what is loaded, impossible limits of
// the scheduler, and a device without the memory; nothing is left.
func TestStartRefuses(t *testing.T) {
	o := setup{dir: golden("deepseek_v2_lite"), groups: 2, limits: small(2), kv: tensor.F32}.defaults()
	l := loadModel(t, o)
	used := l.dev.Memory().Used
	good := l.options(t, o)
	for name, change := range map[string]func(*Options){
		"one group": func(o *Options) { o.Blueprint.Groups = []GroupSpec{{First: 0, Last: 3, Rank: 0}} },
		"another cut": func(o *Options) {
			o.Blueprint.Groups = []GroupSpec{{First: 0, Last: 1, Rank: 0}, {First: 1, Last: 3, Rank: 0}}
		},
		"three groups": func(o *Options) {
			o.Blueprint.Groups = []GroupSpec{{First: 0, Last: 1, Rank: 0}, {First: 1, Last: 2, Rank: 0}, {First: 2, Last: 3, Rank: 0}}
		},
		"no pool":         func(o *Options) { o.Blueprint.Pools = 0 },
		"micro-batches":   func(o *Options) { o.Blueprint.MicroBatches = 65 },
		"no prefill rows": func(o *Options) { o.Policy.PrefillChunk = 0 },
	} {
		opt := good
		change(&opt)
		if p, err := Start(l.placed(), opt); err == nil {
			t.Errorf("%s: started", name)
			p.Close()
		}
	}
	if now := l.dev.Memory().Used; now != used {
		t.Errorf("%d bytes used, %d before", now, used)
	}
}
