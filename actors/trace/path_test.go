package trace

import (
	"maps"
	"reflect"
	"slices"
	"testing"
)

// layered is a batch whose group asks two pools for the experts of layer 1: the second pool
// is busy with another batch at first.
func layered() []Track {
	return []Track{
		{"schedule", []Event{
			{Batch: 6, Kind: Schedule, Layer: -1, Enqueued: 5, Started: 5, Ended: 10},
			{Batch: 7, Kind: Schedule, Layer: -1, Enqueued: 200, Started: 205, Ended: 212},
		}},
		{"embed", []Event{{Batch: 7, Kind: Embed, Layer: -1, Enqueued: 10, Started: 12, Ended: 20}}},
		{"group0", []Event{
			{Batch: 7, Kind: Group, Layer: -1, Enqueued: 20, Started: 20, Ended: 60},
			{Batch: 7, Kind: Group, Layer: 1, Enqueued: 161, Started: 163, Ended: 180},
		}},
		{"split0", []Event{{Batch: 7, Kind: Split, Layer: 1, Enqueued: 50, Started: 51, Ended: 55, Parts: 2}}},
		{"pool0", []Event{{Batch: 7, Kind: Experts, Layer: 1, Enqueued: 53, Started: 54, Ended: 80}}},
		{"pool1", []Event{
			{Batch: 8, Kind: Experts, Layer: 2, Enqueued: 40, Started: 41, Ended: 100},
			{Batch: 7, Kind: Experts, Layer: 1, Enqueued: 55, Started: 101, Ended: 155},
		}},
		{"merge0", []Event{
			{Batch: 7, Kind: Merge, Layer: 1, Enqueued: 80, Started: 81, Ended: 82},
			{Batch: 7, Kind: Merge, Layer: 1, Enqueued: 155, Started: 156, Ended: 161},
		}},
		{"head", []Event{{Batch: 7, Kind: Head, Layer: -1, Enqueued: 180, Started: 181, Ended: 200}}},
		{"stream", []Event{{Batch: 7, Kind: Stream, Layer: -1, Enqueued: 212, Started: 213, Ended: 400}}},
	}
}

func TestPath(t *testing.T) {
	tracks := layered()
	var got []string
	var waits []string
	at := int64(0)
	for _, p := range Path(tracks, 7) {
		if at != 0 && p.From != at {
			t.Errorf("a piece from %d behind one to %d", p.From, at)
		}
		if p.To < p.From {
			t.Errorf("piece %+v", p)
		}
		at = p.To
		if p.Wait {
			waits = append(waits, p.Why)
		} else {
			got = append(got, tracks[p.Track].Name)
		}
	}
	if want := []string{"embed", "group0", "split0", "pool1", "merge0", "group0", "head", "schedule"}; !slices.Equal(got, want) {
		t.Errorf("path %v, want %v", got, want)
	}
	if !slices.Contains(waits, "waiting for pool1, which was busy with step 8") || !slices.Contains(waits, "waiting for merge0 to wake up") {
		t.Errorf("waits %q", waits)
	}
	if at != 212 {
		t.Errorf("the path ends at %d", at)
	}
	if Path(tracks, 99) != nil || Path(tracks, 0) != nil || Path(nil, 7) != nil {
		t.Error("a path of a batch that nobody knows")
	}
}

// ahead returns two steps of a GPU: the second is enqueued before the first is back, and waits for
// the GPU.
func ahead() []Track {
	return []Track{
		{"schedule", []Event{
			{Batch: 1, Kind: Schedule, Layer: -1, Enqueued: 100, Started: 101, Ended: 104},
			{Batch: 2, Kind: Schedule, Layer: -1, Enqueued: 190, Started: 191, Ended: 194},
		}},
		{"embed", []Event{
			{Batch: 1, Kind: Embed, Layer: -1, Enqueued: 1, Started: 2, Ended: 5},
			{Batch: 2, Kind: Embed, Layer: -1, Enqueued: 11, Started: 12, Ended: 15},
		}},
		{"sample", []Event{
			{Batch: 1, Kind: Sample, Layer: -1, Enqueued: 5, Started: 6, Ended: 100},
			{Batch: 2, Kind: Sample, Layer: -1, Enqueued: 15, Started: 100, Ended: 190},
		}},
		{"cuda:0", []Event{
			{Batch: 1, Kind: Device, Layer: -1, Started: 10, Ended: 98},
			{Batch: 2, Kind: DeviceEmbed, Layer: -1, Started: 98, Ended: 110},
			{Batch: 2, Kind: CopyWait, Layer: 3, Started: 110, Ended: 130},
			{Batch: 2, Kind: DeviceGroup, Layer: -1, Started: 130, Ended: 185},
		}},
		{"pool0", []Event{
			{Batch: 2, Kind: Experts, Layer: 3, Started: 120, Ended: 125}, // of which the GPU knows nothing yet
			{Batch: 2, Kind: Experts, Layer: 4, Started: 140, Ended: 160},
			{Batch: 3, Kind: Experts, Layer: 4, Started: 170, Ended: 180},
		}},
	}
}

