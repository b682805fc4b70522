package actors

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/machine"
	"krater/kernels/tensor"
	"krater/stages"
	"krater/stages/compare"
	"krater/stages/drive"
	"krater/stages/expert"
	"krater/stages/load"
	"krater/stages/weights/cache"
)

// fakes are made-up nodes as in machine.ParseTopology.
func fakes(t testing.TB, topology string) []cpu.Node {
	t.Helper()
	made, err := machine.ParseTopology(topology)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := cpu.NodesOf(&machine.Machine{}, made, 0)
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

// integers loads the routed experts as INT4 or INT8 and, on a device with nodes,
// places them for the given number of pools.
func integers(t testing.TB, bits, pools int) func(d *cpu.Device, l *loaded, o *load.Options) {
	return func(d *cpu.Device, l *loaded, o *load.Options) {
		t.Helper()
		o.Precision = load.Precision{Experts: tensor.Integers(bits).By(32)}
		src := &cache.Weights{Config: l.cfg, Set: l.set, Format: tensor.Integers(bits).By(32), Method: cache.Search}
		layers := make([][]device.QExpert, len(l.cfg.Layers))
		var bufs []device.Buffer
		for layer := range layers {
			for e := 0; l.cfg.MoELayer(layer) && e < l.cfg.MoE.Experts; e++ {
				w13, w2, err := src.Expert(layer, e)
				if err != nil {
					t.Fatal(err)
				}
				var x device.QExpert
				if x.W13, err = load.Upload(d, w13, &bufs); err == nil {
					x.W2, err = load.Upload(d, w2, &bufs)
				}
				if err != nil {
					t.Fatal(err)
				}
				layers[layer] = append(layers[layer], x)
			}
		}
		placed, err := expert.Place(context.Background(), d, Partition(d, l.cfg.MoE.Experts, pools), layers, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range bufs { // what was copied is not needed any more
			clear(b.Host())
			b.Free()
		}
		t.Cleanup(placed.Close)
		o.Experts = placed.Experts
	}
}

// logits are the bits of a few sequences' logits, prefill in chunks and decode,
// several at once.
func logits(t testing.TB, r drive.Runner, g *compare.Golden) [][]uint32 {
	t.Helper()
	bits := make([][]uint32, len(g.Prompts))
	seqs := make([]*drive.Sequence, len(g.Prompts))
	for i, p := range g.Prompts {
		seqs[i] = &drive.Sequence{Prompt: p.IDs, New: 6, See: func(_ int, row []float32) {
			for _, v := range row {
				bits[i] = append(bits[i], math.Float32bits(v))
			}
		}}
	}
	if err := drive.Run(r, seqs, drive.Options{Chunk: 9}); err != nil {
		t.Fatal(err)
	}
	return bits
}

// TestGoldensOnNodes holds the goldens on two and four nodes through the
// scheduler, several requests and batches at once.
func TestGoldensOnNodes(t *testing.T) {
	for _, name := range []string{"deepseek_v2_lite", "deepseek_v2"} {
		g, err := compare.ReadGolden(golden(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, topology := range []string{"2x2", "4x1", "1x3,1x1"} {
			t.Run(name+"/"+topology, func(t *testing.T) {
				nodes := fakes(t, topology)
				r := newRig(t, setup{dir: golden(name), groups: 2, pools: len(nodes), depth: 3, nodes: nodes, share: 16, limits: stages.Limits{Tokens: 1000}})
				gw := r.gateway(t)
				report := make(chan error)
				for _, p := range g.Prompts {
					go func() {
						ids, err := generate(gw, p.IDs, len(p.Greedy))
						if err == nil && !slices.Equal(ids, p.Greedy) {
							err = fmt.Errorf("%s: %v, want %v", p.Name, ids, p.Greedy)
						}
						report <- err
					}()
				}
				for range g.Prompts {
					if err := <-report; err != nil {
						t.Error(err)
					}
				}
				rest(t, r, gw)
			})
		}
	}
}

// TestPoolsHaveNodes: as many pools as nodes have one each, with room of their
// own for rows, and the experts that its threads can serve; what is allocated is
// freed.
func TestPoolsHaveNodes(t *testing.T) {
	lim := stages.Limits{Tokens: 8, QuantGroup: 32}
	for _, x := range []struct {
		topology string
		pools    int
		counts   []int // of 20 experts
		near     bool
	}{
		{"2x8,1x4", 3, []int{8, 8, 4}, true},
		{"2x2", 2, []int{10, 10}, true},
		{"1x3,1x1", 4, []int{8, 8, 2, 2}, true},
		{"4x1", 2, []int{10, 10}, false}, // fewer pools than nodes
		{"1x4", 2, []int{10, 10}, false},
		{"", 2, []int{10, 10}, false},
	} {
		o := cpu.Options{Threads: 1}
		if x.topology != "" {
			o = cpu.Options{Nodes: fakes(t, x.topology)}
		}
		d, err := cpu.New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if got := Partition(d, 20, x.pools).Counts(); !slices.Equal(got, x.counts) {
			t.Errorf("%s, %d pools: %v experts, want %v", x.topology, x.pools, got, x.counts)
		}
		seats, err := newPoolSites(d, x.pools, lim, 64)
		if err != nil {
			t.Fatal(err)
		}
		for i := range seats {
			if (seats[i].near != nil) != x.near || seats[i].stream == nil {
				t.Errorf("%s: pool %d has room of its own: %v", x.topology, i, seats[i].near != nil)
			}
		}
		if used := d.Memory().Used; (used > 0) != x.near {
			t.Errorf("%s: %d bytes used", x.topology, used)
		}
		closePoolSites(seats)
		if used := d.Memory().Used; used != 0 {
			t.Errorf("%s: %d bytes used after all was closed", x.topology, used)
		}
	}
	// No room for the second pool's rows: nothing of the first's is left.
	d, err := cpu.New(cpu.Options{Nodes: fakes(t, "2x1"), Budget: 3000})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	// A device that tells of no nodes has no use of them.
	if got := Partition(struct{ device.Device }{d}, 4, 2); !slices.Equal(got.Owner, expert.Even(4, 2).Owner) {
		t.Errorf("without nodes: %v", got)
	}
	if _, err := newPoolSites(d, 2, stages.Limits{Tokens: 8}, 64); err == nil || d.Memory().Used != 0 {
		t.Errorf("%v, %d bytes used", err, d.Memory().Used)
	}
}

// TestPartitionIsChecked: experts placed in another way than pools compute them.
func TestPartitionIsChecked(t *testing.T) {
	o := setup{dir: golden("deepseek_v2_lite"), pools: 2, limits: small(2)}.defaults()
	l := loadModel(t, o)
	good := l.options(t, o)
	for _, bad := range []expert.Partition{expert.Even(l.cfg.MoE.Experts, 3), expert.Even(l.cfg.MoE.Experts+1, 2), {Pools: 2}} {
		opt := good
		opt.Partition = bad
		if p, err := Start(l.placed(), opt); err == nil {
			t.Errorf("%d experts in %d pools: started", len(bad.Owner), bad.Pools)
			p.Close()
		}
	}
	opt := good
	opt.Partition = expert.Spread(l.cfg.MoE.Experts, []int{3, 1})
	p, err := Start(l.placed(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
