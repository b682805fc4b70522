//go:build !race

package local

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/local/config"
	"krater/kernels/hostsim"
)

// TestHelperSpeed measures a rank with a helper in virtual time. A helper of any speed makes nothing slower: it gets as much of a prompt as
// pays, and no generated token where the rank holds all experts.
func TestHelperSpeed(t *testing.T) {
	const rate, fast, prompt = int64(1e9), int64(2e9), 4 * 32
	x := equalLayers(t, map[string]any{"num_hidden_layers": 2, "moe_intermediate_size": 512, "n_shared_experts": 1})
	// times measures a prompt, and generated tokens without their prompts.
	times := func(helper, link int64) (a, b time.Duration, answers [][]int32) {
		a, answers = x.beside(t, helper, link, 1, 0, 1, prompt, 1)
		few, _ := x.beside(t, helper, link, 1, 0, 4, 8, 1)
		b, _ = x.beside(t, helper, link, 1, 0, 4, 8, 6)
		return a, b - few, answers
	}
	before := int64(0)
	var alone, decoded time.Duration
	var want [][]int32
	for _, c := range []struct {
		name       string
		rate, link int64
		least      float64
	}{{"equal", rate, fast, 1.3}, {"half the speed", rate / 2, fast, 1.15}, {"a tenth of the speed", rate / 10, fast, 1}, {"equal, slow link", rate, fast / 100, 1}} {
		if c.link != before {
			alone, decoded, want = times(0, c.link)
			t.Logf("alone: a prompt %v, tokens of 4 streams %v", alone, decoded)
			before = c.link
		}
		took, tokens, got := times(c.rate, c.link)
		t.Logf("%s: a prompt %v (%.2f), tokens %v (%.3f)", c.name, took, alone.Seconds()/took.Seconds(), tokens, decoded.Seconds()/tokens.Seconds())
		if gain := alone.Seconds() / took.Seconds(); gain < c.least {
			t.Errorf("%s: a prompt is %.3f times as fast, want %.2f", c.name, gain, c.least)
		}
		if tokens > decoded {
			t.Errorf("%s: tokens take %v, %v without the helper", c.name, tokens, decoded)
		}
		if !slices.EqualFunc(want, got, slices.Equal) {
			t.Errorf("%s: tokens %v, want %v", c.name, got, want)
		}
	}
}

// TestHelperFollows: with two micro-batches the rank computes the attention of a chunk while the helper computes experts of the one before it, so
// a larger share pays.
func TestHelperFollows(t *testing.T) {
	const rate, fast, prompt = int64(1e9), int64(2e9), 4 * 32
	x := equalLayers(t, map[string]any{"num_hidden_layers": 6, "moe_intermediate_size": 256, "n_shared_experts": 1})
	alone, want := x.beside(t, 0, fast, 1, 0, 1, prompt, 1)
	for _, c := range []struct {
		micro, share int
		least        float64
	}{{1, 50, 1.2}, {2, 50, 1.3}, {2, 75, 1.5}} {
		took, got := x.beside(t, rate, fast, c.micro, c.share, 1, prompt, 1)
		gain := alone.Seconds() / took.Seconds()
		t.Logf("%d micro-batches, %d %%: a prompt %v, alone %v (%.2f)", c.micro, c.share, took, alone, gain)
		if gain < c.least {
			t.Errorf("a prompt is %.3f times as fast, want %.2f", gain, c.least)
		}
		if !slices.EqualFunc(want, got, slices.Equal) {
			t.Errorf("tokens %v, want %v", got, want)
		}
	}
}

// beside is inTurn on one rank with a helper of a rate, which gets a share, over a link with a number of bytes a second; 0: without.
func (x *equal) beside(t *testing.T, helper, link int64, micro, share, streams, prompt, tokens int) (time.Duration, [][]int32) {
	t.Helper()
	const rate = int64(1e9)
	return x.run(t, func(o *config.Options) {
		o.Device, o.MicroBatches, o.GPUPrefillThreshold = "hostsim", micro, 16
		if helper > 0 {
			o.ExpertDevice, o.ExpertShare = "hostsim", share
		}
	}, func(m *Model) {
		copies := hostsim.Link{BytesPerSecond: link, Latency: 5 * time.Microsecond}
		if m.Rates = ratesOf(rate); helper > 0 {
			r := ratesOf(helper)
			r.Up, r.Down = copies, copies
			m.HelperRates = &r
		}
		m.Rates.Up, m.Rates.Down = copies, copies
	}, streams, prompt, tokens)
}

// ratesOf makes the rates of a simulated device.
func ratesOf(rate int64) hostsim.Rates {
	return hostsim.Rates{Memory: 10 * rate, Flops: 50 * rate, Launch: time.Duration(2e12 / rate)}
}

