//go:build cuda

package actors

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"krater/actors/engine"
	"krater/kernels/cuda/cudatest"
)

// formatted are requests with and without masks: texts that never end, one that ends by itself in the
// middle of the others, changes of logits beside a mask, draws and greedy choices.
func formatted(logprobs int) (list []*engine.Request) {
	sources := []string{"", `[a-z ]{200,}`, `(ab|cd|ef){2}`, `([^x]|xy){300,}`, ""}
	for i, source := range sources {
		req, seed := greedy([]int32{100, int32(101 + i), 102, 103, 104}[:3+i%3], 9), uint64(i)
		req.Logprobs, req.Sampling.Seed, req.Sampling.Temperature = logprobs, &seed, float64(i%2)
		if source != "" {
			req.IgnoreEOS, req.Format = false, &engine.Format{Kind: engine.Regexp, Source: []byte(source), Param: "guided_regex"}
		}
		if i == 3 {
			req.Sampling.FrequencyPenalty = 0.5
		}
		list = append(list, req)
	}
	return list
}

// answered is the texts of formatted requests, with their ends. The request with number cancel is cancelled when some of its
// text has come, and left out.
func answered(t *testing.T, gw *Gateway, logprobs, cancel int) (all []string) {
	t.Helper()
	var open []engine.Stream
	for _, req := range formatted(logprobs) {
		st, err := gw.Submit(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, st)
	}
	for i, st := range open {
		if i != cancel {
			continue
		}
		for text := ""; len(text) < 3; {
			e, err := st.Next(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			text += e.Text
		}
		st.Close()
	}
	for i, st := range open {
		if i == cancel {
			continue
		}
		events, err := everything(st)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, e := range events {
			text += e.Text
		}
		last := events[len(events)-1]
		all = append(all, fmt.Sprintf("%q, %d tokens, end %d %d", text, last.Usage.Completion, last.Kind, last.Finish))
	}
	return all
}

// TestMasksOnCard: on a GPU that runs a step ahead, requests with a format of their answer beside others get the
// tokens that the host chooses. So they do when one is cancelled, and when steps are lost.
func TestMasksOnCard(t *testing.T) {
	o := setup{dir: golden("deepseek_v2_lite"), depth: 1, chunk: 9, share: 16, retries: 100}.defaults()
	o.limits.Tokens, o.limits.Seqs, o.limits.Blocks, o.limits.BlockTokens = 12, 6, 24, 4
	l := loadModel(t, o)
	ranks := l.onCards(t, o, []int{3}, []int{0})
	p := l.over(t, o, ranks, nil)
	gw := l.open(t, p)
	want := answered(t, gw, 0, -1) // with log-probabilities the host chooses
	if n := gw.Stats().StepsAhead; n > 0 {
		t.Fatalf("%d steps ran ahead of the host's choice", n)
	}
	same := func(name string, got []string, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%q, want\n%q", name, got, want)
		}
	}
	same("ahead", answered(t, gw, -1, -1), want)
	st := gw.Stats()
	if st.StepsAhead < 8 || st.StepGraphs == 0 {
		t.Errorf("%d steps ran ahead, %d graphs", st.StepsAhead, st.StepGraphs)
	}
	for cancel := 0; cancel < len(want) && !testing.Short(); cancel++ {
		same(fmt.Sprintf("without %d", cancel), answered(t, gw, -1, cancel), slices.Delete(slices.Clone(want), cancel, cancel+1))
	}
	faults := []string{"cuGraphLaunch:3:1", "cuGraphLaunch:4:1", "cuMemcpy:20:1", "cuMemcpy:27:1", "cuLaunchKernel:100:1"}
	if testing.Short() {
		faults = faults[:2]
	}
	for _, fault := range faults {
		cudatest.Fail(t, fault)
		same(fault, answered(t, gw, -1, -1), want)
		if fired := cudatest.Fail(t, ""); fired != 1 {
			t.Errorf("%s: %d faults", fault, fired)
		}
	}
}
