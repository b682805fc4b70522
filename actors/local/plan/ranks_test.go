package plan

import (
	"slices"
	"strings"
	"testing"

	"krater/actors/local/config"
	"krater/kernels/machine"
	"krater/stages/model"
	"krater/stages/synth"
)

// ranksOf plans a shape on ranks; gpus are the sizes of their GPUs in GiB, 0 for other ranks.
func ranksOf(t *testing.T, device config.Kind, gpus []int64, change func(*config.Options)) (*Plan, error) {
	t.Helper()
	data, err := synth.Config("deepseek-v2-lite", 0)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	f, l := config.Default(), config.Case{}
	f.Device, f.MaxSeqs, f.CacheDir, f.Force = device, 4, t.TempDir(), true
	for _, g := range gpus {
		l.Ranks = append(l.Ranks, config.RankFacts{Name: "NVIDIA H100 80GB HBM3", Memory: g << 30, Capacity: g << 30})
	}
	if change != nil {
		change(&f)
	}
	return New(cfg, 0, f, l, &machine.Machine{Memory: machine.Memory{Total: 64 << 30, Available: 64 << 30}})
}

func sizesOf(o *Plan) (list []int) {
	for _, r := range o.RankReport() {
		list = append(list, r.Layers)
	}
	return list
}

// TestRanksByMemoryAndSpeed: the slowest rank decides the cut, within the memory of each; the KV cache is as large as the least room allows, on
// every rank.
func TestRanksByMemoryAndSpeed(t *testing.T) {
	equal, err := ranksOf(t, "cuda,cuda", []int64{24, 24}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := sizesOf(equal); s[0]+s[1] != 27 || s[0] < s[1] || s[0]-s[1] > 3 { // the head is on the last
		t.Errorf("two equal GPUs: %v", s)
	}
	if a, b := equal.Ranks[0].TimeShare, equal.Ranks[1].TimeShare; a < 0.45 || a+b < 0.999 || a+b > 1.001 {
		t.Errorf("two equal GPUs: shares %g and %g of the time", a, b)
	}
	other, err := ranksOf(t, "cuda,cuda", []int64{4, 12}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := sizesOf(other); s[0] >= s[1] {
		t.Errorf("4 GiB and 12 GiB: %v", s)
	}
	mixed, err := ranksOf(t, "cuda,cpu", []int64{24, 0}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := sizesOf(mixed); s[0] < 20 || s[1] < 1 {
		t.Errorf("a GPU that is much faster than the CPU: %v", s)
	}
	for _, o := range []*Plan{equal, other, mixed} {
		for i, r := range o.Ranks {
			if r.Load.Blocks != o.Load.Blocks {
				t.Errorf("rank %d of %v has %d KV blocks, all have %d", i, sizesOf(o), r.Load.Blocks, o.Load.Blocks)
			}
			if b := o.Memory.Devices[min(i+1, len(o.Memory.Devices)-1)]; r.place.Kind == config.CUDA && !b.Fits() {
				t.Errorf("rank %d of %v: %s", i, sizesOf(o), b.Verdict())
			}
		}
		if table := o.RankTable(); strings.Count(table, "\n") != 3 || !strings.Contains(table, "KV cache: ") {
			t.Errorf("%s", table)
		}
	}
	given, err := ranksOf(t, "cuda,cuda", []int64{24, 24}, func(f *config.Options) { f.PPPartition = "7,20" })
	if err != nil || !slices.Equal(sizesOf(given), []int{7, 20}) {
		t.Errorf("%v, %v", given, err)
	}
	if _, err := ranksOf(t, "cpu", nil, func(f *config.Options) { f.Ranks = 28 }); err == nil || !strings.Contains(err.Error(), "--ranks 28: the model has 27 layers") {
		t.Error(err)
	}
}

// TestCacheLeavesExperts: the KV cache of several GPUs takes no room of experts that fit without it.
func TestCacheLeavesExperts(t *testing.T) {
	facts := []config.RankFacts{{Name: "NVIDIA H200", Memory: 30 << 30}, {Name: "NVIDIA H200", Memory: 20 << 30}}
	p := plannedFor(t, config.Case{Rank: facts[0], Ranks: facts}, "--device", "cuda:0,cuda:1", "--kv-dtype", "fp8")
	for i, r := range p.Ranks {
		if !r.Resident {
			t.Errorf("rank %d: not all experts are on the GPU, beside %d KV blocks", i, r.Load.Blocks)
		}
		if r.Load.Blocks != p.Load.Blocks {
			t.Errorf("rank %d: %d KV blocks, the model has %d", i, r.Load.Blocks, p.Load.Blocks)
		}
	}
	if p.Limits == "" || !p.Memory.Fits() {
		t.Errorf("limited by %q: %v", p.Limits, p.Memory.Check())
	}
}

// TestOneRankByIndex: a list of one GPU is that GPU.
func TestOneRankByIndex(t *testing.T) {
	facts := config.RankFacts{Name: "NVIDIA H200", Memory: 30 << 30}
	p := plannedFor(t, config.Case{Rank: facts, Ranks: []config.RankFacts{facts}}, "--device", "cuda:1")
	if o := &p.Options; o.Device != config.CUDA || o.GPUIndex != 1 || !p.Resident || p.Place() != (config.Place{Kind: config.CUDA, Index: 1}) {
		t.Errorf("--device %s --gpu %d at %v, all experts there: %t", o.Device, o.GPUIndex, p.Place(), p.Resident)
	}
}
