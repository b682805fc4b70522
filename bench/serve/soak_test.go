package serve

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"krater/actors/engine"
)

// TestSoakSeesWhatIsLeft: blocks, requests and messages that stay after a load are leaks, on the
// server's own word; what goes away in time is none.
func TestSoakSeesWhatIsLeft(t *testing.T) {
	rest := engine.Stats{KVBlocksTotal: 10, ActorQueue: map[string]int{"a": 0}}
	for name, c := range map[string]struct {
		left  engine.Stats
		words string
	}{
		"nothing":  {rest, ""},
		"blocks":   {engine.Stats{KVBlocksTotal: 10, KVBlocksUsed: 1}, "KV blocks"},
		"requests": {engine.Stats{Running: 1}, "requests running"},
		"waiting":  {engine.Stats{Waiting: 1}, "requests waiting"},
		"messages": {engine.Stats{ActorQueue: map[string]int{"a": 1, "b": 1}}, "messages in mailboxes: 0 before, 2 after"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.paced(10, 0, 100*time.Millisecond, 100*time.Millisecond)
				r.engine.SetStats(rest)
				busy := engine.Stats{Running: 3, KVBlocksUsed: 5, KVBlocksTotal: 10}
				time.AfterFunc(time.Second, func() { r.engine.SetStats(busy) })
				time.AfterFunc(24*time.Second, func() { r.engine.SetStats(c.left) })
				p := r.plan("completions", "chat", "websocket")
				p.Load.Requests, p.Load.Duration, p.Mix.Disconnect = 0, 20*time.Second, 0.2
				p.Soak = &Watcher{Every: time.Second, Rest: 10 * time.Second, Slope: 1e9, Slack: 1e9}
				report, err := p.Run(r.t.Context())
				if err != nil {
					t.Fatal(err)
				}
				s := report.Soak
				if (len(s.Leaks) > 0) != (c.words != "") || c.words != "" && !strings.Contains(s.Leaks[0], c.words) {
					t.Errorf("%q", s.Leaks)
				}
				if (s.Settled >= 0) != (c.words == "") || s.Most.Running != 3 || s.Most.KV != 0.5 || len(s.Looks) < 18 || s.RSS.Points == 0 || s.Warm < 3 {
					t.Errorf("settled %v, most %+v, %d looks, %+v", s.Settled, s.Most, len(s.Looks), s.RSS)
				}
				var text strings.Builder
				if err := report.Text(&text); err != nil || strings.Contains(text.String(), "LEAK") != (c.words != "") {
					t.Errorf("%v\n%s", err, text.String())
				}
				if len(report.Points) != 3 || len(report.Charts()) != 6 {
					t.Errorf("%d points, %d charts", len(report.Points), len(report.Charts()))
				}
			})
		})
	}
}

// TestSoakJudges: memory that grows faster than allowed is a leak, one that finds its size, or goes
// up and down, is none.
func TestSoakJudges(t *testing.T) {
	for _, c := range []struct {
		name string
		rss  func(at float64) float64
		leak bool
		full float64 // when a GPU has as many step graphs as it keeps; 0: there are none
	}{
		{"flat", func(float64) float64 { return 100 }, false, 0},
		{"finds its size", func(at float64) float64 { return 100 + min(50, at/6) }, false, 0},
		{"a leak", func(at float64) float64 { return 100 + 60*at/3600 }, true, 0},
		{"a slow leak", func(at float64) float64 { return 100 + 10*at/3600 }, false, 0},
		{"graphs fill", func(at float64) float64 { return 100 + min(300, at/8) }, false, 2400},
		{"graphs fill for all of it", func(at float64) float64 { return 100 + at/8 }, false, 4000},
		{"a leak beside graphs", func(at float64) float64 { return 100 + min(300, at/8) + 60*at/3600 }, true, 2400},
	} {
		r := rand.New(rand.NewPCG(1, 1))
		s := &Soak{}
		for i := range 1200 {
			at := 3 * float64(i)
			s.Looks = append(s.Looks, Look{At: at, RSS: c.rss(at) + 4*r.Float64(), Graphs: min(at, c.full)})
		}
		s.judge(&Watcher{Slope: 16, Slack: 16})
		if (len(s.Leaks) > 0) != c.leak {
			t.Errorf("%s: %q, %+v", c.name, s.Leaks, s.RSS)
		}
	}
}

// TestSoakEnds: a load that fails ends the soak, and so does a server without metrics.
func TestSoakEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		w := &Watcher{Client: r.client(), Every: time.Second}
		broken := errors.New("broken")
		if _, err := w.Watch(r.t.Context(), func(context.Context) error { return broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
		r.server.Close()
		if _, err := w.Watch(r.t.Context(), func(context.Context) error { return nil }); !errors.Is(err, errNoMetrics) {
			t.Error(err)
		}
	})
}

// TestLooksAreBounded: however long a soak is.
func TestLooksAreBounded(t *testing.T) {
	l := make([]Look, looksMost)
	for i := range l {
		l[i].At = float64(i)
	}
	if l = everyOther(l); len(l) != looksMost/2 || l[1].At != 2 || l[len(l)-1].At != looksMost-2 {
		t.Errorf("%d looks", len(l))
	}
}

// TestProcess: this process has memory and open files.
func TestProcess(t *testing.T) {
	mb, err := residentMB(os.Getpid())
	files, err2 := openFiles(os.Getpid())
	if err != nil || err2 != nil || mb < 1 || mb > 1e5 || files < 3 {
		t.Errorf("%v MB, %v files, %v %v", mb, files, err, err2)
	}
	if _, err := residentMB(1 << 30); err == nil {
		t.Error("there is no such process")
	}
}
