//go:build cuda

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/actors/placement"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/kernels/cpu"
	"krater/kernels/cuda"
	"krater/kernels/device"
)

// faultyHost is the processor, whose n-th work of experts from now on panics.
type faultyHost struct {
	*cpu.Device
	left atomic.Int64 // 0: none
	work atomic.Int64 // so far
}

func (f *faultyHost) Run(s device.Stream, l device.List) {
	if l.Ops[0].Kind == device.OpExperts {
		f.work.Add(1)
		if f.left.Add(-1) == 0 {
			panic("injected: a pool in the middle of its work")
		}
	}
	f.Device.Run(s, l)
}

// besideActors is lessTiny on a GPU as actors, its experts placed beside a processor.
type besideActors struct {
	*actors.Pipeline
	gw     *actors.Gateway
	host   *faultyHost
	place  *placement.Placement // nil: all experts are on the GPU
	prompt []int32
	want   []int32 // what follows the prompt

	s     *local.Model
	flags *config.Options
	po    placement.Options
}

// besideSlots are fewer than krater-tiny has experts, 192, or lessTiny, 48, and more than two layers.
func besideSlots() int {
	if testing.Short() {
		return 2*lessExperts + 3
	}
	return 70
}

// actorsBesideCard has strategies place the experts, where there are any; else all are on the GPU.
func actorsBesideCard(t *testing.T, prefill, decode string, pools int, args ...string) *besideActors {
	t.Helper()
	cardFor(t, cuda.Options{}).Close()
	b, err := loadBesideCard(t, io.Discard, prefill, decode, pools, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.s.Close)
	if err := b.start(testWriter{t}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	b.learn(t, 8)
	return b
}

// loadBesideCard loads the model of actorsBesideCard without starting it. The program's output goes to out.
func loadBesideCard(t *testing.T, out io.Writer, prefill, decode string, pools int, args ...string) (*besideActors, error) {
	t.Helper()
	var c cli
	args = append([]string{"run", "--device", "cuda", "--kv-cache", "4MiB", "--max-seqs", "4", "--prefill-chunk", "64", "--no-prefix-cache"}, args...)
	if prefill != "" {
		args = append(args, "--expert-vram", fmt.Sprint(besideSlots()*expertTiny), "--prefill-strategy", prefill, "--decode-strategy", decode)
	}
	ctx, file, err := cmdline.Parse(&c, args)
	if err != nil {
		t.Fatal(err)
	}
	s, err := openedFor(&console.Env{Out: out, Err: out, Ctx: ctx, File: file}, lessTiny(t), c.Run.Options)
	if err != nil {
		return nil, err
	}
	s.Plan.Pools = pools
	s.TimingShare = 1 // every copy, whatever that costs so small a model
	s.Plan.Options.InlineBelow = -1
	b := &besideActors{host: &faultyHost{Device: s.Host}, s: s, prompt: randomTokens(8, 1)}
	if prefill != "" {
		b.po = placement.Options{Prefill: chosen(t, prefill), Decode: chosen(t, decode), Threshold: 40, Budget: int64(besideSlots()) * expertTiny}
	}
	return b, nil
}

// start places the experts and makes the pipeline, in place of the former ones, which are closed.
func (b *besideActors) start(log io.Writer) (err error) {
	if b.s.Placement() != nil {
		b.s.ClosePlacement()
		p, err := placement.New(b.s.Rank().Device, b.host, b.s.Parts, b.po)
		if err != nil {
			return err
		}
		b.s.Ranks[0].Placement = p
	}
	return b.run(log)
}

// run makes the pipeline over what is loaded and placed.
func (b *besideActors) run(log io.Writer) (err error) {
	b.place = b.s.Placement()
	if b.Pipeline, err = b.s.Pipeline(zerolog.New(log).Level(zerolog.WarnLevel)); err != nil {
		return err
	}
	b.gw, err = b.s.Gateway(b.Pipeline, "")
	return err
}

// ask gives up to n tokens after the prompt, and the error of a request that failed.
func (b *besideActors) ask(t *testing.T, n int, leave bool) (out []int32, fault *engine.Error) {
	t.Helper()
	return b.askFor(t, b.prompt, n, leave)
}

// askFor is ask for another prompt.
func (b *besideActors) askFor(t *testing.T, prompt []int32, n int, leave bool) (out []int32, fault *engine.Error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := b.gw.Submit(ctx, &engine.Request{ID: "test", Prompt: engine.Prompt{IDs: prompt}, MaxTokens: n, IgnoreEOS: true,
		Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1}})
	if err != nil {
		t.Error(err)
		return nil, nil
	}
	defer s.Close()
	for {
		e, err := s.Next(ctx)
		if err != nil {
			t.Errorf("after %v: %v", out, err)
			return out, nil
		}
		for _, tok := range e.Tokens {
			out = append(out, tok.ID)
		}
		switch {
		case e.Kind == engine.Done, leave && len(out) > 1:
			return out, nil
		case e.Kind == engine.Failed:
			return out, e.Err
		}
	}
}

