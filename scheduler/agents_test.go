package scheduler

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Sessions of coding agents, written here: what a server sees of them is a list of prompts, each mostly the one before.
// A token is a word, a sign, or the end of a message.

// agentSession is a session: the messages so far, and the requests that were sent.
type agentSession struct {
	rng      *rand.Rand
	history  []string // messages as the template writes them
	requests []exchange
}

// exchange is a prompt and its answer.
type exchange struct{ prompt, answer string }

const endOfTurn = "<|im_end|>"

// words are n words of a text about code.
func (s *agentSession) words(n int) string {
	list := strings.Fields("the file returns an error if path is empty so the test reads config.go and checks that each line of output has a value , then calls it again ; func main ( ) { } if err != nil")
	var b strings.Builder
	for range n {
		b.WriteString(list[s.rng.IntN(len(list))])
		b.WriteString([]string{" ", " ", " ", fmt.Sprint(s.rng.IntN(100)), "\n"}[s.rng.IntN(5)])
		b.WriteByte(' ')
	}
	return b.String()
}

func turnOf(role, text string) string {
	return "<|im_start|> " + role + "\n" + text + " " + endOfTurn + "\n"
}

func (s *agentSession) add(role, text string) { s.history = append(s.history, turnOf(role, text)) }

// ask sends the history, and adds the answer. kept is how the template writes the answer from then on: a model that reasons has
// more in the answer than in the history.
func (s *agentSession) ask(answer, kept string) {
	s.requests = append(s.requests, exchange{strings.Join(s.history, "") + "<|im_start|> assistant\n", answer + " " + endOfTurn})
	s.add("assistant", kept)
}

// step is a call of a tool and its result.
func (s *agentSession) step(result int) {
	call := s.words(5+s.rng.IntN(40)) + "<tool_call> " + s.words(8+s.rng.IntN(60)) + "</tool_call>"
	s.ask(call, call)
	s.add("tool", s.words(result))
}

// beginSession is the instructions and the tools of an agent, and its task.
func beginSession(seed uint64, date string) *agentSession {
	s := &agentSession{rng: rand.New(rand.NewPCG(seed, 1))}
	tools := rand.New(rand.NewPCG(9, 9)) // of the program, so equal in all sessions
	own := s.rng
	s.rng = tools
	s.add("system", date+s.words(1500))
	s.rng = own
	s.add("user", s.words(60))
	return s
}

// agentSessions are the sessions, by name.
func agentSessions() map[string]*agentSession {
	all := map[string]*agentSession{}
	for i, name := range []string{"edits", "branch", "compaction", "reasoning", "date"} {
		s := beginSession(uint64(i), "Date: 29 November. ")
		all[name] = s
		for turn := range 12 {
			switch {
			case name == "branch" && turn%4 == 3: // back by two steps, and on in another way
				s.history = s.history[:len(s.history)-4]
				s.add("user", s.words(30))
			case name == "compaction" && turn == 6: // a summary in place of all but the task
				s.history = append(s.history[:2:2], turnOf("user", s.words(200)))
			case name == "date" && turn == 6: // midnight
				s.history[0] = strings.Replace(s.history[0], "29 November", "30 November", 1)
			case name == "reasoning":
				answer := s.words(40)
				s.ask("<think> "+s.words(150)+"</think> "+answer, answer)
				s.add("user", s.words(80))
				continue
			}
			s.step(10 + s.rng.IntN(400))
		}
		s.ask(s.words(60), s.words(60))
	}
	return all
}

var wordOrSign = regexp.MustCompile(`<\|?/?\w+\|?>|\w+|\n|[^\w\s]`)

// wordIDs numbers words; an end of a turn is 1.
type wordIDs map[string]int32

func (w wordIDs) encode(text string) (ids []int32) {
	for _, word := range wordOrSign.FindAllString(text, -1) {
		if w[word] == 0 {
			w[word] = int32(len(w)) + 1
		}
		ids = append(ids, w[word])
	}
	return ids
}

