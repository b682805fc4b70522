package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const lighthouse = "What is a lighthouse?"

// reply asks one question and fails the test without an answer.
func (s *site) reply(t testing.TB, r route, q question) reply {
	t.Helper()
	got, err := s.ask(r, q)
	if err != nil {
		t.Fatalf("%s: %v", r.name, err)
	}
	return got
}

func (s *site) ask(r route, q question) (reply, error) {
	ctx, cancel := s.patient()
	defer cancel()
	return r.ask(ctx, s, q, idle)
}

// post sends a JSON body and decodes the answer into T; any status but 200
// fails the test.
func post200[T any](t testing.TB, s *site, path string, body any) T {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	status, _, text := s.do("POST", path, string(data))
	if status != 200 {
		t.Fatalf("%s: %d %s", path, status, text)
	}
	return decode[T](t, text)
}

type tokens struct {
	Count  int
	Tokens []int32
}

// TestEveryRouteGivesTheSame: the route is not part of the question.
func TestEveryRouteGivesTheSame(t *testing.T) {
	s := open(t)
	p := readGolden(t).Prompts[0]
	for _, q := range []question{greedy(lighthouse, 0), greedy(lighthouse, 0).with("temperature", 2).with("seed", 7).with("top_k", 40)} {
		want := map[bool]reply{}
		for _, r := range routes {
			got := s.reply(t, r, q)
			first, ok := want[r.raw]
			if !ok {
				want[r.raw] = got
			} else if !same(got, first) {
				t.Errorf("%s: %v, another route %v", r.name, got, first)
			}
			if !r.raw && q.fields["temperature"] == 0 && (got.text != p.Answer || got.finish != "stop" || got.prompt != len(p.InputIDs)) {
				t.Errorf("%s: %v after %d tokens, want %q after %d", r.name, got, got.prompt, p.Answer, len(p.InputIDs))
			}
		}
	}
}

