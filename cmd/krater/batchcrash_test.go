package main

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"krater/transport/api"
	"krater/transport/client"
)

// crashed describes the run of a batch whose server was killed.
type crashed struct {
	lines, kills int
	took         time.Duration   // from its making to its end
	undisturbed  time.Duration   // the same without a kill
	ready        []time.Duration // of every start, from the process to /ready
	at           map[string]int  // kills by the batch's status at the last look
	completed    int
	failed       int
}

// crashLines is an input of short greedy questions, with some that are refused by
// their endpoint and some that are no requests at all.
func crashLines(n int) string {
	words := []string{"lighthouse", "river", "mountain", "clock", "garden", "bridge", "book", "storm"}
	var b strings.Builder
	for i := range n {
		if i%131 == 77 {
			b.WriteString("{\"custom_id\":\n")
			continue
		}
		temperature := "0"
		if i%97 == 50 {
			temperature = "7"
		}
		fmt.Fprintf(&b, `{"custom_id":"line-%d","method":"POST","url":"/v1/chat/completions","body":{"temperature":%s,"max_tokens":%d,"messages":[{"role":"user","content":"What is a %s, number %d?"}]}}`+"\n",
			i, temperature, 1+i%4, words[i%len(words)], i)
	}
	return b.String()
}

// serveBatches starts a server over a batch folder and waits until it is ready.
func serveBatches(t testing.TB, dir string) (*program, *client.Client) {
	t.Helper()
	p := launch(t, "serve", "--listen", "127.0.0.1:0", "--batch-dir", dir, "--batch-in-flight", "8", "--log-level", "warn")
	return p, client.New(p.address(), "", nil)
}

func submitLines(t testing.TB, ctx context.Context, cl *client.Client, text string) *api.Batch {
	t.Helper()
	f, err := cl.Upload(ctx, "crash.jsonl", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	endpoint, window := "/v1/chat/completions", "24h"
	b, err := cl.CreateBatch(ctx, api.BatchRequest{InputFileID: &f.ID, Endpoint: &endpoint, Window: &window})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// crashRun kills a server again and again while it works off a batch, and compares
// what comes out in the end with a run that nothing disturbed. A conversation that grows meanwhile has all that was answered.
func crashRun(t testing.TB, lines, kills int, seed uint64) *crashed {
	t.Helper()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	text := crashLines(lines)
	c := &crashed{lines: lines, kills: kills, at: map[string]int{}}

	p, cl := serveBatches(t, t.TempDir())
	began := time.Now()
	want := collect(t, ctx, cl, submitLines(t, ctx, cl, text))
	c.undisturbed = time.Since(began)
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Fatalf("the undisturbed server ends with %d\n%s", status, p.err)
	}

	dir := t.TempDir()
	p, cl = serveBatches(t, dir)
	began = time.Now()
	b := submitLines(t, ctx, cl, text)
	seen := 0
	talk := dialogue{id: decode[struct{ ID string }](t, posted(t, p, "/v1/conversations", `{}`)).ID}
	for kill := range kills {
		if kill < 60 { // a page of items has 100
			talk.grow(t, p, kill)
		}
		now := c.kill(t, ctx, p, cl, b.ID, kill, r)
		if now < seen {
			t.Fatalf("kill %d: %d lines are settled, %d were before", kill, now, seen)
		}
		seen = now
		p, cl = serveBatches(t, dir)
		c.ready = append(c.ready, time.Since(p.started))
		talk.check(t, p)
	}
	got := collect(t, ctx, cl, b)
	c.took = time.Since(began)
	c.completed, c.failed = len(got.answers), len(got.failed)
	compareOutputs(t, "answers", got.answers, want.answers)
	compareOutputs(t, "failed lines", got.failed, want.failed)
	if c.completed+c.failed != lines {
		t.Errorf("%d and %d of %d lines came out", c.completed, c.failed, lines)
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("the last server ends with %d\n%s", status, p.err)
	}
	return c
}

// dialogue is a conversation, and what its items are known to be.
type dialogue struct {
	id    string
	words []string
}

// items are the conversation's items.
func (s *dialogue) items(t testing.TB, p *program) (words []string) {
	t.Helper()
	res, err := http.Get(p.address() + "/v1/conversations/" + s.id + "/items?order=asc&limit=100")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%d %s: %v", res.StatusCode, text, err)
	}
	for _, i := range decode[struct {
		Data []struct {
			Role    string
			Content []struct{ Text string }
		}
	}](t, string(text)).Data {
		words = append(words, i.Role+": "+i.Content[0].Text)
	}
	return words
}

// grow adds an item, or a turn with an answer.
func (s *dialogue) grow(t testing.TB, p *program, n int) {
	t.Helper()
	text := fmt.Sprintf("Word %d", n)
	s.words = append(s.words, "user: "+text)
	if n%2 == 0 {
		posted(t, p, "/v1/conversations/"+s.id+"/items", `{"items":[{"role":"user","content":"`+text+`"}]}`)
		return
	}
	got := decode[struct {
		Output []struct{ Content []struct{ Text string } }
	}](t, posted(t, p, "/v1/responses", `{"conversation":"`+s.id+`","input":"`+text+`","max_output_tokens":2}`))
	s.words = append(s.words, "assistant: "+got.Output[0].Content[0].Text)
}

