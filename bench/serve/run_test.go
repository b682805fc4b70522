package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"krater/actors/engine"
	"krater/transport/client"
	"krater/transport/enginetest"
)

// TestFigures: an engine of known timings gives exactly the figures that follow from them, through
// every door.
func TestFigures(t *testing.T) {
	for _, door := range Doors {
		t.Run(door, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.paced(10, 20*time.Millisecond, 30*time.Millisecond, 8*time.Millisecond)
				p := r.plan(door)
				p.Load.Bounds = Bounds{TTFT: 50 * time.Millisecond, TPOT: 8 * time.Millisecond, E2E: 122 * time.Millisecond}
				got := r.run(p)[0]
				for _, x := range []struct {
					name string
					s    Summary
					n    int
					want float64
				}{{"ttft", got.TTFT, 6, 50}, {"itl", got.ITL, 54, 8}, {"tpot", got.TPOT, 6, 8}, {"e2e", got.E2E, 6, 122}} {
					for _, v := range []float64{x.s.Mean, x.s.P50, x.s.P90, x.s.P95, x.s.P99, x.s.Max} {
						if x.s.N != x.n || !near(v, x.want) {
							t.Errorf("%s: %+v, want %d of %v ms", x.name, x.s, x.n, x.want)
						}
					}
				}
				if got.Outcomes[OK] != 6 || got.AnswerTokens != 60 || got.PromptTokens != 240 || got.PromptsOff != 0 {
					t.Errorf("%+v", got)
				}
				if !near(got.RequestsPerS, 6/(6*0.122)) || !near(got.AnswerTokS, 60/(6*0.122)) || !near(got.PromptTokS, 240/(6*0.122)) {
					t.Errorf("%v requests, %v prompt and %v answer tokens a second", got.RequestsPerS, got.PromptTokS, got.AnswerTokS)
				}
				if got.GoodShare != 1 || !near(got.GoodPerS, 6/(6*0.122)) || got.OpenMost != 1 || got.Late.Max != 0 || got.Behind != "" {
					t.Errorf("%+v", got)
				}
				if queue := got.Queue; door == "websocket" && !near(queue.P50, 20) || door != "websocket" && queue.N != 0 {
					t.Errorf("queue: %+v", queue)
				}
				for _, b := range []Bounds{{TTFT: 49 * time.Millisecond}, {TPOT: 7 * time.Millisecond}, {E2E: 121 * time.Millisecond}} {
					p := r.plan(door)
					p.Load.Bounds = b
					if got := r.run(p)[0]; got.GoodShare != 0 || got.GoodPerS != 0 {
						t.Errorf("%v: a goodput of %v", b, got.GoodShare)
					}
				}
			})
		})
	}
}

// TestJoinedTokens: the time before a chunk of several tokens is divided among them, whether the
// server tells how many they are or not.
func TestJoinedTokens(t *testing.T) {
	inBubble(t, func(r *rig) {
		var steps []enginetest.Step
		steps = append(steps, enginetest.Step{Event: engine.Event{Kind: engine.Queued}}, enginetest.Step{Event: engine.Event{Kind: engine.Started}})
		for _, n := range []int{1, 3, 2} { // tokens of a chunk
			e := engine.Event{Kind: engine.Tokens, Text: strings.Repeat("x", n)}
			for range n {
				e.Tokens = append(e.Tokens, engine.Token{Text: []byte("x")})
			}
			steps = append(steps, enginetest.Step{Event: e})
		}
		steps = append(steps, enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishLength, Usage: engine.Usage{Completion: 6}}})
		r.engine.Choose(func(q *engine.Request) (enginetest.Script, error) {
			mine := append([]enginetest.Step(nil), steps...)
			for i := range mine {
				if q.Logprobs < 0 {
					mine[i].Event.Tokens = nil
				}
			}
			return enginetest.Timed(enginetest.Steps(mine...), 0, 30*time.Millisecond, 60*time.Millisecond), nil
		})
		for _, told := range []bool{false, true} {
			for _, door := range []string{"completions", "chat"} {
				p := r.plan(door)
				p.Asking.Logprobs, p.Load.Requests = told, 1
				var out bytes.Buffer
				p.Load.Out = &out
				got := r.run(p)[0]
				// 60 ms for three tokens, then 60 for two.
				if got.ITL.N != 5 || !near(got.ITL.P50, 20) || !near(got.ITL.Max, 30) || !near(got.ITL.Mean, 24) || !near(got.TPOT.P50, 24) {
					t.Errorf("%s, told %v: %+v", door, told, got.ITL)
				}
				var rec Record
				if err := json.Unmarshal(out.Bytes(), &rec); err != nil || len(rec.ITL) != 5 || !near(1e3*rec.ITL[0], 20) || rec.Pieces != 3 || rec.Outcome != OK || rec.Door != door {
					t.Errorf("%v %+v", err, rec)
				}
			}
		}
	})
}

