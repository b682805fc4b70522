package webui

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/server"
)

func TestFiles(t *testing.T) {
	s := serve(t, Options{}, server.Options{Keys: []server.KeyHash{server.HashKey("a long key")}})
	for path, kind := range map[string]string{"/": "text/html", "/trace": "text/html", "/trace/assets/main.js": "text/javascript", "/trace/assets/style.css": "text/css", "/trace/assets/icon.svg": "image/svg+xml"} {
		res, body := s.get(path)
		if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), kind) || len(body) < 50 {
			t.Errorf("%s: %s, %s, %d bytes", path, res.Status, res.Header.Get("Content-Type"), len(body))
		}
		if !strings.Contains(res.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: policy %q", path, res.Header.Get("Content-Security-Policy"))
		}
		for _, foreign := range []string{"http://", "https://"} {
			if strings.Contains(strings.NewReplacer("http://www.w3.org/", "", s.http.URL, "").Replace(body), foreign) {
				t.Errorf("%s names another server", path)
			}
		}
		if again, _ := s.get(path, "If-None-Match", res.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: %s", path, again.Status)
		}
	}
	if _, body := s.get("/"); !strings.Contains(body, "curl -s "+s.http.URL+"/v1/chat/completions") || strings.Contains(body, "HOST") {
		t.Errorf("the entry page's command line is not for %s:\n%s", s.http.URL, body)
	}
	odd := httptest.NewRequest(http.MethodGet, "/", nil)
	odd.Host = "a<b>"
	answer := httptest.NewRecorder()
	home(answer, odd)
	if body := answer.Body.String(); !strings.Contains(body, "http://a&lt;b&gt;/v1/") {
		t.Errorf("a host's name is taken as a part of the page:\n%s", body)
	}
	files, err := static.ReadDir("static")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, _ := static.ReadFile("static/" + f.Name())
		for _, foreign := range []string{"http://", "https://", "innerHTML", "insertAdjacentHTML", "eval("} {
			if bytes.Contains(bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("http://www.w3.org/"), nil), []byte("http://HOST:PORT"), nil), []byte(foreign)) {
				t.Errorf("%s has %s", f.Name(), foreign)
			}
		}
	}
	// A policy without inline code holds for what the pages have.
	for _, name := range []string{"index.html", "home.html"} {
		data, _ := static.ReadFile("static/" + name)
		for _, bad := range []string{"style=", "<style", "onclick=", "<script>"} {
			if bytes.Contains(data, []byte(bad)) {
				t.Errorf("%s has %s", name, bad)
			}
		}
	}
	for _, path := range []string{"/trace/assets/none.js", "/trace/assets/..%2fpage.go", "/elsewhere"} {
		if res, _ := s.get(path); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	for _, path := range []string{"/trace/ws", "/trace/export", "/trace/record?seconds=1"} {
		if res, _ := s.get(path); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without a key: %s", path, res.Status)
		}
	}
}

// TestSnapshotAndDeltas: first all there is, then what changed; a viewer that comes later gets all
// of it too.
func TestSnapshotAndDeltas(t *testing.T) {
	s := serve(t, Options{}, server.Options{})
	v := s.look()
	v.say(`{"type":"show","visible":true}`)
	first := v.of("snapshot")
	if first.Model != "test-model" || len(first.Topology.Nodes) != len(s.fake.Topology().Nodes) || len(first.Topology.Edges) < 20 || len(first.State.Nodes) != len(first.Topology.Nodes) {
		t.Fatalf("snapshot %+v", first)
	}
	if first.State.Heat == nil || len(first.State.Heat.Levels) != fakeLayers*fakeExperts || len(first.State.Heat.Resident) != fakeLayers*fakeExperts || first.State.Requests == nil {
		t.Fatalf("state %+v", first.State)
	}
	still := v.next(func(m *message) bool { return m.Type == "delta" && len(m.State.Nodes) == 0 })
	if d := still.State; d.Flow != nil || d.Latency != nil || d.Heat != nil || d.Requests != nil || d.Experts != nil {
		t.Errorf("nothing changed, but %+v", d)
	}
	at := int64(1)
	for range 20 {
		at = s.fake.step(at, 1e6, 3)
	}
	// The steps may fall into several pushes, and a slow viewer gets a snapshot after a missed one.
	// The test compares the state that the viewer has after all of them.
	nodes := map[string]load{}
	v.next(func(m *message) bool {
		if _, idle := m.State.Nodes["gateway"]; idle && m.Type == "delta" {
			t.Error("a delta has what did not change")
		}
		maps.Copy(nodes, m.State.Nodes)
		return m.State.Flow != nil && m.State.Flow.Totals[1] == 60
	})
	if l := nodes["pool1"]; l[loadRate] <= 0 || l[loadBusy] <= 0 || l[loadBytes] <= 0 {
		t.Errorf("pool1: %v", l)
	}
	late := s.look()
	late.say(`{"type":"show","visible":true}`)
	if m := late.of("snapshot"); m.State.Flow.Totals[1] != 60 {
		t.Errorf("the later viewer sees %+v", m.State.Flow)
	}
}

