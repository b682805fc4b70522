package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/enginetest"
)

// gatedEngine holds requests where they are tokenized.
type gatedEngine struct {
	*enginetest.Engine
	gate chan struct{} // each element lets one go on

	mu   sync.Mutex
	now  map[string]int // requests inside, by owner
	most int
	more chan struct{} // closed and replaced when now changes
}

func newGatedEngine() *gatedEngine {
	return &gatedEngine{Engine: enginetest.New(), gate: make(chan struct{}), now: map[string]int{}, more: make(chan struct{})}
}

func (e *gatedEngine) add(owner string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now[owner] += n
	all := 0
	for _, k := range e.now {
		all += k
	}
	e.most = max(e.most, all)
	close(e.more)
	e.more = make(chan struct{})
}

// wait waits until n requests of an owner are inside.
func (e *gatedEngine) wait(t *testing.T, owner string, n int) {
	t.Helper()
	late := time.After(patience)
	for {
		e.mu.Lock()
		now, more := e.now[owner], e.more
		e.mu.Unlock()
		if now == n {
			return
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("%d requests of %q are inside, want %d", now, owner, n)
		}
	}
}

// Submit implements engine.Engine.
func (e *gatedEngine) Submit(ctx context.Context, r *engine.Request) (engine.Stream, error) {
	e.add(r.Owner, 1)
	defer e.add(r.Owner, -1)
	select {
	case <-e.gate:
	case <-ctx.Done():
		return nil, &engine.Error{Kind: engine.Cancelled, Message: "cancelled"}
	}
	return nil, &engine.Error{Kind: engine.BadRequest, Message: "tokenized"}
}

