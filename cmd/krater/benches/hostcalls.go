package benches

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"krater/actors/trace"
)

// hostCallTimes is how an expert pool spends its time on host calls, in microseconds: the mean over
// all pools.
type hostCallTimes struct {
	Count    int     `json:"count"`      // host calls per pool
	Rows     float64 `json:"rows"`       // rows per host call
	CardUS   float64 `json:"card_us"`    // since the step's previous call: the GPU computes and the call travels
	GatherUS float64 `json:"gather_us"`  // widening rows, sorting them by expert, quantising
	WorkUS   float64 `json:"work_us"`    // products
	AnswerUS float64 `json:"answer_us"`  // sums, and waiting for slower pools
	StepsUS  float64 `json:"between_us"` // from a step's last call to the next step's first
	Steps    int     `json:"steps"`
}

// tracksWithin returns what the actors did from begin to end.
func tracksWithin(g *trace.Registry, begin, end time.Time) []trace.Track {
	tracks := g.Snapshot(0)
	for i := range tracks {
		tracks[i].Events = slices.DeleteFunc(tracks[i].Events, func(e trace.Event) bool {
			return trace.Wall(e.Started).Before(begin) || trace.Wall(e.Ended).After(end)
		})
	}
	return tracks
}

// hostCallsOf sums up the events of all pools in a window: the share of time spent on experts, and
// the host calls; nil if there were none.
func hostCallsOf(tracks []trace.Track, window time.Duration, pools int) (busy float64, out *hostCallTimes) {
	var t hostCallTimes
	var ran int64
	behind := 0
	for _, track := range tracks {
		if !strings.HasPrefix(track.Name, "pool") {
			continue
		}
		last := map[uint8]trace.Event{} // last event of each micro-batch
		for _, e := range track.Events {
			if e.Kind != trace.Experts {
				continue
			}
			ran += e.Ended - e.Started
			if e.Enqueued != 0 { // a part
				continue
			}
			us := func(ns int64) float64 { return float64(ns) / 1e3 }
			t.Count++
			t.Rows += float64(e.Rows)
			t.GatherUS += us(int64(e.Gathered))
			t.WorkUS += us(int64(e.Computed - e.Gathered))
			t.AnswerUS += us(e.Ended - e.Started - int64(e.Computed))
			if before, ok := last[e.Lane]; ok {
				if e.Layer > before.Layer {
					t.CardUS += us(e.Started - before.Ended)
					behind++
				} else {
					t.StepsUS += us(e.Started - before.Ended)
					t.Steps++
				}
			}
			last[e.Lane] = e
		}
	}
	busy = float64(ran) / float64(pools) / float64(window)
	if t.Count == 0 {
		return busy, nil
	}
	for _, x := range []*float64{&t.Rows, &t.GatherUS, &t.WorkUS, &t.AnswerUS} {
		*x /= float64(t.Count)
	}
	t.CardUS /= float64(max(1, behind))
	t.StepsUS /= float64(max(1, t.Steps))
	t.Count, t.Steps = t.Count/pools, t.Steps/pools
	return busy, &t
}

// keepTrace writes tracks into a file of that name in a folder.
func keepTrace(dir, name string, tracks []trace.Track, devices []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, strings.NewReplacer("/", "+", ":", "_").Replace(name)+".json"))
	if err != nil {
		return err
	}
	return errors.Join(trace.WriteChrome(f, tracks, devices), f.Close())
}
