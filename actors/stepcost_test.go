//go:build !race

package actors

import (
	"context"
	"io"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/direct"
)

// Steps that are timed together, and how often that is done, at least and at most.
const (
	costSteps      = 24
	costWindows    = 8
	costWindowsMax = 40
)

// TestStepCost: a step of an answer takes little longer through the actors than its stages do as
// calls: some 80 us on an idle machine. Windows of either are interleaved, and the fastest of each compared: what else the machine does slows single
// windows down, what a step costs is in all of them. It ends when the ratio is good; on a machine
// so busy that it never is, the difference after all windows counts.
func TestStepCost(t *testing.T) {
	o := setup{inline: time.Hour, limits: stages.Limits{Tokens: 64, Seqs: 1, Blocks: 64, BlockTokens: 16}}.defaults()
	l := loadModel(t, o)
	opt := l.options(t, o)
	opt.Policy.NoReuse = true // calls write to the same cache
	p, err := Start(l.placed(), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	gw := l.open(t, p)
	d, err := direct.New(l.dev, l.bound)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	calls, actors := time.Hour, time.Hour
	for window := range costWindowsMax {
		calls = min(calls, callSteps(t, d))
		actors = min(actors, answerSteps(t, gw))
		if window >= costWindows && actors <= calls+calls/4+100*time.Microsecond {
			break
		}
	}
	t.Logf("a step takes %v as calls, %v through the actors", calls, actors)
	if actors > calls+calls/4+1500*time.Microsecond {
		t.Errorf("a step takes %v as calls, %v through the actors", calls, actors)
	}
}

// callSteps is the time of a step of the stages as calls.
func callSteps(t *testing.T, d *direct.Model) time.Duration {
	t.Helper()
	b := &stages.Step{Tokens: []int32{70}, Spans: []stages.Span{{Seq: 1, Decode: true, Want: true, Span: device.Span{Len: 1, Blocks: []int32{1, 2, 3}}}}}
	start := time.Now()
	for pos := range costSteps {
		b.Spans[0].Pos, b.Tokens[0] = pos, int32(70+pos)
		if err := d.Step(b, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(start) / costSteps
}

// answerSteps is the time of a step of an answer, from its first token to its end.
func answerSteps(t *testing.T, gw *Gateway) time.Duration {
	t.Helper()
	req := greedy([]int32{70}, costSteps+1)
	req.IgnoreEOS, req.Logprobs = true, 0 // so that events have their tokens
	st, err := gw.Submit(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var first time.Time
	tokens := 0
	for {
		e, err := st.Next(context.Background())
		if err == io.EOF {
			t.Fatal("an answer without an end")
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(e.Tokens) > 0 && tokens == 0 {
			first, tokens = time.Now(), len(e.Tokens)
		}
		if e.Kind == engine.Done {
			if tokens > costSteps {
				return time.Hour // all came as one event, since this goroutine did not run
			}
			return time.Since(first) / time.Duration(costSteps+1-tokens)
		}
	}
}
