package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"krater/actors/trace"
)

// TestTracePage: the real server serves the page, and pushes what its pipeline does over
// the WebSocket that a browser would open with its key.
func TestTracePage(t *testing.T) {
	s := open(t, "--layer-groups", "2", "--api-keys", write(t, "keys", "first-secret-key\n"))
	for path, words := range map[string]string{"/": "Look inside", "/trace": "Time line", "/trace/assets/main.js": "import"} {
		if status, _, body := s.do("GET", path, ""); status != http.StatusOK || !strings.Contains(body, words) {
			t.Errorf("%s: %d", path, status)
		}
	}
	protocols := []string{"krater.trace", "krater-key." + base64.RawURLEncoding.EncodeToString([]byte("first-secret-key"))}
	ws, _, err := (&websocket.Dialer{Subprotocols: protocols, HandshakeTimeout: patience}).Dial("ws"+strings.TrimPrefix(s.base, "http")+"/trace/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	_ = ws.SetReadDeadline(time.Now().Add(patience))
	if err := ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"show","visible":true}`)); err != nil {
		t.Fatal(err)
	}
	s.key = "first-secret-key"
	if _, err := s.ask(routes[0], greedy("hello", 8)); err != nil {
		t.Fatal(err)
	}
	seen := ended(t, ws)
	if seen.Model != "krater-tiny" || len(seen.Topology.Nodes) < 10 || !seen.State.Requests[0].Mine {
		t.Errorf("seen: %+v", seen)
	}
	if err := ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"type":"request","id":%d}`, seen.State.Requests[0].ID)); err != nil {
		t.Fatal(err)
	}
	got := eventsOf(t, ws)
	kinds := map[string]int{}
	for _, e := range got.Events {
		kinds[e[1].(string)]++
	}
	for kind, least := range map[string]int{"gateway": 1, "request": 1, "prefill": 1, "group": 16, "head": 8, "sample": 8} {
		if kinds[kind] < least {
			t.Errorf("%d events of kind %s, want %d", kinds[kind], kind, least)
		}
	}
	if len(got.Paths) < 8*4 {
		t.Errorf("%d pieces of critical paths", len(got.Paths))
	}
	// A page that is left open holds no shutdown.
	began := time.Now()
	if err := s.stop(); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("the server ended after %v with %v", time.Since(began), err)
	}
}

// pageState is a message to the page about the server.
type pageState struct {
	Type     string
	Model    string
	Topology struct{ Nodes []struct{ Name string } }
	State    struct {
		Flow     struct{ Totals []int }
		Requests []struct {
			ID    int
			Phase string
			Mine  bool
		}
	}
}

// ended reads until the only request has ended and its answer is in the books of the server.
func ended(t *testing.T, ws *websocket.Conn) (seen pageState) {
	t.Helper()
	for {
		_, data, err := ws.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &seen); err != nil {
			t.Fatal(err)
		}
		if f := seen.State.Flow; len(f.Totals) == 3 && f.Totals[1] >= 8 && len(seen.State.Requests) == 1 && seen.State.Requests[0].Phase == "ended" {
			return seen
		}
	}
}

// pageEvents is a message to the page about a request.
type pageEvents struct {
	Type   string
	Events [][]any
	Paths  [][]any
}