// TestStopStrings: a stop string ends the answer before it on every route, also
// where it crosses tokens or is the very first text; the head of one that does
// not come is not lost.
func TestStopStrings(t *testing.T) {
	s := open(t)
	for at, r := range routes {
		left := func(i int) bool { return testing.Short() && (at+i)%3 != 0 } // each place on some of the routes
		q := greedy("Tell me about the river.", 0).with("ignore_eos", true)
		q.max = 20
		free := s.reply(t, r, q)
		text := free.text
		if len(text) < 30 || !isASCII(text) {
			t.Fatalf("%s: %q cannot be cut", r.name, text)
		}
		for i, from := range []int{0, 1, 2, 3, 5, 8, 12, 17, 22} {
			if left(i) {
				continue
			}
			stop := text[from : from+[]int{1, 2, 5, 9}[i%4]]
			got := s.reply(t, r, q.with("stop", []string{"not in there", stop}))
			if want := text[:strings.Index(text, stop)]; got.text != want || got.finish != "stop" {
				t.Errorf("%s, stop %q: %v, want %q", r.name, stop, got, want)
			}
		}
		stop := text[8:14]
		if got := s.reply(t, r, q.with("stop", stop).with("include_stop_str_in_output", true)); !strings.HasSuffix(got.text, stop) || got.finish != "stop" {
			t.Errorf("%s, stop %q kept: %v", r.name, stop, got)
		}
		for cut := 3; cut < 20; cut += 4 {
			if left(cut) {
				continue
			}
			never := text[cut:cut+6] + "\x01"
			if got := s.reply(t, r, q.with("stop", []string{never, text + "\x01"})); !same(got, free) {
				t.Errorf("%s, a stop %q that never comes: %v, want %v", r.name, never, got, free)
			}
		}
	}
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

// spell is a question whose answer is the given bytes, one token each: every
// one is pushed so far up that it must come, and pushed down once it has.
func spell(t *testing.T, s *site, text string) question {
	t.Helper()
	bias := map[string]int{}
	for i := range len(text) {
		ids := byteToken(t, s, text[i])
		if bias[fmt.Sprint(ids)] = 100 - 18*i; bias[fmt.Sprint(ids)] < 0 {
			t.Fatalf("%q is too long", text)
		}
	}
	q := greedy("hi", len(text)).with("logit_bias", bias).with("repetition_penalty", 10)
	return q.with("ignore_eos", true)
}

// byteToken is the token of a single byte of a longer character: the tokenizer
// of krater-tiny splits the rare ones into bytes.
func byteToken(t *testing.T, s *site, b byte) int32 {
	t.Helper()
	for _, text := range []string{"\U0001F600", "\uD55C", "\u00fe\u0136\u2603"} {
		got := post200[struct {
			Tokens  []int32
			Strings []string `json:"token_strs"`
		}](t, s, "/tokenize", map[string]any{"prompt": text, "add_special_tokens": false})
		if i := strings.IndexByte(text, b); i >= 0 && len(got.Tokens) == len(text) {
			return got.Tokens[i]
		}
	}
	t.Fatalf("no token for the byte %x", b)
	return 0
}

// TestWholeCharacters: a character that is spread over tokens arrives whole, on
// every route, and half a one at the end is shown as U+FFFD.
func TestWholeCharacters(t *testing.T) {
	s := open(t)
	for _, text := range []string{"\U0001F600", "\uD55C"} {
		q := spell(t, s, text)
		for _, r := range routes {
			for n := 1; n <= len(text); n++ {
				q.max = n
				broken := false
				got, err := r.ask(t.Context(), s, q, func(delta string) error {
					broken = broken || !utf8.ValidString(delta) || n == len(text) && strings.Contains(delta, "\uFFFD")
					return nil
				})
				want := text
				if n < len(text) {
					want = "\uFFFD"
				}
				if err != nil || got.text != want || got.completion != n || got.finish != "length" || broken {
					t.Errorf("%s, %d of %d bytes: %v %v, broken: %v", r.name, n, len(text), got, err, broken)
				}
			}
		}
	}
}

// TestLimits: with one token more an answer goes on where it ended, and the
// last token's text is there (it was lost in streams that ended on the limit).
func TestLimits(t *testing.T) {
	s := open(t)
	for _, r := range routes {
		before := ""
		for n := 1; n <= 12; n++ {
			got := s.reply(t, r, greedy(lighthouse, n).with("ignore_eos", true).with("skip_special_tokens", false))
			if got.completion != n || got.finish != "length" || len(got.text) <= len(before) || !strings.HasPrefix(got.text, before) {
				t.Errorf("%s: %d tokens are %v (%d), one less %q", r.name, n, got, got.completion, before)
			}
			before = got.text
		}
	}
}

// TestSpecialTextStaysText: what looks like a control token in a user's words
// is no control token. In a raw prompt it is one.
func TestSpecialTextStaysText(t *testing.T) {
	s := open(t)
	chat := func(content string) any {
		return map[string]any{"messages": []any{map[string]any{"role": "user", "content": content}}}
	}
	plain := post200[tokens](t, s, "/tokenize", chat("a b"))
	special := func(ids []int32) []int32 {
		return slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return id > 4 })
	}
	for _, marker := range []string{"<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜▁pad▁｜>"} {
		content := "a " + marker + " b"
		got := post200[tokens](t, s, "/tokenize", chat(content))
		if !slices.Equal(special(got.Tokens), special(plain.Tokens)) || got.Count <= plain.Count+2 {
			t.Errorf("%s in a message: %v, without it %v", marker, got.Tokens, plain.Tokens)
		}
		text := post200[struct{ Prompt string }](t, s, "/detokenize", map[string]any{"tokens": got.Tokens})
		if !strings.Contains(text.Prompt, content) {
			t.Errorf("%s became %q", content, text.Prompt)
		}
		if raw := post200[tokens](t, s, "/tokenize", map[string]any{"prompt": content}); !slices.Equal(special(raw.Tokens), []int32{0}) {
			t.Errorf("%s in text for /tokenize: %v", marker, raw.Tokens)
		}
		raw := post200[tokens](t, s, "/tokenize", map[string]any{"prompt": content, "parse_special": true})
		if len(special(raw.Tokens)) != 2 {
			t.Errorf("%s in raw text: %v", marker, raw.Tokens)
		}
		for _, r := range routes {
			want := got.Count
			if r.raw {
				want = raw.Count
			}
			if a := s.reply(t, r, greedy(content, 1)); a.prompt != want {
				t.Errorf("%s, %s: the prompt has %d tokens, /tokenize says %d", r.name, marker, a.prompt, want)
			}
		}
	}
}

