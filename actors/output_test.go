package actors

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/scheduler"
	"krater/stages/sample"
	"krater/stages/text/tokenizer"
)

// deskHost is a host without actors, for the parts around them.
type deskHost struct {
	clock int64
	stuck error // of halt
	sent  func(m any)
}

func (h *deskHost) spawn(string, affinity, func() *shell) address { return nil }
func (h *deskHost) send(_ address, m any) {
	if h.sent != nil {
		h.sent(m)
	}
}
func (h *deskHost) now() int64             { return h.clock }
func (h *deskHost) alarm(time.Duration)    {}
func (h *deskHost) waiting(map[string]int) {}
func (h *deskHost) halt() error            { return h.stuck }

// desk is a gateway without a pipeline.
func desk(t testing.TB) *Gateway {
	t.Helper()
	p := &Pipeline{host: &deskHost{clock: 1}, requests: newRequests(newMeters(1)), trace: trace.NewRegistry(16)}
	p.serving = p
	return NewGateway(p, GatewayOptions{Tokenizer: tinyTokenizer(t), Vocab: 1000})
}

// story is one answer as the model makes it and what the reader must see.
type story struct {
	name      string
	req       engine.Request
	ids       []int32
	end       scheduler.Reason // after ids; None: a stop string ends it
	stopToken bool             // the last of ids is an end token
	text      string
	finish    engine.FinishReason
	matched   string
	tokens    int // in the events, with log-probabilities
}

// tell runs a story and returns its events.
func tell(t testing.TB, g *Gateway, s *story) []engine.Event {
	t.Helper()
	a := newAnswer(3)
	o := newOutput(g, &s.req, a, 1)
	o.begin(1)
	o.Queued(0)
	o.Started(1, 0)
	var events []engine.Event
	ended := false
	for i, id := range s.ids {
		r := sample.Result{ID: id, Logprob: -float32(i), Stop: s.stopToken && i == len(s.ids)-1}
		if ended = o.Token(r, int64(2+i)); ended {
			// The pipeline is a step ahead: what comes now is for nobody.
			if o.Token(sample.Result{ID: 900}, 99) {
				t.Errorf("%s: ended twice", s.name)
			}
			break
		}
		events = append(events, drainEvents(t, a)...)
	}
	why := s.end
	if ended {
		why = scheduler.Stop
	} else if why == scheduler.None {
		t.Errorf("%s: no stop string was found", s.name)
	}
	o.Ended(why, nil, 100)
	return append(events, drainEvents(t, a)...)
}

// bytesOf spells a text with tokens of single bytes.
func bytesOf(t testing.TB, tok *tokenizer.Tokenizer, text string) []int32 {
	t.Helper()
	single := map[byte]int32{}
	for id := range int32(tok.VocabSize()) {
		if b, ok := tok.TokenBytes(id); ok && len(b) == 1 && !tok.IsSpecial(id) {
			single[b[0]] = id
		}
	}
	var ids []int32
	for _, c := range []byte(text) {
		id, ok := single[c]
		if !ok {
			t.Fatalf("no token for byte %x", c)
		}
		ids = append(ids, id)
	}
	return ids
}

