package local

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/actors/local/config"
	"krater/kernels/hostsim"
)

// asked submits a request for the tokens after a prompt.
func asked(t *testing.T, gw engine.Engine, i, tokens int) engine.Stream {
	t.Helper()
	seed := uint64(i)
	ids := make([]int32, 40+9*i)
	for j := range ids {
		ids[j] = int32(100 + (j*j+3*i*j)%150)
	}
	st, err := gw.Submit(context.Background(), &engine.Request{
		ID: "test", Prompt: engine.Prompt{IDs: ids}, MaxTokens: tokens, IgnoreEOS: true, Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1, Temperature: float64(i % 2), Seed: &seed},
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// rest returns the tokens of an answer from here on; begun is called after each event.
func rest(st engine.Stream, begun func()) (ids []int32, err error) {
	for {
		e, err := st.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return ids, nil
		}
		if err != nil || e.Kind == engine.Failed {
			return ids, errors.Join(err, e.Err)
		}
		for _, tok := range e.Tokens {
			ids = append(ids, tok.ID)
		}
		begun()
	}
}

// TestLostDevice: when a device is lost in the middle of answers, the model is loaded on those that are left, and the answers are the same
// as without the loss. When the last one is lost, requests fail by name.
func TestLostDevice(t *testing.T) {
	const requests, tokens = 3, 24
	var want [][]int32
	for _, device := range []config.Kind{"cpu", "hostsim,hostsim,cpu"} {
		m := openPart(t, device, nil, nil)
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
				if events++; i == 0 && events == 5 && device != "cpu" {
					m.Ranks[1].Device.(*hostsim.Device).Fail(hostsim.Operator, 1)
				}
			})
			st.Close()
			switch {
			case err != nil || len(ids) != tokens:
				t.Errorf("%s, request %d: %v, %v", device, i, ids, err)
			case device == "cpu":
				want = append(want, ids)
			case !slices.Equal(ids, want[i]):
				t.Errorf("%s, request %d: %v, want %v", device, i, ids, want[i])
			}
		}
		if device == "cpu" {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if n := len(m.Ranks); n != 2 || m.Plan.Options.Device != "hostsim,cpu" {
			t.Errorf("%d ranks on %s after the loss", n, m.Plan.Options.Device)
		}
		m.Ranks[0].Device.(*hostsim.Device).Fail(hostsim.Operator, 1)
		st := asked(t, gw, 1, tokens)
		if ids, err := rest(st, func() {}); err != nil || !slices.Equal(ids, want[1]) || len(m.Ranks) != 1 {
			t.Errorf("after the second loss: %v, %v on %d ranks", ids, err, len(m.Ranks))
		}
		st.Close()
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	o := config.Default()
	if _, err := o.Without(0); err == nil || !strings.Contains(err.Error(), "no device is left") {
		t.Error(err)
	}
	o.Device, o.VRAM = "cuda:1,cpu,cuda:1,cuda:0", config.Each(1<<30, 0, 2<<30, 3<<30)
	if f, err := o.Without(2); err != nil || f.Device != "cpu,cuda:0" || f.VRAM != config.Each(0, 3<<30) {
		t.Errorf("%s with %s, %v", f.Device, f.VRAM, err)
	}
}