// TestLostHelper: when a helper is lost in the middle of answers, they go on without it, and when the rank is lost, on the helper's device.
func TestLostHelper(t *testing.T) {
	const requests, tokens = 3, 24
	m := openPart(t, "cpu", nil, nil)
	want := answers(t, m, requests, tokens, nil)
	for rank, kept := range []string{"hostsim", "hostsim"} {
		m := openPart(t, "hostsim", nil, func(o *config.Options) {
			o.DecodeStrategy, o.PrefillStrategy = config.Auto, config.Auto
			o.ExpertDevice, o.ExpertShare, o.GPUPrefillThreshold = "hostsim", 50, 2
		})
		if m.Helper == nil || m.Plan.Helper.Part != 0.5 {
			t.Fatalf("%+v", m.Plan.Helper)
		}
		got := answers(t, m, requests, tokens, func(gw engine.Engine) {
			dev := m.Ranks[0].Device
			if rank == 1 {
				dev = m.Helper.Device
			}
			dev.(*hostsim.Device).Fail(hostsim.Operator, 1)
			if rank == 1 { // generated tokens do not use it
				st := asked(t, gw, 2, 1)
				if _, err := rest(st, func() {}); err != nil {
					t.Error(err)
				}
				st.Close()
			}
		})
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("lost %d: answer %d is %v, want %v", rank, i, got[i], want[i])
			}
		}
		if m.Helper != nil || len(m.Ranks) != 1 || string(m.Plan.Options.Device) != kept {
			t.Errorf("lost %d: on %s with helper %v", rank, m.Plan.Options.Device, m.Helper)
		}
	}
}

// TestUnhelped: a model whose helper has no part is served without it.
func TestUnhelped(t *testing.T) {
	m := openPart(t, "hostsim", nil, func(o *config.Options) {
		o.DecodeStrategy, o.PrefillStrategy = config.Auto, config.Auto
		o.ExpertDevice, o.GPUPrefillThreshold = "hostsim", 1<<20 // more rows than a batch has
	})
	if m.Helper == nil {
		t.Fatal("there is no helper")
	}
	got := answers(t, m, 1, 4, nil)
	if m.Helper != nil || m.Plan.Helper != nil || len(got[0]) != 4 {
		t.Errorf("helper %v after the start, %v", m.Helper, got)
	}
}

// answers returns the tokens of several requests; during is called in the middle.
func answers(t *testing.T, m *Model, requests, tokens int, during func(gw engine.Engine)) (all [][]int32) {
	t.Helper()
	v, err := m.Serve(zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	gw, err := m.Gateway(v.Pipeline(), "")
	if err != nil {
		t.Fatal(err)
	}
	var open []engine.Stream
	for i := range requests {
		open = append(open, asked(t, gw, i, tokens))
	}
	for i, st := range open {
		events := 0
		ids, err := rest(st, func() {
			if events++; i == 0 && events == 5 && during != nil {
				during(gw)
			}
		})
		if st.Close(); err != nil || len(ids) != tokens {
			t.Errorf("request %d: %v, %v", i, ids, err)
		}
		all = append(all, ids)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	return all
}

// TestHelperPlan: the plan counts the helper's memory as it is taken, whether the helper holds a part of all experts or those that the
// rank lacks, and says why a helper has no part. Strategies that move experts are refused.
func TestHelperPlan(t *testing.T) {
	for _, c := range []struct {
		vram   string
		part   float64
		unless string // why the helper has no part
	}{{"0,0", 0.5, ""}, {"28MiB,24MiB", 0, ""}, {"28MiB,6MiB", 0, "has room for"}} {
		change := func(o *config.Options) {
			o.DecodeStrategy, o.PrefillStrategy, o.KVCache = config.Auto, config.Auto, 2<<20
			o.ExpertDevice, o.ExpertShare = "hostsim", 50
			if err := o.VRAM.UnmarshalText([]byte(c.vram)); err != nil {
				t.Fatal(err)
			}
		}
		m := openPart(t, "hostsim", nil, change)
		if h := m.Plan.Helper; (h == nil) != (c.unless != "") || !strings.Contains(m.Plan.Unhelped, c.unless) || h != nil && h.Part != c.part {
			t.Errorf("--vram %s: %+v, %q\n%s", c.vram, h, m.Plan.Unhelped, m.Plan.RankTable())
			continue
		}
		p, err := m.Pipeline(zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		if u := m.MemoryUse(); u.Allocated != u.Promised || u.Allocated == 0 {
			t.Errorf("--vram %s: %d bytes promised, %d allocated", c.vram, u.Promised, u.Allocated)
		}
		if m.Helper != nil {
			if used, want := m.Helper.Memory().Used, m.Plan.Helper.Bytes; used > want || used < want*9/10 {
				t.Errorf("--vram %s: the helper has taken %d bytes, planned are %d", c.vram, used, want)
			}
			if table := m.Plan.RankTable(); !strings.Contains(table, "helper  hostsim") {
				t.Error(table)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	c := Config{Options: config.Default()}
	c.Options.Device, c.Options.ExpertDevice, c.Options.DecodeStrategy = "hostsim", "hostsim", "lru"
	if _, err := Prepare(c); err == nil || !strings.Contains(err.Error(), "and not lru") {
		t.Error(err)
	}
}
