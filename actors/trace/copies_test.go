package trace

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
)

// copied is a batch on a device that waits for the experts of two layers and for KV blocks. The
// sampler waits for the device meanwhile.
func copied() []Track {
	return []Track{
		{"cuda:0", []Event{
			{Batch: 7, Kind: CopyWait, Layer: -1, Started: 25, Ended: 30},
			{Batch: 7, Kind: DeviceGroup, Layer: -1, Started: 30, Ended: 40},
			{Batch: 7, Kind: CopyWait, Layer: 3, Started: 40, Ended: 70},
			{Batch: 7, Kind: DeviceGroup, Layer: -1, Started: 70, Ended: 80},
			{Batch: 7, Kind: CopyWait, Layer: 4, Started: 80, Ended: 82},
			{Batch: 7, Kind: DeviceGroup, Layer: -1, Started: 90, Ended: 100},
		}},
		{"cuda:0 copy", []Event{
			{Batch: 7, Kind: CopyKV, Layer: -1, Started: 25, Ended: 30, Bytes: 10}, {Batch: 7, Kind: CopyExperts, Layer: 3, Started: 31, Ended: 70, Bytes: 99},
			{Batch: 7, Kind: CopyExperts, Layer: 4, Started: 75, Ended: 82, Bytes: 98}, {Batch: 6, Kind: SaveKV, Layer: -1, Started: 90, Ended: 95, Bytes: 5},
		}},
		{"embed", []Event{{Batch: 7, Kind: Embed, Layer: -1, Enqueued: 10, Started: 10, Ended: 20}}},
		{"pool0", []Event{{Batch: 9, Kind: Experts, Layer: 1, Started: 50, Ended: 60}}},
		{"pool0 phases", []Event{
			{Batch: 9, Kind: PoolRows, Layer: 1, Started: 50, Ended: 51}, {Batch: 9, Kind: PoolUp, Layer: 1, Started: 51, Ended: 56},
			{Batch: 9, Kind: PoolDown, Layer: 1, Started: 56, Ended: 59}, {Batch: 9, Kind: PoolSum, Layer: 1, Started: 59, Ended: 60},
		}},
		{"sample", []Event{{Batch: 7, Kind: Sample, Layer: -1, Enqueued: 20, Started: 22, Ended: 110}}},
	}
}

func TestCopyGaps(t *testing.T) {
	var got []Gap
	for _, g := range Gaps(copied(), 2) {
		if g.Track < 2 {
			got = append(got, g)
		} else if g.Cause == ForCopy || g.Track == 4 {
			t.Errorf("%+v", g)
		}
	}
	want := []Gap{
		{0, 25, 30, ForCopy, "waiting for the copy of KV blocks"},
		{0, 40, 70, ForCopy, "waiting for the copy of layer 3's experts"},
		{0, 80, 82, ForCopy, "waiting for the copy of layer 4's experts"},
		{0, 82, 90, ForStep, "waiting for step 7, which was at sample"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("gaps %+v", got)
	}
	for _, g := range Gaps(copied(), 3) {
		if g.To-g.From < 3 {
			t.Errorf("a gap of less than 3: %+v", g)
		}
	}
}

// TestGapsOfNested: what lies within another event's time is no end of it.
func TestGapsOfNested(t *testing.T) {
	tracks := []Track{{"group0", []Event{
		{Batch: 1, Kind: Group, Layer: -1, Started: 0, Ended: 100}, {Batch: 1, Kind: Attention, Layer: 1, Started: 10, Ended: 20},
		{Batch: 1, Kind: Group, Layer: -1, Started: 130, Ended: 140},
	}}}
	if got := Gaps(tracks, 1); len(got) != 1 || got[0].From != 100 || got[0].To != 130 {
		t.Errorf("gaps %+v", got)
	}
}

// TestCopyPath: if an actor waited for a device that waited for a copy, the path attributes the time
// to the copy. Pieces still follow each other without gaps, and time without a wait stays work.
func TestCopyPath(t *testing.T) {
	tracks := copied()
	var waits []string
	at, copies := int64(10), int64(0)
	for _, p := range Path(tracks, 7) {
		if p.From != at || p.To <= p.From {
			t.Errorf("%+v behind %d", p, at)
		}
		at = p.To
		if !p.Copy {
			continue
		}
		waits = append(waits, p.Why)
		copies += p.To - p.From
		if !p.Wait || tracks[p.Track].Name != "sample" {
			t.Errorf("%+v", p)
		}
	}
	if want := []string{"waiting for the copy of KV blocks", "waiting for the copy of layer 3's experts", "waiting for the copy of layer 4's experts"}; !slices.Equal(waits, want) || copies != 37 || at != 110 {
		t.Errorf("waits %q, %d ns, until %d", waits, copies, at)
	}
	// The step waits for a pool that works while the device waits.
	tracks[3].Events[0].Batch, tracks[3].Events[0].Enqueued, tracks[3].Events[0].Started, tracks[3].Events[0].Ended = 7, 20, 22, 110
	tracks[5].Events = nil
	for _, p := range Path(tracks, 7) {
		if p.Copy {
			t.Errorf("%+v", p)
		}
	}
}

// TestCopyTotals: a device that waits does not work; copies count their bytes.
func TestCopyTotals(t *testing.T) {
	g := NewRegistry(10)
	for _, track := range copied()[:2] {
		for i := range track.Events {
			g.Ring(track.Name).Record(&track.Events[i])
		}
	}
	if card := g.Ring("cuda:0").Totals(); card.Count != 3 || card.Run != 30 {
		t.Errorf("the GPU: %+v", card)
	}
	if copies := g.Ring(CopyLane("cuda:0")).Totals(); copies.Bytes != 10+99+98+5 || copies.Run != 5+39+7+5 {
		t.Errorf("copies: %+v", copies)
	}
}

// TestCopyChrome: lanes of copies and phases come back from a file as they were.
func TestCopyChrome(t *testing.T) {
	want := copied()
	var file bytes.Buffer
	if err := WriteChrome(&file, want, []string{"host", "cuda:0"}); err != nil {
		t.Fatal(err)
	}
	if flows := bytes.Count(file.Bytes(), []byte(`"cat":"batch"`)); flows != 5 { // embed, three on the GPU, sample
		t.Errorf("%d arrows", flows)
	}
	got, _, err := ReadChrome(&file)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}