// check holds the conversation against what was answered.
func (s *dialogue) check(t testing.TB, p *program) {
	t.Helper()
	if got := s.items(t, p); !slices.Equal(got, s.words) {
		t.Fatalf("the conversation has %q, want %q", got, s.words)
	}
}

// posted is the answer to a request.
func posted(t testing.TB, p *program, path, body string) string {
	t.Helper()
	res, err := http.Post(p.address()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%s: %d %s: %v", path, res.StatusCode, text, err)
	}
	return string(text)
}

// kill ends the server without warning and gives how many lines were settled at the
// last look. The first kills come at once, the last ones when no line is open any more,
// the others when the batch has come so far, or at any moment before.
func (c *crashed) kill(t testing.TB, ctx context.Context, p *program, cl *client.Client, id string, kill int, r *rand.Rand) int {
	t.Helper()
	some := 1 + c.kills/10
	target, delay := c.lines*(kill+1)/(c.kills+1), time.Duration(r.IntN(20_000))*time.Microsecond
	once := r.IntN(4) == 0
	switch {
	case kill < some:
		once, delay = true, delay/8
	case kill >= c.kills-some:
		once, target, delay = false, c.lines, 0
	}
	timeout := time.Now().Add(patience)
	var b *api.Batch
	for seen := -1; ; <-time.After(time.Millisecond) {
		var err error
		if b, err = cl.Batch(ctx, id); err != nil {
			t.Fatalf("%v\n%s", err, p.err)
		}
		if seen = b.RequestCounts.Completed + b.RequestCounts.Failed; seen >= target && b.Status != "validating" || once || b.Ended() {
			break
		}
		if time.Now().After(timeout) {
			t.Fatalf("%d lines are settled after %v\n%s", seen, patience, p.err)
		}
	}
	<-time.After(delay)
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if status := p.wait(); status != -1 {
		t.Fatalf("it ended with %d\n%s", status, p.err)
	}
	c.at[b.Status]++
	return b.RequestCounts.Completed + b.RequestCounts.Failed
}

// outputLine is a line of an output file without what differs from run to run.
type outputLine struct {
	name string // its custom id
	rest string
}

type outputFiles struct{ answers, failed []outputLine }

// collect waits for a batch's end and reads its files.
func collect(t testing.TB, ctx context.Context, cl *client.Client, b *api.Batch) outputFiles {
	t.Helper()
	b, err := cl.WaitBatch(ctx, b.ID, 20*time.Millisecond, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b.Status != "completed" || b.OutputFileID == nil || b.ErrorFileID == nil {
		t.Fatalf("%+v", b)
	}
	read := func(id string) (list []outputLine) {
		body, err := cl.Content(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		data, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		for text := range strings.Lines(string(data)) {
			list = append(list, plainLine(t, text))
		}
		return list
	}
	out := outputFiles{read(*b.OutputFileID), read(*b.ErrorFileID)}
	if len(out.answers) != b.RequestCounts.Completed || len(out.failed) != b.RequestCounts.Failed {
		t.Errorf("%d answers and %d failed lines, counted %+v", len(out.answers), len(out.failed), b.RequestCounts)
	}
	return out
}

// plainLine takes ids and times out of a line.
func plainLine(t testing.TB, text string) outputLine {
	t.Helper()
	var o struct {
		ID       string         `json:"id"`
		CustomID *string        `json:"custom_id"`
		Response map[string]any `json:"response"`
		Error    any            `json:"error"`
	}
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	l := outputLine{name: o.ID[strings.LastIndexByte(o.ID, '_')+1:]} // the line's number
	if o.CustomID != nil && *o.CustomID != "line-"+l.name {
		t.Errorf("the line %s is called %s", l.name, *o.CustomID)
	}
	delete(o.Response, "request_id")
	if body, ok := o.Response["body"].(map[string]any); ok {
		delete(body, "id")
		delete(body, "created")
	}
	rest, err := json.Marshal([]any{o.CustomID, o.Response, o.Error}, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	l.rest = string(rest)
	return l
}

// compareOutputs wants the same lines in the same order.
func compareOutputs(t testing.TB, what string, got, want []outputLine) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		t.Errorf("%d %s, want %d", len(got), what, len(want))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Errorf("%s %d:\n%s\nwant\n%s", what, i, got[i], want[i])
			return
		}
	}
}

// TestBatchCrash is the short form of make batch-crash.
func TestBatchCrash(t *testing.T) {
	c := crashRun(t, 200, 5, rand.Uint64())
	t.Logf("%d kills, %d answers, %d failed lines, %v beside %v undisturbed", c.kills, c.completed, c.failed, c.took, c.undisturbed)
}