// TestHiddenCostsNothing: while nobody looks nothing is sent, and the trace does not note more than
// it does by itself.
func TestHiddenCostsNothing(t *testing.T) {
	s := serve(t, Options{}, server.Options{})
	detailed := func() bool {
		n := 0
		for id := range uint64(64) {
			if yes, _ := s.fake.reg.Detail(id); yes {
				n++
			}
		}
		return n == 64
	}
	v := s.look()
	if detailed() {
		t.Error("everything is noted before anybody looks")
	}
	v.say(`{"type":"show","visible":true}`)
	v.of("delta")
	if !detailed() {
		t.Error("not everything is noted while a viewer looks")
	}
	v.say(`{"type":"show","visible":false}`)
	for deadline := time.Now().Add(patience); detailed(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("everything is noted though nobody looks")
		}
	}
	// Messages that were sent before may still come, before an answer that is asked for now. Then
	// nothing comes but another answer.
	v.say(`{"type":"steps","n":1}`)
	v.of("events")
	time.Sleep(50 * time.Millisecond)
	v.say(`{"type":"steps","n":1}`)
	if m := v.next(func(*message) bool { return true }); m.Type != "events" {
		t.Errorf("a hidden viewer gets a %s", m.Type)
	}
	v.say(`{"type":"show","visible":true}`)
	if m := v.next(func(*message) bool { return true }); m.Type != "snapshot" {
		t.Errorf("shown again it gets a %s first", m.Type)
	}
	v.ws.Close()
	for deadline := time.Now().Add(patience); detailed(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("everything is noted though the viewer has gone")
		}
	}
}

func TestStepsAndRequest(t *testing.T) {
	s := serve(t, Options{}, server.Options{})
	at := int64(1)
	for range 5 {
		at = s.fake.step(at, 10e6, 2)
	}
	v := s.look()
	v.say(`{"type":"steps","n":2}`)
	m := v.of("events")
	batches := map[float64]bool{}
	for _, e := range m.Events {
		if len(e) != 14 {
			t.Fatalf("event %v", e)
		}
		batches[e[2].(float64)] = true
	}
	if len(batches) != 2 || !batches[4] || !batches[5] || m.For != "steps" || len(m.Riders) != 4 || len(m.Gaps) == 0 {
		t.Errorf("batches %v, riders %v, %d gaps", batches, m.Riders, len(m.Gaps))
	}
	slowest := 0
	for _, p := range m.Paths {
		e := m.Events[int(p[2].(float64))]
		if e[0] != p[1] || e[2] != p[0] {
			t.Fatalf("piece %v is of event %v", p, e)
		}
		if e[1] == "experts" && m.Lanes[int(p[1].(float64))] == "pool1" {
			slowest++
		}
	}
	if slowest < 16 {
		t.Errorf("the slowest pool is %d times on the critical path of 2 steps", slowest)
	}
	v.say(`{"type":"request","id":2}`)
	if m := v.of("events"); m.ID != 2 || m.For != "request" || len(m.Events) == 0 {
		t.Errorf("request 2: %d events, id %d", len(m.Events), m.ID)
	}
	v.say(`{"type":"request","id":99}`)
	if m := v.of("events"); len(m.Events) != 0 {
		t.Errorf("request 99: %d events", len(m.Events))
	}
}

