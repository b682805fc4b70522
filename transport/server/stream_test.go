package server

import (
	"bufio"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
	"krater/transport/client"
	"krater/transport/enginetest"
)

// events splits a stream strictly: only data lines, comments and blank lines.
func events(t *testing.T, text string) []string {
	t.Helper()
	if !strings.HasSuffix(text, "\n\n") {
		t.Fatalf("the stream ends inside an event: %q", text)
	}
	var out []string
	for _, block := range strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		if strings.HasPrefix(block, ": ") {
			continue
		}
		data, ok := strings.CutPrefix(block, "data: ")
		if !ok || strings.Contains(data, "\n") {
			t.Fatalf("bad event %q", block)
		}
		out = append(out, data)
	}
	return out
}

// chatStream holds what a strict client learns from a stream.
type chatStream struct {
	texts   []string
	reasons []string
	usage   *api.Usage
}

// checkChatStream validates every rule of a chat stream: one id, the role in the first delta of a
// choice and only there, finish_reason null and then given once, no text after it, usage alone in a
// last chunk, [DONE] at the end.
func checkChatStream(t *testing.T, text string, n int, wantUsage bool) chatStream {
	t.Helper()
	all := events(t, text)
	if last := all[len(all)-1]; last != "[DONE]" {
		t.Fatalf("the last event is %s", last)
	}
	all = all[:len(all)-1]
	out := chatStream{texts: make([]string, n), reasons: make([]string, n)}
	roles, id := make([]bool, n), ""
	for i, data := range all {
		var chunk struct {
			ID      string                  `json:"id"`
			Object  string                  `json:"object"`
			Created int64                   `json:"created"`
			Model   string                  `json:"model"`
			Choices []api.ChatChunkChoice   `json:"choices"`
			Usage   api.Nullable[api.Usage] `json:"usage"`
		}
		if err := json.Unmarshal([]byte(data), &chunk, json.RejectUnknownMembers(true)); err != nil {
			t.Fatalf("event %d %s: %v", i, data, err)
		}
		if id == "" {
			id = chunk.ID
		}
		if chunk.ID != id || !strings.HasPrefix(id, "chatcmpl-") || chunk.Object != "chat.completion.chunk" || chunk.Created == 0 || chunk.Model != "test-model" {
			t.Errorf("event %d %s", i, data)
		}
		if chunk.Usage.Set != wantUsage {
			t.Errorf("event %d: usage field %v, want %v: %s", i, chunk.Usage.Set, wantUsage, data)
		}
		if len(chunk.Choices) == 0 {
			if !wantUsage || i != len(all)-1 || chunk.Usage.Value == nil {
				t.Errorf("event %d is empty: %s", i, data)
			}
			out.usage = chunk.Usage.Value
			continue
		}
		if chunk.Usage.Value != nil {
			t.Errorf("event %d: usage beside a choice: %s", i, data)
		}
		for _, c := range chunk.Choices {
			if out.reasons[c.Index] != "" {
				t.Errorf("event %d: choice %d goes on after its end", i, c.Index)
			}
			if first := !roles[c.Index]; first != (c.Delta.Role == "assistant") {
				t.Errorf("event %d: role %q, first %v", i, c.Delta.Role, first)
			}
			roles[c.Index] = true
			if c.Delta.Content != nil {
				out.texts[c.Index] += *c.Delta.Content
			}
			if c.FinishReason != nil {
				if *c.FinishReason == "" {
					t.Errorf("event %d: empty finish_reason", i)
				}
				out.reasons[c.Index] = *c.FinishReason
			}
		}
	}
	for i, reason := range out.reasons {
		if reason == "" {
			t.Errorf("choice %d has no finish_reason", i)
		}
	}
	if wantUsage && out.usage == nil {
		t.Error("no usage")
	}
	return out
}

