package benches

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"krater/actors/trace"
)

// TestHostCallsOf: computed by hand, two steps of two host calls for each of two pools.
func TestHostCallsOf(t *testing.T) {
	var tracks []trace.Track
	for _, name := range []string{"pool0", "pool1"} {
		track := trace.Track{Name: name}
		at := int64(1_000)
		for range 2 {
			for layer := range int16(2) {
				track.Events = append(track.Events, trace.Event{
					Batch: 1, Started: at, Ended: at + 10_000, Rows: 4, Layer: layer, Kind: trace.Experts, Gathered: 2_000, Computed: 9_000,
				})
				at += 15_000 // 5 us until the next letter
			}
			at += 30_000 // 35 between steps
		}
		tracks = append(tracks, track)
	}
	tracks = append(tracks, trace.Track{Name: "group0", Events: []trace.Event{{Started: 0, Ended: 1e6, Kind: trace.Group}}})
	busy, got := hostCallsOf(tracks, 100*time.Microsecond, 2)
	want := hostCallTimes{Count: 4, Rows: 4, CardUS: 5, GatherUS: 2, WorkUS: 7, AnswerUS: 1, StepsUS: 35, Steps: 1}
	if got == nil || *got != want || busy != 0.4 {
		t.Errorf("%v busy, %+v, want %+v", busy, got, want)
	}
	if busy, none := hostCallsOf(tracks[2:], time.Second, 2); none != nil || busy != 0 {
		t.Errorf("%v busy, %+v without a pool", busy, none)
	}
}

// TestTraceOfWindow: what began before a window or ended after it is left away, the rest is
// written for a viewer.
func TestTraceOfWindow(t *testing.T) {
	g := trace.NewRegistry(16)
	now := trace.Now()
	for _, at := range []int64{-2000, 0, 1000, 5000} {
		g.Ring("pool0").Record(&trace.Event{Started: now + at, Ended: now + at + 500, Kind: trace.Experts, Layer: 1})
	}
	did := tracksWithin(g, trace.Wall(now), trace.Wall(now+5200))
	if len(did) != 1 || len(did[0].Events) != 2 {
		t.Fatalf("%+v", did)
	}
	dir := filepath.Join(t.TempDir(), "new")
	if err := keepTrace(dir, "layer_grouped:4/lru-2-1", did, []string{"host"}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "layer_grouped_4+lru-2-1.json"))
	if err != nil || !json.Valid(data) {
		t.Errorf("%v: %s", err, data)
	}
}
