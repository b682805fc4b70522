package webui

import (
	"slices"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/transport/server"
)

// TestLongRequest: of a request that is longer than what is kept the answer says what has gone, by
// lane, and how many steps there were.
func TestLongRequest(t *testing.T) {
	const steps = 700
	s := serve(t, Options{MaxEvents: 3000}, server.Options{})
	at := int64(1)
	for range steps {
		at = s.fake.step(at, 1e6, 1)
	}
	v := s.look()
	v.say(`{"type":"request","id":1}`)
	m := v.of("events")
	if m.Where == nil || m.Where.All != steps || m.Where.Steps < 10 || m.Where.Steps > pathsMax || m.Where.ID != 1 || m.Older {
		t.Errorf("shares %+v, older %v", m.Where, m.Older)
	}
	oldest := int64(1 << 62)
	for _, e := range m.Events {
		oldest = min(oldest, int64(e[6].(float64)))
	}
	if len(m.Kept) != len(m.Lanes) || len(m.Events) > 3000 {
		t.Fatalf("%d events; kept %v of lanes %v", len(m.Events), m.Kept, m.Lanes)
	}
	for i, from := range m.Kept {
		if from < oldest {
			t.Errorf("%s says that it has all since %d, the oldest event ended at %d", m.Lanes[i], from, oldest)
		}
	}
	// Without that bound it is the ring that forgets.
	pool := s.fake.reg.Ring("pool1").Kept()
	long := New(s.fake, Options{MaxEvents: 1e6}).answer(s.fake.reg, &ask{Type: "request", ID: 1})
	if got := long.Kept[slices.Index(long.Lanes, "pool1")]; got != pool || got == 0 {
		t.Errorf("pool1 is kept since %d, its ring since %d", got, pool)
	}
	if long.Where.Steps != pathsMax {
		t.Errorf("shares of %d steps", long.Where.Steps)
	}
	if got := long.Kept[slices.Index(long.Lanes, "head")]; got != 0 {
		t.Errorf("the head has all, but says since %d", got)
	}
	for range 4096 - steps + 10 {
		s.fake.reg.Roster().Note(9999, []trace.Rider{{Request: 1, Rows: 1}})
	}
	if r := s.page.answer(s.fake.reg, &ask{Type: "request", ID: 1}); !r.Older {
		t.Error("steps have left the roster, and nothing says so")
	}
}

// TestRunningRequest: one that has not ended has a bar until now.
func TestRunningRequest(t *testing.T) {
	s := serve(t, Options{}, server.Options{})
	s.fake.step(trace.Now(), 1e6, 2)
	s.fake.open = []engine.Running{
		{ID: 2, Phase: engine.Decoding, Since: time.Second, Waited: 200 * time.Millisecond, Generated: 17},
		{ID: 1, Phase: engine.Ended, Since: time.Second, Generated: 17},
	}
	for id, want := range map[uint64]int{1: 0, 2: 1} {
		r := s.page.answer(s.fake.reg, &ask{Type: "request", ID: id})
		n := 0
		for _, e := range r.Events {
			if e[1] == trace.Request.String() {
				n++
				if e[3] != id || e[7] != uint32(17) || e[6].(int64)-e[4].(int64) != int64(time.Second) || e[5].(int64)-e[4].(int64) != int64(200*time.Millisecond) {
					t.Errorf("event %v", e)
				}
			}
		}
		if n != want {
			t.Errorf("request %d has %d bars of its own, want %d", id, n, want)
		}
	}
}

// TestTextOut: what sends text out is fed by the sampler, in the picture.
func TestTextOut(t *testing.T) {
	d := draw(newFake().Topology())
	if !slices.Contains(d.Edges, [2]string{"sample", "stream"}) || slices.Contains(d.Edges, [2]string{"schedule", "stream"}) || !slices.Contains(d.Edges, [2]string{"sample", "schedule"}) {
		t.Errorf("edges %v", d.Edges)
	}
}