func TestOutputStories(t *testing.T) {
	g := desk(t)
	tok := g.opt.Tokenizer
	spell := func(s string) []int32 { return bytesOf(t, tok, s) }
	const eos = 1
	for _, s := range []story{
		{name: "stop across tokens", req: engine.Request{Stop: []string{"beta gamma"}}, ids: spell("alpha beta gamma delta"), text: "alpha ", finish: engine.FinishStop, matched: "beta gamma", tokens: 6},
		{name: "include", req: engine.Request{Stop: []string{"beta gamma"}, IncludeStop: true}, ids: spell("alpha beta gamma delta"), text: "alpha beta gamma", finish: engine.FinishStop, matched: "beta gamma", tokens: 16},
		{name: "stop inside a token", req: engine.Request{Stop: []string{"house"}}, ids: tok.Encode("a lighthouse keeper", tokenizer.EncodeOptions{}), text: "a light", finish: engine.FinishStop, matched: "house", tokens: 2},
		{name: "first token", req: engine.Request{Stop: []string{"a"}}, ids: spell("abc"), text: "", finish: engine.FinishStop, matched: "a"},
		{name: "held back at the end", req: engine.Request{Stop: []string{"xyz"}}, ids: spell("abxy"), end: scheduler.Length, text: "abxy", finish: engine.FinishLength, tokens: 4},
		{name: "broken character at the end", ids: spell("a\xe6\x97"), end: scheduler.Length, text: "a\uFFFD", finish: engine.FinishLength, tokens: 3},
		{name: "broken character, then stop token", ids: append(spell("a\xe6"), eos), stopToken: true, end: scheduler.Stop, text: "a\uFFFD", finish: engine.FinishStop, tokens: 2},
		{name: "end of text is not shown", ids: append(spell("ab"), eos), stopToken: true, end: scheduler.Stop, text: "ab", finish: engine.FinishStop, tokens: 2},
		{name: "stop token with text", ids: spell("ab!"), stopToken: true, end: scheduler.Stop, text: "ab", finish: engine.FinishStop, tokens: 2},
		{name: "stop token with text, included", req: engine.Request{IncludeStop: true}, ids: spell("ab!"), stopToken: true, end: scheduler.Stop, text: "ab!", finish: engine.FinishStop, tokens: 3},
		{name: "special tokens are left out", ids: append(append(spell("a"), 3), spell("b")...), end: scheduler.Length, text: "ab", finish: engine.FinishLength, tokens: 3},
		{name: "special tokens are kept", req: engine.Request{KeepSpecial: true}, ids: append(spell("a"), 3), end: scheduler.Length, text: "a<｜User｜>", finish: engine.FinishLength, tokens: 2},
		{name: "min tokens holds stop strings off", req: engine.Request{Stop: []string{"ab"}, MinTokens: 4}, ids: spell("ababab"), text: "abab", finish: engine.FinishStop, matched: "ab", tokens: 4},
		{name: "a stop of the replacement character", req: engine.Request{Stop: []string{"\uFFFD"}}, ids: spell("a\xe6"), end: scheduler.Length, text: "a", finish: engine.FinishStop, matched: "\uFFFD", tokens: 1},
		{name: "a character that begins a stop", req: engine.Request{Stop: []string{"日本"}}, ids: spell("x日本語"), text: "x", finish: engine.FinishStop, matched: "日本", tokens: 1},
		{name: "cancelled", ids: spell("ab\xe6"), end: scheduler.Cancelled, text: "ab\uFFFD", finish: engine.FinishCancelled, tokens: 3},
		{name: "nothing", end: scheduler.Cancelled, finish: engine.FinishCancelled},
	} {
		for _, logprobs := range []int{-1, 0} {
			t.Run(fmt.Sprintf("%s/logprobs=%d", s.name, logprobs), func(t *testing.T) {
				s.req.Logprobs = logprobs
				events := tell(t, g, &s)
				ids, last := ending(t, events)
				text := textOf(events)
				if text != s.text || last.Finish != s.finish || last.StopMatched != s.matched {
					t.Errorf("%q, %v, stop %q; want %q, %v, %q", text, last.Finish, last.StopMatched, s.text, s.finish, s.matched)
				}
				if s.stopToken != (last.StopToken != nil) || s.stopToken && *last.StopToken != s.ids[len(s.ids)-1] {
					t.Errorf("stop token %v", last.StopToken)
				}
				if logprobs < 0 && len(ids) > 0 || logprobs == 0 && !slices.Equal(ids, s.ids[:s.tokens]) {
					t.Errorf("tokens %v, want %d of %v", ids, s.tokens, s.ids)
				}
			})
		}
	}
}

func textOf(events []engine.Event) string {
	var text strings.Builder
	for _, e := range events {
		text.WriteString(e.Text)
	}
	return text.String()
}

// oracle finds the whole answer at once: its text, the tokens that belong to it
// and what ended it. It knows nothing of holding back.
func oracle(g *Gateway, s *story) (text string, tokens []int32, matched string, used int) {
	detok := g.opt.Tokenizer.NewStream(!s.req.KeepSpecial)
	var from []int // where each token's text begins
	open := 0      // where stop strings are looked for
	for i, id := range s.ids {
		from = append(from, len(text))
		if s.stopToken && i == len(s.ids)-1 && !s.req.IncludeStop {
			from = from[:i]
			break
		}
		text += detok.Push(id)
		if i < s.req.MinTokens {
			open = len(text)
		}
		if cut, m := firstStop(text[open:], s.req.Stop); m != "" {
			text = text[:open+cut]
			if s.req.IncludeStop {
				text += m
			}
			for j := range from {
				if from[j] < len(text) {
					tokens = append(tokens, s.ids[j])
				}
			}
			return text, tokens, m, i + 1
		}
	}
	return text + detok.Flush(), s.ids[:len(from)], "", len(s.ids)
}

// firstStop is the stop string that is complete first, the longest of several.
func firstStop(text string, stops []string) (at int, matched string) {
	for end := 1; end <= len(text); end++ {
		for _, s := range stops {
			if strings.HasSuffix(text[:end], s) && len(s) > len(matched) {
				matched = s
			}
		}
		if matched != "" {
			return end - len(matched), matched
		}
	}
	return 0, ""
}

// TestAddedTokensAreNoText: the begin token that was put before a raw prompt is no part of its text,
// whether or not the answer shows control tokens; among ids that the client gave it is.
func TestAddedTokensAreNoText(t *testing.T) {
	g := desk(t)
	text := "a"
	prompts := map[bool]engine.Prompt{true: {Text: &text}, false: {IDs: []int32{0, 5}}}
	for hidden, prompt := range prompts {
		a := newAnswer(2)
		o := newOutput(g, &engine.Request{Prompt: prompt, KeepSpecial: true, PromptLogprobs: new(int)}, a, 1)
		if !g.opt.Tokenizer.IsSpecial(o.first) {
			t.Fatalf("token %d is no control token", o.first)
		}
		o.begin(1)
		o.Started(1, 0)
		for _, e := range drainEvents(t, a) {
			if e.Kind == engine.Scored && e.Tokens[0].Hidden != hidden {
				t.Errorf("%+v: hidden is %v", prompt, !hidden)
			}
		}
	}
}

