//go:build cuda

package local

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors/local/config"
	"krater/kernels/cuda"
	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/driver"
)

// TestRanksOnGPUs: ranks on GPUs and beside the CPU give the answers of one GPU, also when the context of one is lost in the middle.
func TestRanksOnGPUs(t *testing.T) {
	if err := Usable(); err != nil {
		t.Skip(err)
	}
	n, err := driver.Count()
	if err != nil {
		t.Fatal(err)
	}
	var want []int32
	for _, x := range []struct {
		device, vram string
		beside       bool // few experts are on the GPU
		lost         cudatest.Loss
	}{
		{"cuda", "0", false, 0}, {"cuda:0,cuda:0", "400MiB,400MiB", false, 0}, {"cuda:0,cuda:1", "0", false, cudatest.Destroyed},
		{"cuda:0,cuda:1", "0", false, cudatest.Faulted}, {"cuda,cpu", "0", true, 0}, {"cpu,cuda", "0", false, cudatest.Destroyed},
		{"cpu,cuda", "0", false, cudatest.Faulted},
	} {
		if testing.Short() && x.lost == cudatest.Faulted {
			continue // the nightly has it
		}
		t.Run(fmt.Sprintf("%s,%d", x.device, x.lost), func(t *testing.T) {
			if n < 2 && strings.Contains(x.device, "cuda:1") {
				_, _, err := Settle(config.Options{Device: config.Kind(x.device)}, config.Reporter{}.Complete())
				if err == nil || !strings.Contains(err.Error(), "GPU 1: the machine has 1") {
					t.Errorf("%s: %v", x.device, err)
				}
				return
			}
			m := openPart(t, config.Kind(x.device), nil, func(o *config.Options) {
				o.DecodeStrategy, o.PrefillStrategy, o.NoMeasure = config.Auto, config.Auto, true
				if x.beside {
					o.DecodeStrategy, o.PrefillStrategy, o.ExpertVRAM = "learned", config.CPUOnly, 512<<10
				}
				if err := o.VRAM.UnmarshalText([]byte(x.vram)); err != nil {
					t.Fatal(err)
				}
			})
			ids := servedTokens(t, m, x.lost)
			if want == nil {
				want = ids
			}
			if !slices.Equal(ids, want) {
				t.Errorf("%v, on one GPU %v", ids, want)
			}
			m.Close()
		})
	}
}

// servedTokens returns four tokens of an answer. The GPU of the second rank may be lost before the last of them.
func servedTokens(t *testing.T, m *Model, lost cudatest.Loss) []int32 {
	t.Helper()
	v, err := m.Serve(zerolog.New(zerolog.NewTestWriter(t)))
	if err != nil {
		t.Fatal(err)
	}
	gw, err := m.Gateway(v.Pipeline(), "")
	if err != nil {
		t.Fatal(err)
	}
	st, events := asked(t, gw, 0, 4), 0
	ids, err := rest(st, func() {
		if events++; events == 3 && lost != cudatest.Kept {
			cudatest.Lose(t, m.Ranks[1].Device.(*cuda.Device).Owner(), lost)
		}
	})
	st.Close()
	if err != nil || len(ids) != 4 {
		t.Fatalf("%v, %v", ids, err)
	}
	if lost != cudatest.Kept && len(m.Ranks) != 1 {
		t.Errorf("%d ranks after a loss", len(m.Ranks))
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	return ids
}