// agentShare is how much of the prompts a cache had.
type agentShare struct {
	requests, prompt, common, found, blocks int
}

// playAgent sends a session's requests, one after the other.
func playAgent(t *testing.T, s *agentSession, snapshots int, turns bool) (sum agentShare) {
	t.Helper()
	c := newCore(t, Config{BlockTokens: 32, Blocks: 2000, MaxBatchTokens: 2048, MaxSeqs: 8, PrefillChunk: 2048, PrefillShare: 256, MaxQueue: 8, MicroBatches: 1, PrefillBatches: 1, Snapshots: snapshots})
	ids := wordIDs{}
	ids.encode(endOfTurn)
	var before [][]int32
	for i, x := range s.requests {
		prompt, answer := ids.encode(x.prompt), ids.encode(x.answer)
		r := Request{ID: uint64(i + 1), PromptLen: len(prompt), Prompt: prompt, MaxNew: len(answer) + 1}
		if turns {
			last := len(prompt)
			for prompt[last-1] != 1 {
				last--
			}
			r.Turns = []int{slices.Index(prompt, 1) + 1, last}
		}
		mustAdd(t, c, r)
		for made := 0; !c.Idle(); {
			b := mustNext(t, c)
			for _, e := range c.Effects() {
				if e.Kind == Started {
					sum.found += e.Cached
					sum.blocks += e.Cached / 32 * 32
				}
			}
			var out []Outcome
			if b.Wanted > 0 {
				out = []Outcome{{ID: r.ID, NewTokens: 1, Tokens: answer[made : made+1]}}
				if made++; made == len(answer) {
					out[0].End = Stop
				}
			}
			if err := c.Done(b.ID, out); err != nil {
				t.Fatal(err)
			}
		}
		most := 0
		for _, list := range before {
			n := 0
			for n < min(len(list), len(prompt)-1) && list[n] == prompt[n] {
				n++
			}
			most = max(most, n)
		}
		before = append(before, append(slices.Clone(prompt), answer...))
		sum.requests, sum.prompt, sum.common = sum.requests+1, sum.prompt+len(prompt), sum.common+most
	}
	return sum
}

// TestAgents holds how much of an agent's prompts the cache has: with whole blocks and with parts of them, and for a model with recurrent
// states with states at borders of blocks and at ends of turns. With KRATER_AGENTS=FILE it writes the table of bench/results/doors.md.
func TestAgents(t *testing.T) {
	want := map[string][5]int{
		"edits":      {53948, 53792, 53936, 53792, 53792},
		"branch":     {39821, 39616, 39756, 39584, 39634},
		"compaction": {35732, 35520, 35701, 35520, 35538},
		"reasoning":  {35853, 35648, 35648, 35648, 35809},
		"date":       {48620, 48448, 48604, 48416, 48416},
	}
	var table strings.Builder
	share := func(n, of int) string { return fmt.Sprintf("%.2f %%", 100*float64(n)/float64(of)) }
	sessions := agentSessions()
	for _, name := range []string{"edits", "branch", "compaction", "reasoning", "date"} {
		s := sessions[name]
		plain, borders, states := playAgent(t, s, 0, false), playAgent(t, s, 32, false), playAgent(t, s, 32, true)
		fmt.Fprintf(&table, "| %s | %d | %d | %s | %s | %s | %s | %s |\n", name, plain.requests, plain.prompt, share(plain.common, plain.prompt),
			share(plain.blocks, plain.prompt), share(plain.found, plain.prompt), share(borders.found, plain.prompt), share(states.found, plain.prompt))
		if got := [5]int{plain.common, plain.blocks, plain.found, borders.found, states.found}; got != want[name] {
			t.Errorf("%s: the longest common prefixes, and what blocks, parts, states at borders and at turns found of them: %v, want %v", name, got, want[name])
		}
	}
	if path := os.Getenv("KRATER_AGENTS"); path != "" {
		if err := os.WriteFile(path, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