// testWriter has what a pipeline logs in the test's output.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(string(b))
	return len(b), nil
}

// learn takes what follows the prompt from an answer of which nothing else runs.
func (b *besideActors) learn(t *testing.T, n int) {
	t.Helper()
	var fault *engine.Error
	if b.want, fault = b.ask(t, n, false); fault != nil || len(b.want) != n {
		t.Fatalf("%v, %v", b.want, fault)
	}
}

// right asks n times at once, and wants the answers that learn recorded.
func (b *besideActors) right(t *testing.T, readers, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			if out, fault := b.ask(t, n, false); fault != nil || !slices.Equal(out, b.want[:n]) {
				t.Errorf("%v, %v, want %v; the pipeline: %v", out, fault, b.want[:n], b.Err())
			}
		})
	}
	wg.Wait()
}

// TestActorsBesideCard: several readers at once get what one gets alone, by host calls and
// copies, from several pools and groups of layers, with steps ahead.
func TestActorsBesideCard(t *testing.T) {
	for i, x := range []struct {
		prefill, decode string
		pools           int
		args            []string
	}{
		{"layer_grouped", "hot_cached_static", 1, []string{"--layer-groups", "2", "--micro-batches", "2"}},
		{"cpu_only", "cpu_only", 2, []string{"--micro-batches", "1"}},
		{"layer_grouped", "learned", 1, []string{"--layer-groups", "2", "--micro-batches", "2"}},
		{"hot_cached_static", "lru", 1, nil}, {"chunked", "static_pin", 1, []string{"--layer-groups", "2"}},
		{"layer_grouped:2", "cpu_only", 3, []string{"--prefill-chunk", "16", "--prefill-pass", "48"}},
	} {
		if testing.Short() && i > 1 {
			break
		}
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			b := actorsBesideCard(t, x.prefill, x.decode, x.pools, x.args...)
			b.right(t, 2, 4)
			for len(b.prompt) < 50 { // over the threshold
				b.prompt = append(b.prompt, b.prompt[len(b.prompt)%5:]...)
			}
			b.learn(t, 4)
			b.right(t, 2, 4)
			stats := b.gw.Stats()
			if beside := sharing[x.decode]; beside != (stats.ExpertsComputed["cpu"] > 0 && b.host.work.Load() > 0) && x.prefill != "hot_cached_static" {
				t.Errorf("%v, the processor had %d calls", stats.ExpertsComputed, b.host.work.Load())
			}
			if x.decode != "cpu_only" && stats.ExpertsComputed["cuda:0"] == 0 {
				t.Errorf("%v", stats.ExpertsComputed)
			}
		})
	}
}

// TestPoolFailsBesideCard: a pool that panics while it answers host calls, or has a prompt's
// experts, ends the requests of that step alone; the next one is answered right.
func TestPoolFailsBesideCard(t *testing.T) {
	pairs := [][2]string{{"layer_grouped", "hot_cached_static"}, {"cpu_only", "cpu_only"}}
	pools := 2
	if testing.Short() { // several that poll for calls want a core each
		pairs, pools = pairs[:1], 1
	}
	for _, x := range pairs {
		t.Run(x[0]+", "+x[1], func(t *testing.T) {
			b := actorsBesideCard(t, x[0], x[1], pools)
			for _, nth := range []int64{1, 4, 9} {
				b.host.left.Store(nth)
				out, fault := b.ask(t, 8, false)
				if fault == nil || fault.Kind != engine.Internal || strings.Contains(fault.Message, "injected") || !slices.Equal(out, b.want[:len(out)]) {
					t.Errorf("work %d: %v after %v", nth, fault, out)
				}
				b.host.left.Store(0)
				b.right(t, 1, 4)
			}
		})
	}
}

