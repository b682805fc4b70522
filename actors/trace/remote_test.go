package trace

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"testing"
)

// chained is a step that two workers compute after the leader's group. Each hop takes 10, and a send goes on until long after it.
func chained() []Track {
	link, hop := func(at int64) Event {
		return Event{Batch: 7, Kind: Link, Layer: -1, Bytes: 64, Enqueued: at, Started: at, Ended: at + 300}
	}, func(sent int64) Event {
		return Event{Batch: 7, Kind: Hop, Layer: -1, Bytes: 64, Enqueued: sent, Started: sent + 10, Ended: sent + 12}
	}
	group := func(at int64) Event {
		return Event{Batch: 7, Kind: Group, Layer: -1, Enqueued: at, Started: at, Ended: at + 100}
	}
	return []Track{
		{"embed", []Event{{Batch: 7, Kind: Embed, Layer: -1, Started: 1, Ended: 10}}},
		{"group0", []Event{group(10)}},
		{"in", []Event{hop(345)}},
		{"out", []Event{link(110)}},
		{"rank1/group0", []Event{group(124)}},
		{"rank1/keeper", []Event{hop(112)}},
		{"rank1/out", []Event{link(224)}},
		{"rank2/group0", []Event{group(240)}},
		{"rank2/keeper", []Event{hop(228)}},
		{"rank2/out", []Event{link(340)}},
		{"schedule", []Event{{Batch: 7, Kind: Schedule, Layer: -1, Enqueued: 357, Started: 357, Ended: 370}}},
	}
}

// TestPathOverProcesses: a path goes from process to process by hops alone, whatever else is under way, also where clocks differ a
// little and where the workers' records are missing.
func TestPathOverProcesses(t *testing.T) {
	way := func(tracks []Track) (list []string) {
		for _, p := range Path(tracks, 7) {
			name := tracks[p.Track].Name
			switch {
			case p.Hop:
				name = p.Why
			case p.Wait:
				name = "wait: " + p.Why
			}
			list = append(list, name)
		}
		return list
	}
	want := []string{
		"embed", "group0", "out", "in flight from the leader to rank1", "rank1/keeper", "rank1/group0", "rank1/out",
		"in flight from rank1 to rank2", "rank2/keeper", "rank2/group0", "rank2/out", "in flight from rank2 to the leader", "in", "schedule",
	}
	if got := way(chained()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	late := chained()
	for i := range late {
		if process, _ := Process(late[i].Name); process == "rank2" {
			for j := range late[i].Events {
				e := &late[i].Events[j]
				e.Started, e.Ended = e.Started+8, e.Ended+8
				if e.Kind != Hop { // sent by another clock
					e.Enqueued += 8
				}
			}
		}
	}
	got := way(late)
	if i := slices.Index(got, "rank2/out"); i < 0 || !slices.Contains(got, "in flight from rank2 to the leader") || !slices.Contains(got, "rank1/group0") {
		t.Errorf("with a clock that is late: %q", got)
	}
	alone := slices.DeleteFunc(chained(), func(t Track) bool {
		process, _ := Process(t.Name)
		return process != ""
	})
	if got, want := way(alone), []string{"embed", "group0", "out", "wait: in other processes, whose record is not here", "in", "schedule"}; !slices.Equal(got, want) {
		t.Errorf("without the workers: %q, want %q", got, want)
	}
}

// TestHopGaps: an actor that takes batches in waits for the way, not for itself.
func TestHopGaps(t *testing.T) {
	tracks := chained()
	i := slices.IndexFunc(tracks, func(t Track) bool { return t.Name == "rank1/keeper" })
	before := tracks[i].Events[0]
	before.Batch, before.Enqueued, before.Started, before.Ended = 6, 20, 30, 32
	next := before
	next.Batch, next.Enqueued, next.Started, next.Ended = 8, 130, 200, 202
	tracks[i].Events = append([]Event{before}, tracks[i].Events[0], next)
	var why []Cause
	for _, g := range Gaps(tracks, 1) {
		if g.Track == i {
			why = append(why, g.Cause)
		}
	}
	if !slices.Equal(why, []Cause{ForStep, ForHop}) {
		t.Errorf("gaps %q", why)
	}
}

// TestChromeOfProcesses: processes have their names in a file, and come back.
func TestChromeOfProcesses(t *testing.T) {
	var file bytes.Buffer
	if err := WriteChrome(&file, chained(), nil); err != nil {
		t.Fatal(err)
	}
	var seen struct {
		TraceEvents []struct {
			Ph, Name string
			Pid      int
			Args     struct{ Name string }
		}
	}
	if err := json.Unmarshal(file.Bytes(), &seen); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range seen.TraceEvents {
		if e.Name == "process_name" {
			names = append(names, e.Args.Name)
		}
	}
	if !slices.Equal(names, []string{"krater", "rank1", "rank2"}) {
		t.Errorf("processes %q", names)
	}
	got, _, err := ReadChrome(&file)
	if err != nil || !reflect.DeepEqual(got, chained()) {
		t.Errorf("read %+v, %v", got, err)
	}
}

// TestPacked: events come as they were sent; anything else is refused.
func TestPacked(t *testing.T) {
	g := NewRegistry(blockEvents)
	for i := range 3 * blockEvents {
		g.Ring("a").Record(&Event{Kind: Hop, Batch: uint64(i), Request: 2, Enqueued: -3, Started: 4, Ended: 5, Bytes: 6, Epoch: 7, Rows: 8, Layer: -1, Parts: 9, Lane: 1, Device: 0, Others: 2, Gathered: 3, Computed: 4})
	}
	g.Ring("b")
	text, err := json.Marshal(g.Tell(map[string]uint64{"a": 5}, 8))
	if err != nil {
		t.Fatal(err)
	}
	var told Told
	if err := json.Unmarshal(text, &told); err != nil {
		t.Fatal(err)
	}
	all, next := g.Ring("a").Read(nil, 0)
	if len(told.Tracks) != 1 || told.Tracks[0].Next != next || !slices.Equal(told.Tracks[0].Events, all[len(all)-4:]) {
		t.Errorf("told %+v", told)
	}
	for _, bad := range []string{`"AAAA"`, `7`, string(mustMarshal(t, Packed{{Kind: kinds}})), string(mustMarshal(t, Packed{{Started: 2, Ended: 1}}))} {
		if err := json.Unmarshal([]byte(bad), new(Packed)); err == nil {
			t.Errorf("%.40s is taken", bad)
		}
	}
}

func mustMarshal(t *testing.T, l Packed) []byte {
	t.Helper()
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