// TestPaths: the times of overlapping steps add up to the elapsed time: each step counts from the
// return of the step before it. Where an actor waits for a GPU, the time counts as the GPU's, or as
// that of the copy or pool that the GPU waits for.
func TestPaths(t *testing.T) {
	tracks := ahead()
	paths := Paths(tracks, []uint64{2, 99, 1}, 0)
	if len(paths) != 3 || paths[1] != nil {
		t.Fatalf("%d paths, of a batch that nobody knows %v", len(paths), paths[1])
	}
	at, took := int64(2), map[string]int64{}
	for _, p := range slices.Concat(paths[2], paths[0]) {
		if p.From != at {
			t.Errorf("a piece from %d behind one to %d", p.From, at)
		}
		at = p.To
		name := tracks[p.Track].Name
		if p.Copy {
			name = p.Why
		} else if p.Wait {
			name = "waiting"
		}
		took[name] += p.To - p.From
	}
	want := map[string]int64{
		"embed": 3, "waiting": 1 + 1 + 1, "sample": 4 + 2 + 5, "cuda:0": 88 + 6 + 10 + 25, "pool0": 20, "waiting for the copy of layer 3's experts": 20, "schedule": 3 + 3,
	}
	if at != 194 || !maps.Equal(took, want) {
		t.Errorf("until %d: %v, want %v", at, took, want)
	}
	if e := &tracks[paths[0][0].Track].Events[paths[0][0].Event]; paths[0][0].From != 104 || e.Kind != DeviceEmbed {
		t.Errorf("the second step begins with %+v, %+v", paths[0][0], e)
	}
	if paths := Paths(tracks, []uint64{2}, 104); len(paths[0]) == 0 || paths[0][0].From != 104 {
		t.Errorf("after a step that is not in view: %v", paths)
	}
	if twice := Paths(tracks, []uint64{1, 1}, 0); len(twice[0]) == 0 || len(twice[1]) != 0 {
		t.Errorf("a batch named twice has %d and %d pieces", len(twice[0]), len(twice[1]))
	}
}

// TestPathOfNonsense: whatever a file holds, a path has an end and pieces go forward.
func TestPathOfNonsense(t *testing.T) {
	tracks := []Track{{"a", []Event{
		{Batch: 1, Enqueued: 50, Started: 10, Ended: 5}, {Batch: 1, Enqueued: 10, Started: 10, Ended: 10}, {Batch: 1, Started: 10, Ended: 90},
	}}, {"b", []Event{{Batch: 1, Enqueued: 90, Started: 10, Ended: 90}, {Batch: 1, Enqueued: -5, Started: -3, Ended: 100}}}}
	pieces := Path(tracks, 1)
	if len(pieces) == 0 || len(pieces) > 12 {
		t.Errorf("%d pieces", len(pieces))
	}
}

func TestGaps(t *testing.T) {
	tracks := layered()
	got := map[string]Gap{}
	for _, g := range Gaps(tracks, 3) {
		got[tracks[g.Track].Name] = g
	}
	for name, want := range map[string]Gap{
		"group0":   {From: 60, To: 163, Cause: ForPool, Why: "waiting for the experts of layer 1, at pool1"},
		"schedule": {From: 10, To: 205, Cause: ForCredit, Why: "waiting for credit: step 7 was at pool1"},
		"merge0":   {From: 82, To: 156, Cause: ForStep, Why: "waiting for step 7, which was at pool1"},
	} {
		g := got[name]
		g.Track = 0
		if g != want {
			t.Errorf("%s: %+v, want %+v", name, g, want)
		}
	}
	if len(got) != 3 {
		t.Errorf("gaps %+v", got)
	}
	wake := Gaps([]Track{{"a", []Event{{Batch: 1, Started: 1, Ended: 2}, {Batch: 2, Enqueued: 2, Started: 9, Ended: 10}, {Started: 20, Ended: 30}}}}, 1)
	if len(wake) != 2 || wake[0].Cause != ForWake || wake[1].Cause != Idle {
		t.Errorf("gaps %+v", wake)
	}
}

func TestWhole(t *testing.T) {
	tracks := layered()
	if got := Whole(tracks); !slices.Equal(got, []uint64{7}) { // 6 has lost its beginning, 8 has not come back
		t.Errorf("whole are %v", got)
	}
	if got := Whole(tracks[5:6]); !slices.Equal(got, []uint64{8, 7}) {
		t.Errorf("of parts alone: %v", got)
	}
	if got := Whole(nil); got != nil {
		t.Errorf("of nothing: %v", got)
	}
}

// TestStepsAndRequest: one is chosen by its batches, and the newest are kept.
func TestStepsAndRequest(t *testing.T) {
	g := NewRegistry(100)
	for n := range uint64(10) {
		at := int64(100 * n)
		g.Roster().Note(n+1, []Rider{{Request: n % 2}})
		g.Ring("group0").Record(&Event{Batch: n + 1, Kind: Group, Layer: -1, Started: at + 10, Ended: at + 20})
		g.Ring("head").Record(&Event{Batch: n + 1, Kind: Head, Layer: -1, Started: at + 20, Ended: at + 30})
	}
	g.Ring("stream").Record(&Event{Request: 1, Kind: Request, Layer: -1, Started: 10, Ended: 990})
	batches := func(tracks []Track) (ids [][]uint64) {
		for _, t := range tracks {
			var list []uint64
			for _, e := range t.Events {
				list = append(list, e.Batch)
			}
			ids = append(ids, list)
		}
		return ids
	}
	two, since := g.Steps(2, 100)
	if got, want := batches(two), [][]uint64{{9, 10}, {9, 10}, nil}; !reflect.DeepEqual(got, want) || since != 730 {
		t.Errorf("the last two steps are %v, after %d", got, since)
	}
	if all, since := g.Steps(10, 100); len(all[0].Events) != 10 || since != 0 {
		t.Errorf("all steps are %v, after %d", batches(all), since)
	}
	if got, want := batches(g.Request(1, 100)), [][]uint64{{2, 4, 6, 8, 10}, {2, 4, 6, 8, 10}, {0}}; !reflect.DeepEqual(got, want) {
		t.Errorf("request 1 was at %v", got)
	}
	if got, want := batches(g.Request(1, 4)), [][]uint64{{10}, {8, 10}, {0}}; !reflect.DeepEqual(got, want) {
		t.Errorf("the newest events of request 1 are %v", got)
	}
}