// TestOpenLoopWaitsForNobody: requests come at their times although none is answered.
func TestOpenLoopWaitsForNobody(t *testing.T) {
	inBubble(t, func(r *rig) {
		gate := make(chan struct{})
		r.engine.Play(enginetest.Gated(enginetest.Text("a", "b"), 2, gate))
		p := r.plan("completions")
		p.Concurrency, p.Rates = nil, []float64{50}
		p.Load.Arrivals, p.Load.Requests = Arrivals{Kind: "constant"}, 200
		time.AfterFunc(10*time.Second, func() { close(gate) })
		got := r.run(p)[0]
		if got.OpenMost != 200 || got.Outcomes[OK] != 200 || got.Late.Max != 0 || got.Behind != "" {
			t.Errorf("%d open at most, %v, %+v", got.OpenMost, got.Outcomes, got.Late)
		}
		// The first arrives after 20 ms, the last after 4 s, all begin after 10.
		if got := got.TTFT; !near(got.Max, 10000-20) || !near(got.P50, 10000-2000) || math.Abs(got.Mean-7990) > 1 {
			t.Errorf("%+v", got)
		}
	})
}

// TestTooManyOpen: what an open loop may not send is counted, and the report says that the load was
// another.
func TestTooManyOpen(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.paced(2, 0, time.Second, time.Second)
		p := r.plan("completions")
		p.Concurrency, p.Rates = nil, []float64{100}
		p.Load.Arrivals, p.Load.Requests, p.Load.OpenMost = Arrivals{Kind: "constant"}, 100, 30
		report, err := p.Run(r.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := report.Points[0]
		if got.OpenMost > 31 || got.Outcomes[OK] != 30 || got.Outcomes[NotServed] != 70 || got.Behind == "" {
			t.Errorf("%d open, %v, %q", got.OpenMost, got.Outcomes, got.Behind)
		}
		var text strings.Builder
		if err := report.Text(&text); err != nil || !strings.Contains(text.String(), "FELL BEHIND") {
			t.Errorf("%v %s", err, text.String())
		}
	})
}

// TestLate: a generator that is behind its schedule says so.
func TestLate(t *testing.T) {
	now := time.Now()
	ta := newTally(Bounds{}, now, nil)
	for i := range 100 {
		ta.enter()
		late := 0.0
		if i < 2 {
			late = 0.5
		}
		ta.leave(&Record{Outcome: OK, Late: late, end: now.Add(time.Second)}, false)
	}
	if p, err := ta.point(); err != nil || p.Behind == "" || p.Late.Max != 500 {
		t.Errorf("%+v %v", p, err)
	}
}

