//go:build unix

package cache

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/tensor"
	"krater/stages/weights"
)

// same expert, always.
type one struct{ w13, w2 *tensor.Matrix }

func (o one) Expert(int, int) (w13, w2 *tensor.Matrix, err error) { return o.w13, o.w2, nil }

func oneExpert(t testing.TB, p *Plan) one {
	w13, w2, err := (&made{plan: p}).Expert(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	return one{w13, w2}
}

// BenchmarkConvert is the conversion of four experts of DeepSeek-V2-Lite; its rate
// is that of the source's BF16 bytes.
func BenchmarkConvert(b *testing.B) {
	cfg := mixtures(1, 2048, 4, 1408)
	data := make([]byte, 2*cfg.Hidden*cfg.MoE.FF)
	r := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < len(data); i += 2 {
		v := tensor.F32ToBF16(float32(r.NormFloat64() * 0.02))
		data[i], data[i+1] = byte(v), byte(v>>8)
	}
	var list []weights.Named
	for e := range cfg.MoE.Experts {
		n := cfg.ExpertNames(0, e)
		for _, name := range []string{n.Gate, n.Up, n.Down} {
			list = append(list, weights.Named{Name: name, Tensor: weights.Tensor{DType: tensor.BF16, Shape: []int{cfg.MoE.FF, cfg.Hidden}, Data: data}})
		}
	}
	set := weights.Of(list, nil, nil)
	for _, bits := range []int{4, 8} {
		for _, x := range []struct {
			files   string
			gpu     bool
			threads int
		}{{"cpu", false, 1}, {"cpu", false, 0}, {"both", true, 1}, {"both", true, 0}} {
			b.Run(fmt.Sprintf("int%d/%s/threads=%d", bits, x.files, workers(x.threads)), func(b *testing.B) {
				format := tensor.Integers(bits).By(64)
				plan, err := NewPlan(cfg, format, Search, Fingerprint{})
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(list) * len(data)))
				for b.Loop() {
					o := Options{Plan: plan, Dir: b.TempDir(), Threads: x.threads, Source: &Weights{Config: cfg, Set: set, Format: format, Method: Search, Threads: x.threads}}
					if x.gpu {
						o.Also = append(o.Also, forGPU(plan))
					}
					if _, err := Build(b.Context(), o); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkLoad is a start with a cache of 600 MB in the page cache.
func BenchmarkLoad(b *testing.B) {
	o, _, _ := options(b, b.TempDir())
	o.Plan.Hidden, o.Plan.FF, o.Plan.Experts, o.Plan.Layers = 2048, 1408, 32, []int{1, 2, 3, 4}
	o.Source = oneExpert(b, &o.Plan)
	r, err := Build(b.Context(), *o)
	if err != nil {
		b.Fatal(err)
	}
	dev, err := cpu.New(cpu.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	for _, x := range []struct {
		name string
		copy bool
	}{{"map", false}, {"copy", true}} {
		b.Run(x.name, func(b *testing.B) {
			o.Copy = x.copy
			b.SetBytes(r.Bytes)
			for b.Loop() {
				c, err := Open(b.Context(), dev, *o)
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