// TestPoolFailsBetweenCardAndPrompt: a pool that has a prompt's experts and the host calls of another
// batch at the same time, and panics with either, ends requests with typed errors only, and those
// that come next are answered right.
func TestPoolFailsBetweenCardAndPrompt(t *testing.T) {
	b := actorsBesideCard(t, "cpu_only", "cpu_only", 1, "--micro-batches", "2")
	var long []int32
	for len(long) < 50 { // over the threshold
		long = append(long, b.prompt...)
	}
	wantLong, fault := b.askFor(t, long, 3, false)
	if fault != nil {
		t.Fatal(fault)
	}
	both := func() (failed int) {
		var wg sync.WaitGroup
		var faults atomic.Int64
		hear := func(prompt, want []int32) {
			out, fault := b.askFor(t, prompt, len(want), false)
			switch {
			case fault != nil && (fault.Kind != engine.Internal || !slices.Equal(out, want[:len(out)])):
				t.Errorf("%v after %v", fault, out)
			case fault != nil:
				faults.Add(1)
			case !slices.Equal(out, want):
				t.Errorf("%v, want %v", out, want)
			}
		}
		wg.Go(func() { hear(b.prompt, b.want) })
		wg.Go(func() { hear(long, wantLong) })
		wg.Wait()
		return int(faults.Load())
	}
	nths := []int64{1, 3, 6, 10, 15, 21, 30}
	if testing.Short() {
		nths = nths[1:3]
	}
	failed := 0
	for _, nth := range nths {
		b.host.left.Store(nth)
		failed += both()
		b.host.left.Store(0)
		if n := both(); n != 0 {
			t.Fatalf("after work %d: %d requests failed; the pipeline: %v", nth, n, b.Err())
		}
	}
	if failed < len(nths) {
		t.Errorf("%d requests failed of %d faults", failed, len(nths))
	}
}

// TestReadersLeaveBesideCard: requests that are given up at any time leave nothing behind, and a
// pipeline that is closed under way ends at once.
func TestReadersLeaveBesideCard(t *testing.T) {
	b := actorsBesideCard(t, "layer_grouped", "hot_cached_static", 1)
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { b.ask(t, 30, true) })
		}
		wg.Wait()
		b.right(t, 2, 4)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if out, _ := b.ask(t, 400, false); len(out) == 400 {
				t.Error("a whole answer from a pipeline that was closed")
			}
		})
	}
	for before := b.host.work.Load(); b.host.work.Load() < before+5; {
		time.Sleep(time.Millisecond)
	}
	begin := time.Now()
	if err := b.Close(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if took := time.Since(begin); took > 40*time.Second {
		t.Errorf("Close took %v", took)
	}
	wg.Wait()
}

// TestPoolGivenUpBesideCard: a pool that fails every time ends the pipeline and all requests, also
// with a step in flight that it will never answer.
func TestPoolGivenUpBesideCard(t *testing.T) {
	b := actorsBesideCard(t, "cpu_only", "cpu_only", 1)
	for b.Err() == nil {
		b.host.left.Store(1)
		b.ask(t, 3, false)
	}
	begin := time.Now()
	if err := b.Close(); err == nil {
		t.Error("no error says that the pipeline has failed")
	}
	if took := time.Since(begin); took > 40*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// TestNoStepOvertakesPrompt: a prompt whose experts the processor computes between two layers, and
// whose token the GPU chooses, is through before the step that takes this token.
func TestNoStepOvertakesPrompt(t *testing.T) {
	b := actorsBesideCard(t, "cpu_only", "cpu_only", 1)
	for len(b.prompt) < 50 { // over the threshold
		b.prompt = append(b.prompt, b.prompt...)
	}
	text := func(logprobs int) string {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		s, err := b.gw.Submit(ctx, &engine.Request{ID: "test", Prompt: engine.Prompt{IDs: b.prompt}, MaxTokens: 6, IgnoreEOS: true, Logprobs: logprobs,
			Sampling: engine.Sampling{TopP: 1, RepetitionPenalty: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		out := ""
		for {
			e, err := s.Next(ctx)
			if err != nil || e.Kind == engine.Failed {
				t.Fatalf("after %q: %v, %v; the pipeline: %v", out, err, e.Err, b.Err())
			}
			if out += e.Text; e.Kind == engine.Done {
				return out
			}
		}
	}
	want := text(0) // the host chooses, no step runs ahead
	for range 2 {
		if got := text(-1); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if n := b.gw.Stats().StepsAhead; n == 0 {
		t.Error("no step ran ahead")
	}
}