// TestClosedLoop: as many streams as asked for, for as long as asked for; the window of throughput
// ends with the first that finds no more.
func TestClosedLoop(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.paced(10, 0, 10*time.Millisecond, 10*time.Millisecond)
		p := r.plan("chat")
		p.Concurrency, p.Load.Requests, p.Load.Duration = []int{1, 4}, 0, 2*time.Second
		report, err := p.Run(r.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range []int{1, 4} {
			got := report.Points[i]
			if got.OpenMost != n || got.Outcomes[OK] != 20*n || !near(got.Window, 2) || !near(got.AnswerTokS, 100*float64(n)) || !near(got.Ratio, float64(n)) {
				t.Errorf("%d streams: %+v", n, got)
			}
		}
		var text strings.Builder
		if err := report.Text(&text); err != nil {
			t.Fatal(err)
		}
		for _, words := range []string{"chat, 1 stream", "chat, 4 streams", "vs first", "4.00", "Throughput", "p95"} {
			if !strings.Contains(text.String(), words) {
				t.Errorf("no %q in\n%s", words, text.String())
			}
		}
		report.Load = strings.Repeat(report.Load+"; ", 3)
		text.Reset()
		if err := report.Text(&text); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text.String()[:strings.Index(text.String(), "\n\n")]) {
			if len(line) > 101 {
				t.Errorf("the report begins with %q", line)
			}
		}
		if charts := report.Charts(); len(charts) != 5 {
			t.Errorf("%d charts", len(charts))
		}
	})
	// Five requests over four streams of 100 ms: the window is the first round.
	inBubble(t, func(r *rig) {
		r.paced(10, 0, 10*time.Millisecond, 10*time.Millisecond)
		p := r.plan("completions")
		p.Concurrency, p.Load.Requests = []int{4}, 5
		if got := r.run(p)[0]; !near(got.Window, 0.1) || !near(got.Seconds, 0.2) || !near(got.AnswerTokS, 400) {
			t.Errorf("%+v", got)
		}
	})
}

// TestRefusals: 429s are counted with the longest wait they ask for, over every door, and are no
// answers; a closed loop waits as it was told.
func TestRefusals(t *testing.T) {
	for _, door := range Doors {
		t.Run(door, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				n := 0
				r.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
					if n++; n%3 == 0 {
						return nil, &engine.Error{Kind: engine.Overloaded, Message: "full", RetryAfter: 4 * time.Second}
					}
					return enginetest.Text("a", "b"), nil
				})
				got := r.run(r.plan(door))[0]
				if got.Outcomes[OK] != 4 || got.Outcomes[Refused] != 2 || got.RetryAfter != 4*time.Second || got.NoRetryAfter != 0 || len(got.Errors) != 1 || !near(got.Seconds, 4) {
					t.Errorf("%+v", got)
				}
				r.engine.Play(enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "broke"}, "a"))
				report, err := r.plan(door).Run(r.t.Context())
				if err == nil || report.Points[0].Outcomes[Failed] != 6 {
					t.Errorf("%v %+v", err, report.Points[0])
				}
			})
		})
	}
}

// TestFaults: clients that disconnect leave at their token, and the engine learns of it; over the
// WebSocket a cancel ends a response in order.
func TestFaults(t *testing.T) {
	for _, door := range Doors {
		t.Run(door, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.paced(10, 0, 10*time.Millisecond, 10*time.Millisecond)
				p := r.plan(door)
				p.Mix.Disconnect, p.Load.Requests = 1, 20
				got := r.run(p)[0]
				synctest.Wait()
				if n := got.Outcomes[Left]; n < 15 || n+got.Outcomes[OK] != 20 || r.engine.Open() != 0 || got.E2E.N != got.Outcomes[OK] {
					t.Errorf("%v, %d open, %+v", got.Outcomes, r.engine.Open(), got.E2E)
				}
				early := 0
				for _, s := range r.engine.Streams() {
					if s.Ending() != enginetest.Ended {
						early++
					}
				}
				if early < 15 { // one in ten leaves with the last token
					t.Errorf("%d of 20 streams ended early", early)
				}
				p = r.plan(door)
				p.Mix.Cancel, p.Load.Requests = 1, 20
				got = r.run(p)[0]
				if n := got.Outcomes[GivenUp]; n < 15 || n+got.Outcomes[OK] != 20 {
					t.Errorf("%v %v", got.Outcomes, got.Errors)
				}
				synctest.Wait()
				if n := r.engine.Open(); n != 0 {
					t.Errorf("%d streams are open", n)
				}
			})
		})
	}
}

// TestTimeout: a client does not wait for ever.
func TestTimeout(t *testing.T) {
	for _, door := range Doors {
		inBubble(t, func(r *rig) {
			n := 0
			r.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
				if n++; n == 1 {
					return enginetest.Text("a"), nil
				}
				return enginetest.Gated(enginetest.Text("a"), 2, make(chan struct{})), nil
			})
			p := r.plan(door)
			p.Load.Requests, p.Load.Timeout = 2, time.Second
			if got := r.run(p)[0]; got.Outcomes[TimedOut] != 1 || got.Outcomes[OK] != 1 || !near(got.Seconds, 1) {
				t.Errorf("%s: %+v", door, got)
			}
		})
	}
}