// TestWorkIsBounded: only a limited number of long requests are read and tokenized at once, and at
// most three quarters of it for one key; the others wait and are served. A client that leaves frees
// its place.
func TestWorkIsBounded(t *testing.T) {
	e := newGatedEngine()
	f := startWith(t, e.Engine, New(e, Options{Keys: []KeyHash{HashKey("key-of-many"), HashKey("key-of-one")}, MaxWork: 400 << 10}))
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":"%s"}]}`, strings.Repeat("a", 99<<10))
	send := func(ctx context.Context, key, body string) (int, string) {
		req, err := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Api-Key", key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	many, one := ownerOf("key-of-many"), ownerOf("key-of-one")
	var all, left sync.WaitGroup
	flood := func(ctx context.Context, group *sync.WaitGroup, n, want int) {
		for range n {
			group.Go(func() {
				if code, text := send(ctx, "key-of-many", body); code != want {
					t.Errorf("%d %s", code, text)
				}
			})
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	flood(ctx, &left, 3, 0)
	e.wait(t, many, 3) // three quarters
	flood(t.Context(), &all, 9, 400)
	all.Go(func() { send(t.Context(), "key-of-one", body) })
	e.wait(t, one, 1) // though nine of the other wait
	all.Go(func() { send(t.Context(), "key-of-many", `{"messages":[{"role":"user","content":"short"}]}`) })
	e.wait(t, many, 4) // a short one does not wait
	leave()
	left.Wait()        // before the gate opens, which would answer them
	e.wait(t, many, 4) // others came for those that left
	close(e.gate)
	all.Wait()
	if e.most > 5 {
		t.Errorf("%d were inside at once", e.most)
	}
	workEnds(t, f)
}

// workEnds waits until nothing is in work.
func workEnds(t *testing.T, f *fixture) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if !f.work.Wait(ctx, "", f.opt.MaxWork) {
		t.Error("some of the work is never given back")
		return
	}
	f.work.Give("", f.opt.MaxWork)
}

func ownerOf(key string) string {
	hash := HashKey(key)
	return fmt.Sprintf("%x", hash[:])
}

// TestWorkIsRefused: a request that waits too long for room gets a 429 with Retry-After; so does
// one whose length is not known.
func TestWorkIsRefused(t *testing.T) {
	f := start(t, Options{MaxWork: 64 << 10, BodyTimeout: 50 * time.Millisecond})
	done, err := f.Work(t.Context(), "", 1<<20) // more than there is: all of it
	if err != nil {
		t.Fatal(err)
	}
	long := fmt.Sprintf(`{"prompt":"%s"}`, strings.Repeat("a", 20<<10))
	for path, body := range map[string]string{
		"/v1/chat/completions": long, "/v1/completions": long, "/tokenize": long, "/detokenize": long, "/apply-template": long,
	} {
		for _, length := range []int64{int64(len(body)), -1} {
			req, err := http.NewRequest("POST", f.url+path, io.MultiReader(strings.NewReader(body)))
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = length
			req.Header.Set("Content-Type", "application/json")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
				t.Errorf("%s of length %d: %d, Retry-After %q", path, length, res.StatusCode, res.Header.Get("Retry-After"))
			}
		}
	}
	w := httptest.NewRecorder() // a line of a batch, which is tried again after a 429
	inside := httptest.NewRequest("POST", "/v1/completions", strings.NewReader(long))
	inside.Header.Set("Content-Type", "application/json")
	f.Inside("an-owner").ServeHTTP(w, inside)
	if w.Code != 429 {
		t.Errorf("in the process: %d", w.Code)
	}
	done()
	done() // counts once
	if code, text := f.post(t, "/tokenize", long); code != 200 {
		t.Errorf("with room again: %d %.200s", code, text)
	}
	workEnds(t, f)
}

// TestTokenizerRoutesAreBounded: a short request cannot have an answer of any length.
func TestTokenizerRoutesAreBounded(t *testing.T) {
	f := start(t, Options{})
	most := api.TokensMost(f.engine.Info())
	for _, c := range []struct{ path, body, code string }{
		{"/tokenize", fmt.Sprintf(`{"prompt":"%s"}`, strings.Repeat("a", most+1)), "context_length_exceeded"},
		{"/detokenize", `{"tokens":[` + strings.Repeat("1,", most) + `1]}`, "invalid_value"},
	} {
		wantError(t, f.send(t, "POST", c.path, c.body), 400, "invalid_request_error", c.code)
	}
	if code, text := f.post(t, "/tokenize", fmt.Sprintf(`{"prompt":"%s","add_special_tokens":false}`, strings.Repeat("a", most))); code != 200 {
		t.Errorf("just as many as allowed: %d %.200s", code, text)
	}
}

// TestPeer: limits are counted for a key where there are several, else for an address.
func TestPeer(t *testing.T) {
	a, b := HashKey("first-key"), HashKey("second-key")
	for _, c := range []struct {
		keys         []KeyHash
		remote, want string
	}{
		{nil, "127.0.0.1:1", ""}, {nil, "[::1]:1", ""}, {nil, "[::ffff:127.0.0.1]:1", ""}, {nil, "pipe", ""},
		{nil, "192.0.2.7:1", "192.0.2.7"}, {nil, "[::ffff:192.0.2.7]:1", "192.0.2.7"},
		{nil, "[2001:db8:1:2:3::4]:1", "2001:db8:1:2::/64"}, {nil, "[fe80::1%eth0]:1", "fe80::/64"},
		{[]KeyHash{a}, "192.0.2.7:1", ""},
		{[]KeyHash{a, b}, "192.0.2.7:1", "key"}, {[]KeyHash{a, b}, "127.0.0.1:1", "key"},
	} {
		s := New(nil, Options{Keys: c.keys})
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.remote
		r.Header.Set("X-Api-Key", "first-key")
		got, want := s.Peer(r), c.want
		if want == "key" {
			want = s.Owner(r)
		}
		if got != want {
			t.Errorf("%d keys, %s: %q, want %q", len(c.keys), c.remote, got, want)
		}
	}
}