// eventsOf reads until the events of a request are there.
func eventsOf(t *testing.T, ws *websocket.Conn) (got pageEvents) {
	t.Helper()
	for got.Type != "events" {
		_, data, err := ws.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// TestTraceRecordAndShow: what a server does is recorded, can be read back, and is shown in
// aligned lanes.
func TestTraceRecordAndShow(t *testing.T) {
	s := open(t, "--layer-groups", "2", "--api-keys", write(t, "keys", "first-secret-key\n"))
	s.key = "first-secret-key"
	file := filepath.Join(t.TempDir(), "trace.json")
	refuses(t, 1, []string{"trace", "record", "--url", s.base, "--seconds", "0.1", "--out", file}, "401", "KRATER_API_KEY")
	ctx, stop := context.WithCancel(context.Background())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for ctx.Err() == nil {
			_, _ = s.ask(routes[0], greedy("hello", 8))
		}
	}()
	out := answers(t, "", "trace", "record", "--url", s.base, "--seconds", "0.7", "--out", file, "--api-key", "first-secret-key")
	stop()
	<-asked
	if !strings.Contains(out, "events of ") {
		t.Errorf("it says %q", out)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tracks, devices, err := trace.ReadChrome(f)
	if err != nil {
		t.Fatal(err)
	}
	checkNesting(t, file)
	groups := 0
	for _, x := range tracks {
		if x.Name == "group1" {
			groups = len(x.Events)
			if e := x.Events[0]; devices[e.Device] != "cpu" {
				t.Errorf("group1 computes on %q of %q", devices[e.Device], devices)
			}
		}
	}
	if groups < 5 {
		t.Errorf("%d events of group1", groups)
	}
	shown := answers(t, "", "trace", "show", file, "--steps", "2", "--width", "90")
	for _, words := range []string{"Steps ", "group0", "group1", "schedule", "Where the time went", "L layers"} {
		if !strings.Contains(shown, words) {
			t.Errorf("no %q in\n%s", words, shown)
		}
	}
	for line := range strings.Lines(shown) {
		if len(line) > 140 || strings.Contains(line, "\x1b") {
			t.Errorf("line %q", line)
		}
	}
}

// TestTraceOfCopies: experts that are copied to a simulated rank through a small budget are in a
// recording of the server, in lanes that the terminal shows, and what waited for them is named.
func TestTraceOfCopies(t *testing.T) {
	s := open(t, "--device", "hostsim", "--prefill-strategy", "layer_grouped:6", "--decode-strategy", "lru",
		"--expert-vram", "8MiB", "--prefill-expert-vram", "6MiB", "--gpu-prefill-threshold", "4")
	file := filepath.Join(t.TempDir(), "trace.json")
	ctx, stop := context.WithCancel(context.Background())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for i := 0; ctx.Err() == nil; i++ {
			_, _ = s.ask(routes[0], greedy(fmt.Sprintf("%d ships on the sea, and the rocks around it", i), 4))
		}
	}()
	answers(t, "", "trace", "record", "--url", s.base, "--seconds", "0.7", "--out", file)
	stop()
	<-asked
	checkNesting(t, file)
	shown := answers(t, "", "trace", "show", file, "--steps", "8", "--width", "120")
	for _, words := range []string{"\nhostsim ", "\nhostsim copy ", "C experts copied", ". waiting for a copy", "Y experts there", "\n  copies "} {
		if !strings.Contains(shown, words) {
			t.Errorf("no %q in\n%s", words, shown)
		}
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tracks, _, err := trace.ReadChrome(f)
	if err != nil {
		t.Fatal(err)
	}
	layers := map[string]bool{}
	for _, g := range trace.Gaps(tracks, 1) {
		if g.Cause == trace.ForCopy {
			layers[g.Why] = true
		}
	}
	if len(layers) != 6 || !layers["waiting for the copy of layer 1's experts"] {
		t.Errorf("waits for copies: %v", layers)
	}
}

// checkNesting holds a file to what the Trace Event Format asks for: complete slices of a
// thread lie apart or inside each other, asynchronous ones have both their ends, and flows
// begin before they go on and end.
func checkNesting(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents []struct {
			Ph, Name, Cat string
			Pid, Tid      int
			ID            uint64
			Ts, Dur       float64
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	type slice struct{ from, to float64 }
	open := map[int][]slice{}
	ends, flows := map[string]int{}, map[uint64]string{}
	slices := 0
	for _, e := range file.TraceEvents { // by their beginnings
		switch e.Ph {
		case "M":
		case "X":
			slices++
			stack := open[e.Tid]
			for len(stack) > 0 && stack[len(stack)-1].to <= e.Ts+0.0005 { // half a nanosecond
				stack = stack[:len(stack)-1]
			}
			if len(stack) > 0 && stack[len(stack)-1].to < e.Ts+e.Dur-0.0005 {
				t.Errorf("%s of thread %d from %v for %v begins within one that ends at %v", e.Name, e.Tid, e.Ts, e.Dur, stack[len(stack)-1].to)
			}
			open[e.Tid] = append(stack, slice{e.Ts, e.Ts + e.Dur})
		case "b", "e":
			key := fmt.Sprint(e.Cat, e.ID, e.Name)
			if ends[key]++; e.Ph == "e" {
				ends[key] -= 2
			}
		case "s", "t", "f":
			if before := flows[e.ID]; (e.Ph == "s") != (before == "") || before == "f" {
				t.Errorf("flow %d: %q behind %q", e.ID, e.Ph, before)
			}
			flows[e.ID] = e.Ph
		default:
			t.Errorf("phase %q", e.Ph)
		}
	}
	for key, n := range ends {
		if n != 0 {
			t.Errorf("%s: %d beginnings without an end", key, n)
		}
	}
	if slices < 20 || len(ends) == 0 || len(flows) == 0 {
		t.Errorf("%d slices, %d asynchronous ones, %d flows", slices, len(ends), len(flows))
	}
}

// TestOTLP: answers of the real server arrive at a collector when the server has ended, as
// children of the spans that their clients named.
func TestOTLP(t *testing.T) {
	got := make(chan string, 16)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case got <- r.URL.Path + string(body):
		default:
		}
	}))
	defer collector.Close()
	s := open(t, "--otlp-endpoint", collector.URL)
	if _, err := s.ask(routes[0], greedy("hello", 4)); err != nil {
		t.Fatal(err)
	}
	const caller, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for path, body := range map[string]string{"/v1/completions": `{"prompt":"hello","max_tokens":2}`, "/v1/responses": `{"input":"hello","max_output_tokens":2}`} {
		req, err := http.NewRequest("POST", s.base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("traceparent", "00-"+caller+"-"+span+"-01")
		req.Header.Set("Content-Type", "application/json")
		res, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	sent := ""
	for len(got) > 0 { // the server's end has sent all
		sent += <-got
	}
	raw, _ := hex.DecodeString(span)
	if n := strings.Count(sent, string(raw)); n != 2 {
		t.Errorf("%d spans are children of the caller's, want 2", n)
	}
	for _, words := range []string{"/v1/traces", "chat krater-tiny", "prefill", "decode", "queue", "gen_ai.usage.output_tokens"} {
		if !strings.Contains(sent, words) {
			t.Errorf("no %q in %q", words, sent)
		}
	}
	refuses(t, 1, []string{"serve", "--listen", "127.0.0.1:0", "--otlp-endpoint", "nowhere"}, "--otlp-endpoint", "nowhere")
}

func TestPprof(t *testing.T) {
	s := open(t, "--pprof")
	for path, words := range map[string]string{"/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "goroutine profile", "/debug/pprof/cmdline": "test"} {
		if status, _, body := s.do("GET", path, ""); status != http.StatusOK || !strings.Contains(body, words) {
			t.Errorf("%s: %d, %.80q", path, status, body)
		}
	}
	without := open(t)
	if status, _, _ := without.do("GET", "/debug/pprof/", ""); status != http.StatusNotFound {
		t.Errorf("without --pprof: %d", status)
	}
	refuses(t, 1, []string{"serve", "--listen", "0.0.0.0:0", "--pprof"}, "--pprof", "0.0.0.0:0")
}
