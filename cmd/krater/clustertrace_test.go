package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"krater/actors/trace"
)

// slowWay passes connections on to an address, and what it passes on is late.
type slowWay struct {
	lis  net.Listener
	to   string
	late atomic.Int64 // ns
}

// hopLate is how late frames are on the slow way.
const hopLate = 10 * time.Millisecond

func newSlowWay(t testing.TB) *slowWay {
	t.Helper()
	w := &slowWay{}
	for _, lis := range []*net.Listener{&w.lis, nil} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if lis == nil { // a port that is free
			w.to = l.Addr().String()
			l.Close()
			break
		}
		*lis = l
	}
	t.Cleanup(func() { w.lis.Close() })
	go func() {
		for {
			from, err := w.lis.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", w.to)
			if err != nil {
				from.Close()
				continue
			}
			go w.pass(from, to, &w.late)
			go w.pass(to, from, new(atomic.Int64))
		}
	}()
	return w
}

func (w *slowWay) pass(from, to net.Conn, late *atomic.Int64) {
	defer from.Close()
	defer to.Close()
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if err != nil {
			return
		}
		time.Sleep(time.Duration(late.Load()))
		if _, err := to.Write(piece[:n]); err != nil {
			return
		}
	}
}

// namesSlowHop watches the leader's page while requests run: it names the slow hop, and a recording has the events of
// all members in order.
func (r *clusterRig) namesSlowHop() {
	t := r.t
	t.Helper()
	ws, _, err := (&websocket.Dialer{HandshakeTimeout: patience}).Dial("ws"+strings.TrimPrefix(r.base, "http")+"/trace/ws", nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer ws.Close()
	_ = ws.SetReadDeadline(time.Now().Add(patience))
	if err := ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"show","visible":true}`)); err != nil {
		t.Error(err)
		return
	}
	recorded := make(chan []trace.Track, 1)
	go func() {
		file := filepath.Join(t.TempDir(), "trace.json")
		answers(t, "", "trace", "record", "--url", r.base, "--seconds", "1", "--out", file)
		f, err := os.Open(file)
		if err != nil {
			t.Error(err)
			recorded <- nil
			return
		}
		defer f.Close()
		tracks, _, err := trace.ReadChrome(bufio.NewReader(f))
		if err != nil {
			t.Error(err)
		}
		recorded <- tracks
	}()
	const want = "hop from rank 1 (w0) to rank 2 (w1)"
	for said := ""; !strings.Contains(said, want); {
		_, data, err := ws.ReadMessage()
		if err != nil {
			t.Errorf("the page says %q, and then %v; want %s", said, err, want)
			break
		}
		var seen struct {
			State struct{ Verdict struct{ Text string } }
		}
		if err := json.Unmarshal(data, &seen); err != nil {
			t.Error(err)
			break
		}
		if text := seen.State.Verdict.Text; text != "" {
			said = text
		}
	}
	r.inOrder(<-recorded)
	if s, n := r.metric(`link_seconds{kind="rank1 to rank2"}`), r.metric(`link_hops{kind="rank1 to rank2"}`); n < 10 || s < 0.9*hopLate.Seconds()*n {
		t.Errorf("%g frames took the slow hop in %g s", n, s)
	}
}

// inOrder checks that members saw each step in the order in which it passes them, as exactly as their clocks are known.
func (r *clusterRig) inOrder(tracks []trace.Track) {
	r.t.Helper()
	within := r.metric(`link_clock_seconds{kind="rank0 to rank1"}`) + r.metric(`link_clock_seconds{kind="rank1 to rank2"}`)
	apart := time.Duration(within * float64(time.Second)) // of two members, at most
	if apart <= 0 || apart > 50*time.Millisecond {
		r.t.Errorf("clocks are known within %v", apart)
	}
	way := []string{"out", "rank1/keeper", "rank1/out", "rank2/keeper", "rank2/out", "in"}
	steps := map[uint64]*[6]trace.Event{}
	for _, track := range tracks {
		for i, name := range way {
			for _, e := range track.Events {
				if track.Name != name || e.Kind != trace.Link && e.Kind != trace.Hop {
					continue
				}
				if steps[e.Batch] == nil {
					steps[e.Batch] = new([6]trace.Event)
				}
				steps[e.Batch][i] = e
			}
		}
	}
	newest := uint64(0)
	for batch := range steps {
		newest = max(newest, batch)
	}
	whole, least := 0, int64(math.MaxInt64)
	for batch, seen := range steps {
		if seen[0].Batch == 0 || seen[5].Batch == 0 || batch+8 > newest {
			continue // it began before the recording, or ended after it: an actor may still be sending it when others have it
		}
		whole++
		for i := 1; i < len(seen); i++ {
			a, b := seen[i-1], seen[i]
			if a.Started > b.Started+int64(apart) || b.Bytes == 0 {
				r.t.Errorf("step %d is at %s at %d, and at %s with %d bytes at %d; clocks are known within %v", batch, way[i-1], a.Started, way[i], b.Bytes, b.Started, apart)
			}
			if i%2 == 1 && (b.Enqueued == 0 || b.Enqueued > b.Started) {
				r.t.Errorf("step %d was sent to %s at %d and taken at %d", batch, way[i], b.Enqueued, b.Started)
			}
		}
		least = min(least, seen[3].Started-seen[3].Enqueued)
	}
	if whole < 5 || least < int64(hopLate-apart) {
		r.t.Errorf("%d whole steps of %d in the recording; the slow hop took at least %v", whole, len(steps), time.Duration(least))
	}
}

// metric is a figure of the leader's metrics.
func (r *clusterRig) metric(name string) (value float64) {
	r.t.Helper()
	res, err := http.Get(r.base + "/metrics")
	if err != nil {
		r.t.Error(err)
		return 0
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if _, err := fmt.Sscanf(strings.TrimPrefix(lines.Text(), "krater:"+name), "%g", &value); err == nil && strings.HasPrefix(lines.Text(), "krater:"+name) {
			return value
		}
	}
	r.t.Errorf("no metric %s", name)
	return 0
}