// TestOutputAgainstOracle: random answers with random stop strings, cut out of
// the text so that they occur, give what the oracle says, whole characters in
// every event, and tokens not before their text.
func TestOutputAgainstOracle(t *testing.T) {
	g := desk(t)
	tok := g.opt.Tokenizer
	raw := bytesOf(t, tok, "ab \xe6\x97\xa5\xf0\x9f\x98\x80")
	matches, ends := 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		s := &story{name: fmt.Sprint(seed), end: scheduler.Length}
		for range 1 + rng.IntN(30) {
			switch rng.IntN(4) {
			case 0: // a piece of a character, or one of few letters
				s.ids = append(s.ids, raw[rng.IntN(len(raw))])
			case 1: // a special token
				s.ids = append(s.ids, int32(rng.IntN(5)))
			default:
				s.ids = append(s.ids, int32(5+rng.IntN(tok.VocabSize()-5)))
			}
		}
		s.req = engine.Request{IncludeStop: rng.IntN(3) == 0, KeepSpecial: rng.IntN(3) == 0, MinTokens: rng.IntN(12) * rng.IntN(2)}
		if s.stopToken = rng.IntN(3) == 0; s.stopToken {
			s.end = scheduler.Stop
		}
		whole := []rune(tok.Decode(s.ids, !s.req.KeepSpecial))
		for range rng.IntN(4) {
			if len(whole) > 0 {
				at := rng.IntN(len(whole))
				if stop := string(whole[at:min(len(whole), at+1+rng.IntN(5))]); !strings.ContainsRune(stop, utf8.RuneError) {
					s.req.Stop = append(s.req.Stop, stop)
				}
			}
		}
		text, tokens, matched, used := oracle(g, s)
		if matched != "" {
			matches++
		} else {
			ends++
		}
		events := tell(t, g, s)
		ids, last := ending(t, events)
		if got := textOf(events); got != text || last.StopMatched != matched || !slices.Equal(ids, tokens) || last.Usage.Completion != used {
			t.Fatalf("seed %d: %q, stop %q, %v, usage %d; want %q, %q, %v, %d", seed, got, last.StopMatched, ids, last.Usage.Completion, text, matched, tokens, used)
		}
		for _, e := range events {
			if !utf8.ValidString(e.Text) {
				t.Fatalf("seed %d: %q is not whole characters", seed, e.Text)
			}
		}
	}
	if matches < 300 || ends < 300 {
		t.Errorf("%d answers ended with a stop string, %d without", matches, ends)
	}
}

// TestOutputReleasesTextAtOnce: what no stop string can take back is not held.
func TestOutputReleasesTextAtOnce(t *testing.T) {
	g := desk(t)
	a := newAnswer(1)
	o := newOutput(g, &engine.Request{Stop: []string{"END"}}, a, 1)
	for i, c := range []byte("xEyENzEND") {
		done := o.Token(sample.Result{ID: bytesOf(t, g.opt.Tokenizer, string(c))[0]}, int64(i))
		got := textOf(drainEvents(t, a))
		want := []string{"x", "", "Ey", "", "", "ENz", "", "", ""}[i]
		if got != want || done != (i == 8) {
			t.Errorf("after byte %d: %q, done %v; want %q", i, got, done, want)
		}
	}
}

// TestOutputTimes: the trace gets the whole request, the meters its waits.
func TestOutputTimes(t *testing.T) {
	g := desk(t)
	h := g.r.last().host.(*deskHost)
	o := newOutput(g, &engine.Request{Logprobs: -1}, newAnswer(1), 1e9)
	o.Started(2e9, 0)
	for i := range 3 {
		o.Token(sample.Result{ID: 70}, int64(3e9+i*5e8))
	}
	h.clock = 5e9
	e := o.Ended(scheduler.Length, nil, 5e9)
	if e.Enqueued != 1e9 || e.Started != 2e9 || e.Rows != 3 {
		t.Errorf("traced as %+v", e)
	}
	s := g.r.meters.snapshot()
	if s.QueueTime.Sum != 1 || s.TTFT.Sum != 2 || s.TTFT.Count != 1 || s.ITL.Sum != 1 || s.ITL.Count != 2 || s.E2E.Sum != 4 ||
		s.GeneratedTokens != 3 || s.Finished["length"] != 1 {
		t.Errorf("counted as %+v", s)
	}
	o = newOutput(g, &engine.Request{Logprobs: -1}, newAnswer(1), 1e9)
	if e := o.Ended(scheduler.Expired, nil, 6e9); e.Started != 6e9 {
		t.Errorf("one that never started is traced as %+v", e)
	}
}