// TestManyStreams: a thousand streams at a time from one process, 400 in a short test, and no record of one that has
// ended is kept.
func TestManyStreams(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.paced(10, 0, 4*time.Second, 10*time.Millisecond)
		n := 1000
		if testing.Short() {
			n = 400
		}
		p := r.plan("completions")
		p.Concurrency, p.Rates = nil, []float64{500}
		p.Load.Requests, p.Load.OpenMost = n, n
		if got := r.run(p)[0]; got.OpenMost < n*9/10 || got.Outcomes[OK] != n {
			t.Errorf("%d open, %v", got.OpenMost, got.Outcomes)
		}
	})
}

// TestServerFigures: what the server counted during a load.
func TestServerFigures(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.paced(10, 0, time.Second, 100*time.Millisecond)
		stats := engine.Stats{PromptTokens: 100, GeneratedTokens: 10, KVBlocksTotal: 10, QueueTime: engine.Histogram{Count: 1, Sum: 5}, Finished: map[string]uint64{"abort": 1}}
		r.engine.SetStats(stats)
		time.AfterFunc(time.Second, func() {
			stats.Running, stats.KVBlocksUsed = 3, 5
			r.engine.SetStats(stats)
		})
		time.AfterFunc(3*time.Second, func() {
			r.engine.SetStats(engine.Stats{
				PromptTokens: 140, GeneratedTokens: 20, KVBlocksTotal: 10, QueueTime: engine.Histogram{Count: 3, Sum: 5.5}, Finished: map[string]uint64{"abort": 4, "error": 1}, Waiting: 2,
			})
		})
		p := r.plan("completions")
		p.Load.Requests = 3
		got := r.run(p)[0].Server
		want := ServerDelta{
			Most: Gauges{Running: 3, Waiting: 2, KV: 0.5}, After: Gauges{Waiting: 2}, Prompt: 40, Answer: 10, Aborted: 3, Errors: 1, Preemptions: 0, PrefixHits: 0, QueueMean: 250,
		}
		if got == nil || fmt.Sprint(*got) != fmt.Sprint(want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// TestOtherServers: figures that this engine does not have, by the names of another.
func TestOtherServers(t *testing.T) {
	looks := []client.Metrics{
		{`vllm:num_requests_running{model="m"}`: 1, `vllm:prefix_cache_queries_total{model="m"}`: 100, `vllm:prefix_cache_hits_total{model="m"}`: 10, "vllm:num_preemptions_total": 1},
		{`vllm:num_requests_running{model="m"}`: 2, `vllm:prefix_cache_queries_total{model="m"}`: 300, `vllm:prefix_cache_hits_total{model="m"}`: 60, "vllm:num_preemptions_total": 4},
	}
	o := &observer{before: scrape{looks[0]}, stop: func() {}, look: func(context.Context) (client.Metrics, error) { return looks[1], nil }}
	if d := o.end(t.Context()); d.PrefixHits != 0.25 || d.Preemptions != 3 || d.Before.Running != 1 || d.After.Running != 2 {
		t.Errorf("%+v", d)
	}
}

// TestInterrupted: a load that is stopped gives up what runs and reports what came to its end.
func TestInterrupted(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.paced(10, 0, 100*time.Millisecond, 100*time.Millisecond)
		ctx, stop := context.WithTimeout(r.t.Context(), 2500*time.Millisecond)
		defer stop()
		p := r.plan("completions")
		p.Load.Requests, p.Load.Duration, p.Concurrency = 0, time.Hour, []int{3}
		report, err := p.Run(ctx)
		if err == nil || report == nil {
			t.Fatal(err)
		}
		got := report.Points[0]
		if got.Outcomes[OK] != 6 || got.Outcomes[GivenUp] != 3 || got.Seconds > 2.6 {
			t.Errorf("%+v", got)
		}
	})
}