func TestChatStreamRules(t *testing.T) {
	f := start(t, Options{})
	pieces := []string{"🦀", "한글", " a\n\nb", "\u2028", `"error"`, "data: [DONE]"}
	whole := strings.Join(pieces, "")
	seen := 0
	f.engine.Choose(func(r *engine.Request) (enginetest.Script, error) {
		seen++
		if seen%2 == 0 {
			return enginetest.Finish(engine.FinishLength, pieces...), nil
		}
		return enginetest.Text(pieces...), nil
	})
	for _, n := range []int{1, 2, 5} {
		for _, usage := range []bool{false, true} {
			seen = 0
			options := ""
			if usage {
				options = `,"stream_options":{"include_usage":true}`
			}
			code, text := f.post(t, "/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":"hi"}],"n":%d,"seed":7,"stream":true%s}`, n, options))
			if code != 200 {
				t.Fatalf("%d %s", code, text)
			}
			got := checkChatStream(t, text, n, usage)
			for i := range n {
				if got.texts[i] != whole {
					t.Errorf("n=%d choice %d: %q", n, i, got.texts[i])
				}
				if want := []string{"stop", "length"}[i%2]; got.reasons[i] != want {
					t.Errorf("n=%d choice %d: %s, want %s", n, i, got.reasons[i], want)
				}
			}
			if usage && (got.usage.PromptTokens != 20 || got.usage.CompletionTokens != n*len(pieces) || got.usage.TotalTokens != 20+n*len(pieces)) {
				t.Errorf("n=%d: %+v: the prompt counts once", n, got.usage)
			}
		}
	}
}

func TestStreamWithoutText(t *testing.T) {
	f := start(t, Options{})
	f.engine.Play(enginetest.Text())
	_, text := f.post(t, "/v1/chat/completions", helloStream)
	if got := checkChatStream(t, text, 1, false); got.texts[0] != "" || got.reasons[0] != "stop" {
		t.Errorf("%+v", got)
	}
}

// The last piece may come with Done itself; it must not be lost (seen in the field with "length").
func TestLastPieceInDone(t *testing.T) {
	f := start(t, Options{})
	f.engine.Play(enginetest.Steps(
		enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "a"}},
		enginetest.Step{Event: engine.Event{Kind: engine.Done, Text: "z", Finish: engine.FinishLength}},
	))
	_, text := f.post(t, "/v1/chat/completions", helloStream)
	if got := checkChatStream(t, text, 1, false); got.texts[0] != "az" || got.reasons[0] != "length" {
		t.Errorf("%+v", got)
	}
	if _, text = f.post(t, "/v1/completions", `{"prompt":"a"}`); !strings.Contains(text, `"text":"az"`) {
		t.Error(text)
	}
}

func TestFailureInTheMiddle(t *testing.T) {
	f := start(t, Options{})
	f.engine.Play(enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "a stage failed"}, "a", "b"))
	for path, body := range map[string]string{"/v1/chat/completions": helloStream, "/v1/completions": `{"prompt":"a","stream":true}`} {
		code, text := f.post(t, path, body)
		all := events(t, text)
		if last := all[len(all)-1]; code != 200 || last != `{"error":{"message":"a stage failed","type":"server_error","param":null,"code":null}}` {
			t.Errorf("%s: %d ends with %s", path, code, last)
		}
		if strings.Contains(text, "[DONE]") || strings.Contains(text, `"finish_reason":"`) {
			t.Errorf("%s: a failed stream looks finished: %s", path, text)
		}
	}
	// One failed choice ends its siblings.
	n := 0
	f.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
		if n++; n == 1 {
			return enginetest.Fail(&engine.Error{Kind: engine.Internal, Message: "x"}, "a"), nil
		}
		return enginetest.Forever("y"), nil
	})
	_, text := f.post(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"n":3,"stream":true}`)
	if !strings.Contains(text, `"error"`) || strings.Contains(text, "[DONE]") {
		t.Error(text)
	}
	f.waitOpen(t, 0)
}

func TestStreamThatBreaksItsContract(t *testing.T) {
	f := start(t, Options{})
	f.engine.Play(enginetest.Steps(enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "a"}})) // no Done
	if _, text := f.post(t, "/v1/chat/completions", helloStream); !strings.Contains(text, `"code":"cancelled"`) || strings.Contains(text, "[DONE]") {
		t.Error(text)
	}
	f.engine.Play(enginetest.Finish(engine.FinishCancelled, "a"))
	if _, text := f.post(t, "/v1/chat/completions", helloStream); !strings.Contains(text, `"code":"cancelled"`) || strings.Contains(text, "[DONE]") {
		t.Error(text)
	}
}

func TestHeartbeat(t *testing.T) {
	f := start(t, Options{Heartbeat: time.Millisecond})
	gate := make(chan struct{})
	f.engine.Play(enginetest.Gated(enginetest.Text("a"), 2, gate))
	res := f.send(t, "POST", "/v1/chat/completions", helloStream)
	in := bufio.NewReader(res.Body)
	line, err := in.ReadString('\n')
	if err != nil || line != ": keep-alive\n" {
		t.Fatalf("%q %v", line, err)
	}
	close(gate) // only the heartbeat shows that the prefill is still running
	checkChatStream(t, line+readAll(t, in), 1, false)
}

func TestVanishedClient(t *testing.T) {
	f := start(t, Options{})
	f.engine.Play(enginetest.Forever("x"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := f.client.ChatStream(ctx, api.ChatRequest{Messages: client.Messages(client.Message{Role: "user", Content: "a"}), N: new(3)})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := stream.Next(); err != nil {
			t.Fatal(err)
		}
	}
	f.waitOpen(t, 3)
	stream.Close()
	cancel()
	f.waitOpen(t, 0)

	// Without a stream nothing is written, so only the read side shows it.
	f.engine.Play(enginetest.Gated(enginetest.Text("a"), 0, make(chan struct{})))
	ctx, cancel = context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() {
		_, err := f.client.Complete(ctx, api.CompletionRequest{Prompt: api.Prompts{Texts: []string{"a"}}})
		gone <- err
	}()
	f.waitOpen(t, 1)
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	f.waitOpen(t, 0)
}

func TestSlowClient(t *testing.T) {
	f := start(t, Options{WriteTimeout: 50 * time.Millisecond})
	f.engine.Play(enginetest.Forever(strings.Repeat("x", 64<<10)))
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(helloStream), helloStream)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := f.engine.WaitRequests(ctx, 1); err != nil {
		t.Fatal(err)
	}
	f.waitOpen(t, 0) // the client never reads, so the write's deadline ends it
}

// TestLargeAnswer: a client that reads slowly, but reads, gets an answer whole that takes it longer
// than one write may.
func TestLargeAnswer(t *testing.T) {
	f := start(t, Options{WriteTimeout: time.Second})
	const size, reads = 32 << 20, 64
	f.Route("GET /large", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		api.WriteJSON(w, http.StatusOK, strings.Repeat("x", size))
	}))
	res := f.send(t, "GET", "/large", "")
	got := int64(0)
	for range reads {
		time.Sleep(40 * time.Millisecond)
		n, err := io.CopyN(io.Discard, res.Body, size/reads)
		if got += n; err != nil {
			t.Fatalf("after %d bytes: %v", got, err)
		}
	}
	if rest, err := io.Copy(io.Discard, res.Body); err != nil || got+rest != res.ContentLength {
		t.Errorf("%d of %d bytes: %v", got+rest, res.ContentLength, err)
	}
}

// Clients that come and go at random leave nothing behind, and those that stay get the whole
// answer.
func TestManyClients(t *testing.T) {
	f := start(t, Options{})
	pieces := strings.Split(strings.Repeat("ab ", 10), "")
	f.engine.Play(enginetest.Text(pieces...))
	rng := rand.New(rand.NewPCG(1, 2))
	var wg sync.WaitGroup
	for i := range 60 {
		leave := -1
		if i%2 == 1 {
			leave = rng.IntN(35)
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			stream, err := f.client.ChatStream(ctx, api.ChatRequest{Messages: client.Messages(client.Message{Role: "user", Content: "a"})})
			if err != nil {
				t.Error(err)
				return
			}
			defer stream.Close()
			text := ""
			for read := 0; read != leave; read++ {
				chunk, err := stream.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Error(err)
					return
				}
				if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != nil {
					text += *chunk.Choices[0].Delta.Content
				}
			}
			if leave < 0 && text != strings.Join(pieces, "") {
				t.Errorf("%q", text)
			}
		})
	}
	wg.Wait()
	f.waitOpen(t, 0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := f.Shutdown(ctx); err != nil { // every handler has returned
		t.Fatal(err)
	}
	if f.places.Held("") != 0 {
		t.Errorf("%d places are still taken", f.places.Held(""))
	}
}

func TestCompletionStream(t *testing.T) {
	f := start(t, Options{})
	f.engine.Choose(func(r *engine.Request) (enginetest.Script, error) {
		ids, err := f.engine.Tokenize(t.Context(), r.Prompt, 2) // of the second choice there are only ids
		return enginetest.Text("-", string(rune(ids[len(ids)-1]))), err
	})
	code, text := f.post(t, "/v1/completions", `{"prompt":["a","b"],"n":2,"echo":true,"stream":true,"stream_options":{"include_usage":true}}`)
	if code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	all := events(t, text)
	texts, reasons := make([]string, 4), make([]int, 4)
	var usage *api.Usage
	for _, data := range all[:len(all)-1] {
		var chunk api.TextCompletion
		if err := json.Unmarshal([]byte(data), &chunk, json.RejectUnknownMembers(true)); err != nil {
			t.Fatal(err)
		}
		if chunk.Object != "text_completion" || !strings.HasPrefix(chunk.ID, "cmpl-") {
			t.Errorf("%s", data)
		}
		for _, c := range chunk.Choices {
			texts[c.Index] += c.Text
			if c.FinishReason != nil {
				reasons[c.Index]++
			}
		}
		usage = chunk.Usage.Value
	}
	if got := strings.Join(texts, "|"); got != "a-a|a-a|b-b|b-b" {
		t.Errorf("%s", got)
	}
	if fmt.Sprint(reasons) != "[1 1 1 1]" {
		t.Errorf("finish reasons %v", reasons)
	}
	if usage == nil || usage.PromptTokens != 4 || usage.CompletionTokens != 8 {
		t.Errorf("%+v: each prompt counts once", usage)
	}
}

func TestStreamHeaders(t *testing.T) {
	f := start(t, Options{})
	res := f.send(t, "POST", "/v1/chat/completions", helloStream)
	if ct := res.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		t.Errorf("%q", ct)
	}
	if res.Header.Get("Cache-Control") != "no-cache" || res.StatusCode != http.StatusOK {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	checkChatStream(t, readAll(t, res.Body), 1, false)
}

// TestContinuousUsage: every chunk has the usage so far, of all choices.
func TestContinuousUsage(t *testing.T) {
	f := start(t, Options{})
	tokens := func(n int) enginetest.Step {
		return enginetest.Step{Event: engine.Event{Kind: engine.Tokens, Text: "a", Usage: engine.Usage{Prompt: 3, Completion: n}}}
	}
	f.engine.Play(enginetest.Steps(tokens(1), tokens(2), enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop, Usage: engine.Usage{Prompt: 3, Completion: 2}}}))
	for path, body := range map[string]string{
		"/v1/completions":      `{"prompt":"ab","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
		"/v1/chat/completions": `{"messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
	} {
		_, text := f.post(t, path, body)
		var counts []string
		for _, part := range strings.Split(text, `"completion_tokens":`)[1:] {
			counts = append(counts, part[:1])
		}
		got := strings.Join(counts, "")
		if got = strings.TrimLeft(got, "1"); strings.Trim(got, "2") != "" || len(got) < 3 || strings.Contains(text, `"usage":null`) {
			t.Errorf("%s: %s", path, text)
		}
	}
	if res := f.send(t, "GET", "/tokenizer_info", ""); !strings.Contains(readAll(t, res.Body), `"model_max_length":256`) {
		t.Error("no tokenizer_info")
	}
}

// TestPrefixes: the digest of the cache, and that it is sent once.
func TestPrefixes(t *testing.T) {
	f := start(t, Options{})
	res := f.send(t, "GET", "/v1/prefixes", "")
	const want = `{"object":"prefix_digest","model":"test-model","block_tokens":4,"hash":"fnv1a-64","prefixes":["0000000000000007","0000000000000f00"]}`
	if text := strings.TrimSpace(readAll(t, res.Body)); text != want {
		t.Errorf("%s", text)
	}
	tag := res.Header.Get("ETag")
	if again := f.send(t, "GET", "/v1/prefixes", "", "If-None-Match", tag); tag == "" || again.StatusCode != 304 {
		t.Errorf("tag %q: status %d", tag, again.StatusCode)
	}
	f.engine.SetReady(&engine.Error{Kind: engine.Unavailable, Message: "loading"})
	if res := f.send(t, "GET", "/v1/prefixes", ""); res.StatusCode != 503 {
		t.Errorf("status %d while nothing is served", res.StatusCode)
	}
}

// TestPromptProgress: events about the prompt have no choices.
func TestPromptProgress(t *testing.T) {
	f := start(t, Options{})
	f.engine.Play(enginetest.Steps(enginetest.Step{Event: engine.Event{Kind: engine.Started}},
		enginetest.Step{Event: engine.Event{Kind: engine.Progress, Position: 3, Usage: engine.Usage{Prompt: 9, Cached: 1}}},
		enginetest.Step{Event: engine.Event{Kind: engine.Done, Finish: engine.FinishStop}}))
	_, text := f.post(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"stream":true,"return_progress":true}`)
	if !strings.Contains(text, `"choices":[],"prompt_progress":{"total":9,"cache":1,"processed":3,"time_ms":`) || !f.engine.Requests()[0].Progress {
		t.Error(text)
	}
}