func TestBadMessages(t *testing.T) {
	s := serve(t, Options{}, server.Options{})
	v := s.look()
	for _, bad := range []string{"", "[", `{"type":"dance"}`, `{"type":"steps","n":"x"}`} {
		v.say(bad)
		if m := v.next(func(*message) bool { return true }); m.Type != "error" || m.Message == "" {
			t.Errorf("%q got %+v", bad, m)
		}
	}
	v.say(`{"type":"steps","n":-5}`)
	v.of("events")
	v.say(strings.Repeat("x", askMax+1))
	if _, _, err := v.ws.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
		t.Errorf("a large message: %v", err)
	}
	if frame := string(encode("a\u0085b\u2028")); frame != `"a\u0085b\u2028"` {
		t.Errorf("a frame is %q", frame)
	}
	broken := s.look()
	broken.say("\xff")
	if _, _, err := broken.ws.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseInvalidFramePayloadData) {
		t.Errorf("text that is not UTF-8: %v", err)
	}
	if res, _ := s.get("/trace/ws"); res.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("without Upgrade: %s", res.Status)
	}
	old, _ := s.get("/trace/ws", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version", "8")
	if old.StatusCode != http.StatusUpgradeRequired || old.Header.Get("Sec-WebSocket-Version") != "13" {
		t.Errorf("version 8: %s %v", old.Status, old.Header)
	}
}

// TestViewersAreBounded, and a place comes free with one that leaves.
func TestViewersAreBounded(t *testing.T) {
	s := serve(t, Options{MaxViewers: 2}, server.Options{})
	one := s.look()
	s.look()
	if _, res, err := s.dial(); err == nil || res.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("a third viewer: %v", err)
	}
	one.ws.Close()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if ws, _, err := s.dial(); err == nil {
			ws.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no place came free")
		}
	}
}

// TestPeersShareThePage: one peer takes neither all places of viewers nor all recordings and
// exports.
func TestPeersShareThePage(t *testing.T) {
	var peer atomic.Value
	peer.Store("a")
	s := serve(t, Options{MaxViewers: 4, Recordings: 4, Peer: func(*http.Request) string { return peer.Load().(string) }}, server.Options{})
	for range 3 {
		s.look()
	}
	if _, res, err := s.dial(); err == nil || res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a fourth viewer of one: %v", err)
	}
	for _, places := range []*api.Shares{s.page.recordings, s.page.exports} {
		for range 3 {
			if places.Take("a") == nil {
				t.Fatal("there is no place")
			}
		}
	}
	for _, path := range []string{"/trace/record?seconds=0.01", "/trace/export"} {
		if res, _ := s.get(path); res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: a fourth of one: %s", path, res.Status)
		}
	}
	peer.Store("b")
	s.look()
	for _, path := range []string{"/trace/record?seconds=0.01", "/trace/export"} {
		if res, _ := s.get(path); res.StatusCode != http.StatusOK {
			t.Errorf("%s: another's: %s", path, res.Status)
		}
	}
}

// TestSlowViewers: pushes that are not read are left out and the next is whole; one that reads
// nothing is sent away.
func TestSlowViewers(t *testing.T) {
	p := New(newFake(), Options{MaxSkipped: 3})
	v := &viewer{page: p, wake: make(chan struct{}, 1)}
	v.offer([]byte("one"))
	if !v.missed() {
		t.Error("a push that was not sent counts as sent")
	}
	for range 3 {
		v.offer([]byte("more"))
	}
	if v.end != "" || string(v.push) != "more" {
		t.Errorf("after three: %q, %q", v.end, v.push)
	}
	v.offer([]byte("more"))
	if v.end == "" {
		t.Error("a viewer that reads nothing stays")
	}
	greedy := &viewer{page: p, wake: make(chan struct{}, 1)}
	for range repliesMax + 1 {
		greedy.reply([]byte("x"))
	}
	if greedy.end == "" || len(greedy.replies) > repliesMax {
		t.Errorf("%d replies wait", len(greedy.replies))
	}
}

