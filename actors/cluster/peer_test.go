package cluster

import (
	"math"
	"reflect"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
)

// looks asks the second of two workers, whose clocks are a second ahead, what it has recorded.
func (r *rig) looks(b *failing) {
	t, at := r.t, int64(time.Hour)
	peer := &r.engine.hops.Peers[1]
	if len(peer.Topology.Nodes) != 1 || peer.Name != "b" || peer.Ahead() != time.Second {
		t.Errorf("a worker is described as %+v", peer)
	}
	b.record.Device("gpu")
	b.record.Ring("keeper").Record(&trace.Event{Kind: trace.Hop, Batch: 3, Enqueued: at, Started: at + 5, Ended: at + 9, Device: 1})
	b.record.Ring("group0").Record(&trace.Event{Kind: trace.Group, Batch: 3, Enqueued: at + 8, Started: at + 10, Ended: at + 20})
	b.hop = engine.Link{Hops: 7, Bytes: 700, Time: 70}
	mine := trace.NewRegistry(4)
	mine.Device("other")
	defer mine.Follow(&trace.Remote{Process: "rank2", Ask: peer.Ask})()
	for range 2 { // nothing comes twice
		mine.Refresh()
	}
	at -= int64(time.Second)
	want := []trace.Track{
		{Name: "rank2/group0", Events: []trace.Event{{Kind: trace.Group, Batch: 3, Enqueued: at + 8, Started: at + 10, Ended: at + 20}}},
		{Name: "rank2/keeper", Events: []trace.Event{{Kind: trace.Hop, Batch: 3, Enqueued: at, Started: at + 5, Ended: at + 9, Device: 2}}},
	}
	if got := mine.Snapshot(math.MinInt64); !reflect.DeepEqual(got, want) {
		t.Errorf("recorded %+v, want %+v", got, want)
	}
	if noted, _ := b.record.Detail(1); noted {
		t.Error("the worker records every batch, and nobody looks")
	}
	stop := mine.Watch()
	mine.Refresh()
	stop()
	if noted, _ := b.record.Detail(1); !noted {
		t.Error("the worker does not record every batch while it is looked at")
	}
	cost := b.hop
	cost.Within = 2 * time.Millisecond  // both round trips take 2 ms
	if hop := peer.Hop(); hop != cost { // both clocks are ahead
		t.Errorf("the hop cost %+v", hop)
	}
}
