package batches

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/scheduler/batchqueue"
	"krater/transport/api"
	"krater/transport/client"
	"krater/transport/enginetest"
	"krater/transport/responses"
	"krater/transport/server"
)

// patience bounds every wait of a test; none takes long unless it fails.
const patience = time.Minute

const chatPath = "/v1/chat/completions"

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// rig is a server on a real socket over a scripted engine, with a batch store.
type rig struct {
	*client.Client
	t      testing.TB
	engine *enginetest.Engine
	clock  *clock
	store  *batchqueue.Store
	server *server.Server
	door   *Door
	other  *responses.Door
	url    string
	served chan error
	http   *http.Client
	ended  bool
}

// setup holds the parameters of a rig; zero fields have their defaults.
type setup struct {
	dir     string
	keys    []string
	key     string // of the rig's own client
	origins []string
	queue   batchqueue.Options
	door    Options
	body    int64         // of a request
	over    engine.Engine // what is served; nil: a scripted engine
	idle    bool          // lines are not run
}

func start(t testing.TB, s setup) *rig {
	t.Helper()
	r := &rig{t: t, engine: enginetest.New(), clock: &clock{at: time.Unix(1_800_000_000, 0)}, served: make(chan error, 1)}
	var e engine.Engine = r.engine
	if s.over != nil {
		e = s.over
	}
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	s.queue.Now = r.clock.now
	var err error
	if r.store, err = batchqueue.Open(s.dir, s.queue); err != nil {
		t.Fatal(err)
	}
	opt := server.Options{Origins: s.origins, MaxBody: s.body}
	for _, k := range s.keys {
		opt.Keys = append(opt.Keys, server.HashKey(k))
	}
	r.server = server.New(e, opt)
	r.other = responses.New(e, responses.Options{Owner: r.server.Owner, ReadBody: r.server.ReadBody, Acquire: r.server.Acquire})
	r.other.Mount(r.server.Route)
	o := s.door
	o.Store, o.Model, o.Inside, o.Owner = r.store, "test-model", r.server.Inside, r.server.Owner
	o.Peer = r.server.Peer
	o.AllowOrigin, o.ReadBody, o.Ready = r.server.OriginAllowed, r.server.ReadBody, r.server.Ready
	o.Endpoints = []string{chatPath, "/v1/completions", "/v1/responses", "/v1/messages"}
	if o.Poll == 0 {
		o.Poll = 5 * time.Millisecond
	}
	if o.CommitDelay == 0 {
		o.CommitDelay = 2 * time.Millisecond
	}
	if o.RetryMin == 0 {
		o.RetryMin, o.RetryMax = time.Millisecond, 5*time.Millisecond
	}
	r.door = New(o)
	r.door.Mount(r.server.Route)
	if err := r.server.Register(r.door); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { r.served <- r.server.Serve(l) }()
	r.url, r.http = "http://"+l.Addr().String(), &http.Client{Transport: &http.Transport{}}
	r.Client = client.New(r.url, s.key, r.http)
	t.Cleanup(r.end)
	if !s.idle {
		r.door.Start()
	}
	return r
}

// end stops everything as a server does; lines in flight are cut at once.
func (r *rig) end() {
	if r.ended {
		return
	}
	r.ended = true
	r.http.CloseIdleConnections()
	cut, cancel := context.WithCancel(context.Background())
	cancel()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	done := make(chan error, 2)
	go func() { done <- r.door.Shutdown(ctx) }()
	go func() { _ = r.other.Shutdown(cut); done <- nil }()
	_ = r.server.Shutdown(cut)
	for range 2 {
		if err := <-done; err != nil {
			r.t.Errorf("the door does not end: %v", err)
		}
	}
	if err := <-r.served; err != nil {
		r.t.Errorf("Serve: %v", err)
	}
	if err := r.store.Close(); err != nil {
		r.t.Errorf("the store: %v", err)
	}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.t.Cleanup(cancel)
	return ctx
}

// line is a request of a batch.
func line(id, path, body string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":%q,"body":%s}`+"\n", id, path, body)
}

func chat(text string) string {
	return fmt.Sprintf(`{"model":"test-model","messages":[{"role":"user","content":%q}]}`, text)
}

// chats returns a file of n conversations.
func chats(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(fmt.Sprintf("line-%d", i), chatPath, chat(fmt.Sprintf("question %d", i))))
	}
	return b.String()
}

// submit uploads a text and makes a batch of it.
func (r *rig) submit(text, endpoint, window string) *api.Batch {
	r.t.Helper()
	f, err := r.Upload(r.ctx(), "in.jsonl", strings.NewReader(text))
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := r.CreateBatch(r.ctx(), api.BatchRequest{InputFileID: &f.ID, Endpoint: &endpoint, Window: &window})
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// finish waits for a batch's end.
func (r *rig) finish(b *api.Batch) *api.Batch {
	r.t.Helper()
	b, err := r.WaitBatch(r.ctx(), b.ID, 2*time.Millisecond, nil)
	if err != nil {
		r.t.Fatalf("%v, %+v", err, b)
	}
	return b
}

// until waits for a state of a batch.
func (r *rig) until(b *api.Batch, ok func(*api.Batch) bool) *api.Batch {
	r.t.Helper()
	ctx := r.ctx()
	for {
		now, err := r.Batch(ctx, b.ID)
		if err != nil {
			r.t.Fatalf("%v, %+v", err, b)
		}
		if ok(now) {
			return now
		}
		<-time.After(2 * time.Millisecond)
	}
}

// lines reads an output or error file; nil is none.
func (r *rig) lines(id *string) (list []batchqueue.Output) {
	r.t.Helper()
	if id == nil {
		return nil
	}
	body, err := r.Content(r.ctx(), *id)
	if err != nil {
		r.t.Fatal(err)
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		r.t.Fatal(err)
	}
	for text := range strings.Lines(string(data)) {
		var o batchqueue.Output
		if err := json.Unmarshal([]byte(text), &o, json.RejectUnknownMembers(true)); err != nil {
			r.t.Fatalf("%q: %v", text, err)
		}
		list = append(list, o)
	}
	return list
}

// said returns the text of a chat answer.
func said(t testing.TB, o batchqueue.Output) string {
	t.Helper()
	var c api.ChatCompletion
	if o.Response == nil || o.Response.StatusCode != 200 || json.Unmarshal(o.Response.Body, &c) != nil || len(c.Choices) != 1 {
		t.Fatalf("no chat answer: %+v", o)
	}
	return *c.Choices[0].Message.Content
}

// echo answers with the prompt's last words.
func echo(req *engine.Request) (enginetest.Script, error) {
	text := string(req.Prompt.Chat.Messages)
	_, text, _ = strings.Cut(text, `"content":"`)
	text, _, _ = strings.Cut(text, `"`)
	return enginetest.Text("re: ", text), nil
}

// send does a request of any form and gives status and body.
func (r *rig) send(method, path, kind, body string, header ...string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.ctx(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := r.http.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// refused wants an error of the API.
func refused(t testing.TB, err error, status int, code string) {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Status != status || e.Code != code {
		t.Errorf("%v (%+v), want %d %s", err, e, status, code)
	}
}