func TestLoadingModel(t *testing.T) {
	s := serve(t, Options{}, server.Options{})
	s.fake.loading = true
	v := s.look()
	v.say(`{"type":"show","visible":true}`)
	if m := v.of("snapshot"); m.State.Verdict.Text != "The model is loading." || len(m.Topology.Nodes) != 0 {
		t.Errorf("while loading: %+v", m)
	}
	v.say(`{"type":"steps","n":1}`)
	v.of("error")
	for _, path := range []string{"/trace/export", "/trace/record?seconds=1"} {
		if res, _ := s.get(path); res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	s.fake.mu.Lock()
	s.fake.loading = false
	s.fake.mu.Unlock()
	v.next(func(m *message) bool { return m.Type == "snapshot" && len(m.Topology.Nodes) > 5 })
}

// TestKeysAndOwners: the key may come as a subprotocol, as browsers send it; names of requests are
// their owner's, and so is the right to cancel them.
func TestKeysAndOwners(t *testing.T) {
	const alice, bob = "alice's key", "bob's key ünï"
	s := serve(t, Options{}, server.Options{Keys: []server.KeyHash{server.HashKey(alice), server.HashKey(bob)}})
	owner := func(key string) string {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+key)
		return s.srv.Owner(r)
	}
	s.fake.open = []engine.Running{
		{ID: 1, Name: "a", Owner: owner(alice), Phase: engine.Decoding}, {ID: 2, Name: "b", Owner: owner(bob), Phase: engine.Waiting},
		{ID: 3, Name: "c", Owner: owner(alice), Phase: engine.Ended},
	}
	protocol := func(key string) string { return "krater-key." + base64.RawURLEncoding.EncodeToString([]byte(key)) }
	for _, wrong := range []string{protocol("nobody's key"), "krater-key.", "krater-key.!!", "krater.trace"} {
		if _, res, err := s.dial("krater.trace", wrong); err == nil || res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	for key, mine := range map[string]string{alice: "a", bob: "b"} {
		ws, res, err := s.dial("krater.trace", protocol(key))
		if err != nil {
			t.Fatal(err)
		}
		defer ws.Close()
		if got := res.Header.Get("Sec-Websocket-Protocol"); got != "krater.trace" {
			t.Errorf("the server answered with %q", got)
		}
		v := &eye{t, ws}
		v.say(`{"type":"show","visible":true}`)
		for _, r := range *v.of("snapshot").State.Requests {
			own := r.Name == mine || r.Name == "c"
			if own != r.Mine || !own && r.Name != "" {
				t.Errorf("%s sees %+v", key, r)
			}
		}
	}
	cancel := func(id, key string, header ...string) int {
		res, _ := s.do(http.MethodPost, "/trace/requests/"+id+"/cancel", append(header, "Authorization", "Bearer "+key)...)
		return res.StatusCode
	}
	for _, c := range []struct {
		id, key string
		want    int
	}{{"1", bob, 404}, {"9", alice, 404}, {"x", alice, 404}, {"3", alice, 404}, {"1", "no such key", 401}, {"1", alice, 204}, {"2", bob, 204}} {
		if got := cancel(c.id, c.key); got != c.want {
			t.Errorf("%s cancels %s: %d, want %d", c.key, c.id, got, c.want)
		}
	}
	if got := cancel("1", alice, "Origin", "http://elsewhere.example"); got != http.StatusForbidden {
		t.Errorf("a foreign page cancels: %d", got)
	}
	if fmt.Sprint(s.fake.stopped) != "[1 2]" {
		t.Errorf("cancelled %v", s.fake.stopped)
	}
}

// TestDrainingSendsViewersAway: a shutdown does not wait for pages that are left open.
func TestDrainingSendsViewersAway(t *testing.T) {
	draining := make(chan struct{})
	s := serve(t, Options{Draining: draining}, server.Options{})
	v := s.look()
	v.say(`{"type":"show","visible":true}`)
	v.of("snapshot")
	close(draining)
	for {
		if _, _, err := v.ws.ReadMessage(); err != nil {
			if !websocket.IsCloseError(err, websocket.CloseGoingAway) {
				t.Errorf("closed with %v", err)
			}
			return
		}
	}
}

// FuzzAsk: whatever a viewer sends gets an answer that is JSON.
func FuzzAsk(f *testing.F) {
	for _, seed := range []string{`{"type":"steps","n":3}`, `{"type":"request","id":1}`, `{"type":"request","id":18446744073709551615}`, `{"type":"show"}`, "{", `{"type":"steps","n":1e99}`} {
		f.Add([]byte(seed))
	}
	src := newFake()
	at := int64(1)
	for range 3 {
		at = src.step(at, 10e6, 2)
	}
	p := New(src, Options{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var a ask
		if json.Unmarshal(data, &a) != nil {
			return
		}
		if out := encode(p.answer(src.Trace(), &a)); !json.Valid(out) {
			t.Errorf("%q got %.200s", data, out)
		}
	})
}