// TestTooLongPrompts: refused with both numbers before anything is computed.
func TestTooLongPrompts(t *testing.T) {
	s := open(t)
	before := s.metrics()["krater:prompt_tokens_total"]
	text := strings.Repeat("word ", 2500)
	for _, r := range routes {
		path := map[bool]any{true: map[string]any{"prompt": text}, false: map[string]any{"messages": []any{map[string]any{"role": "user", "content": text}}}}
		count := post200[tokens](t, s, "/tokenize", path[r.raw]).Count
		_, err := s.ask(r, greedy(text, 5))
		var refused *refusal
		if !errors.As(err, &refused) || refused.status != 400 || refused.code != "context_length_exceeded" || refused.param == "" {
			t.Errorf("%s: %v", r.name, err)
			continue
		}
		for _, number := range []int{count, 2048} {
			if !strings.Contains(refused.message, fmt.Sprint(number)) {
				t.Errorf("%s: %q does not say %d", r.name, refused.message, number)
			}
		}
	}
	if after := s.metrics()["krater:prompt_tokens_total"]; after != before {
		t.Errorf("%v prompt tokens were computed", after-before)
	}
	ids := make([]int32, 2048)
	for i := range ids {
		ids[i] = 300
	}
	status, _, answer := s.do("POST", "/v1/completions", string(marshal(t, map[string]any{"prompt": ids})))
	if status != 400 || !strings.Contains(answer, "context_length_exceeded") {
		t.Errorf("2048 ids: %d %s", status, answer)
	}
	status, _, answer = s.do("POST", "/v1/completions", string(marshal(t, map[string]any{"prompt": ids[:2047], "max_tokens": 9, "temperature": 0})))
	if status != 200 || !strings.Contains(answer, `"completion_tokens":1`) || !strings.Contains(answer, `"length"`) && !strings.Contains(answer, `"stop"`) {
		t.Errorf("2047 ids: %d %s", status, answer)
	}
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestWarmUp: the model is not in the URL, and a frame that generates nothing
// gives an id to go on from.
func TestWarmUp(t *testing.T) {
	s := open(t)
	ws, err := s.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	f := &follower{see: idle}
	send := func(frame string) {
		t.Helper()
		if err := ws.WriteMessage(1, []byte(frame)); err != nil {
			t.Fatal(err)
		}
	}
	send(`{"type":"response.create","model":"krater-tiny","generate":false,"input":[]}`)
	for !f.ended {
		e, err := readEvent(ws)
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == "response.completed" { // without usage, as nothing was computed
			if f.id == "" || e.Response.ID != f.id || e.Response.Status != "completed" || len(e.Response.Output) != 0 {
				t.Errorf("%+v", e.Response)
			}
			break
		}
		if err := f.take(e); err != nil {
			t.Fatal(err)
		}
	}
	q := greedy(lighthouse, 0).with("previous_response_id", f.id).with("store", false)
	got, err := converse(ws, q, idle)
	if want := readGolden(t).Prompts[0].Answer; err != nil || got.text != want {
		t.Errorf("%v %v, want %q", got, err, want)
	}
	if err := hangUp(ws); err != nil {
		t.Error(err)
	}
}
