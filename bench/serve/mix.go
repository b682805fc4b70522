package serve

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"krater/transport/client"
)

// Mix says what kind of requests to send.
type Mix struct {
	// ShareGPT makes conversations that resemble that data set instead of single questions; Prompt
	// and Answer are then of its turns.
	ShareGPT bool
	Prompt   Lengths // tokens of a prompt, the chat template's among them
	Answer   Lengths // tokens of an answer, all of which are generated
	// Prefix is the number of tokens of a common system prompt before a share of the prompts.
	Prefix      int
	PrefixShare float64
	// Disconnect and Cancel are the shares of requests whose client drops the connection at a
	// random token, or cancels.
	Disconnect, Cancel float64
	Seed               uint64
}

// A model of ShareGPT's conversations. The vLLM paper (Kwon et al., 2023) gives the mean lengths of
// questions and answers of its sample. The spread and the number of turns are a plain assumption:
// normal logarithms, and a geometric number of turns.
const (
	ShareGPTPrompt = "lognormal:161:1.3"
	ShareGPTAnswer = "lognormal:338:0.9"
	turnsMean      = 3.5
	// talks is the number of open conversations: the next request belongs to a random one of them.
	talks = 16
)

// Fault is how a client fails to read its answer to the end.
type Fault uint8

// The faults.
const (
	NoFault Fault = iota
	Disconnects
	Cancels
)

// Ask is one request before it has a door's form.
type Ask struct {
	Messages []client.Message // for doors of conversations
	IDs      []int32          // for token prompts
	Prompt   int              // tokens the server should count
	Max      int              // tokens of the answer
	Talk     int              // the conversation, from 1
	Turn     int              // of it, from 1
	Fault    Fault
	Leave    int // at which token of the answer, from 1
}

// Source makes requests, the same ones for the same seed and lane. It continues where it stopped,
// so a load does not repeat the prompts of the previous one. It is safe for concurrent use.
type Source struct {
	mix    Mix
	words  *Words
	chat   bool
	shared []int32 // words of the system prompt

	mu    sync.Mutex
	rand  *rand.Rand
	open  []*talk
	begun int
}

// talk is a conversation.
type talk struct {
	number, turn, turns int
	prefix              bool
	past                [][]int32 // words of questions and answers by turns
}

// NewSource checks the mix. Chat sources make messages, others token ids. Sources of different
// lanes share only the prefix.
func NewSource(m Mix, w *Words, chat bool, lane int) (*Source, error) {
	for _, share := range []struct {
		name string
		v    float64
	}{{"prefix share", m.PrefixShare}, {"disconnect", m.Disconnect}, {"cancel", m.Cancel}, {"disconnect and cancel together", m.Disconnect + m.Cancel}} {
		if !(share.v >= 0 && share.v <= 1) {
			return nil, fmt.Errorf("%s is %v: want a share of 0 to 1", share.name, share.v)
		}
	}
	if m.Prefix < 0 || w.Context > 0 && m.Prefix+w.around+w.system+2 > w.Context {
		return nil, fmt.Errorf("a shared prefix of %d tokens: the model's context has %d", m.Prefix, w.Context)
	}
	s := &Source{mix: m, words: w, chat: chat, rand: rand.New(rand.NewPCG(m.Seed, 0x6c6f6164+uint64(lane)))}
	s.shared = w.draw(rand.New(rand.NewPCG(m.Seed, 0x707265)), m.Prefix)
	return s, nil
}

// Next makes the next request.
func (s *Source) Next() *Ask {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.pick()
	a := s.turn(t)
	for a == nil { // the conversation has outgrown the context
		*t = *s.begin()
		a = s.turn(t)
	}
	switch u := s.rand.Float64(); {
	case u < s.mix.Disconnect:
		a.Fault = Disconnects
	case u < s.mix.Disconnect+s.mix.Cancel:
		a.Fault = Cancels
	}
	a.Leave = 1 + s.rand.IntN(a.Max)
	return a
}

// pick returns the conversation to continue.
func (s *Source) pick() *talk {
	if !s.mix.ShareGPT {
		return s.begin()
	}
	for len(s.open) < talks {
		s.open = append(s.open, s.begin())
	}
	i := s.rand.IntN(len(s.open))
	if t := s.open[i]; t.turn < t.turns {
		return t
	}
	s.open[i] = s.begin()
	return s.open[i]
}

func (s *Source) begin() *talk {
	s.begun++
	t := &talk{number: s.begun, turns: 1, prefix: s.mix.Prefix > 0 && s.rand.Float64() < s.mix.PrefixShare}
	for s.mix.ShareGPT && s.rand.Float64() > 1/turnsMean {
		t.turns++
	}
	return t
}

// turn makes the next question of t, and remembers it with an invented answer of the requested
// length. It does not use the server's answer, because a load must not depend on what it measures.
// It returns nil if the context has no room, which cannot happen for a first question.
func (s *Source) turn(t *talk) *Ask {
	template := 0
	if s.chat {
		template = s.words.around + t.turn*s.words.pair
		if t.prefix {
			template += s.words.system
		}
	}
	before := template
	if t.prefix {
		before += len(s.shared)
	}
	for _, p := range t.past {
		before += len(p)
	}
	question, answer := s.mix.Prompt.Draw(s.rand), s.mix.Answer.Draw(s.rand)
	if t.turn == 0 && s.chat {
		question -= s.words.around
	}
	question = max(1, question)
	if limit := s.words.Context; limit > 0 && before+question+answer > limit {
		if t.turn > 0 {
			return nil
		}
		// A first question is cut, the answer before it.
		room := limit - before
		question = min(question, room-1)
		answer = min(answer, room-question)
	}
	t.turn++
	t.past = append(t.past, s.words.draw(s.rand, question))
	a := &Ask{Prompt: before + question, Max: answer, Talk: t.number, Turn: t.turn}
	s.form(a, t)
	t.past = append(t.past, s.words.draw(s.rand, answer))
	return a
}

// form gives a the conversation in the form of its door.
func (s *Source) form(a *Ask, t *talk) {
	parts := t.past
	if t.prefix {
		parts = slices.Concat([][]int32{s.shared}, parts)
	}
	if !s.chat {
		for _, p := range parts {
			for _, i := range p {
				a.IDs = append(a.IDs, s.words.ids[i])
			}
		}
		return
	}
	for i, p := range parts {
		role := "user"
		switch {
		case t.prefix && i == 0:
			role = "system"
		case (len(parts)-i)%2 == 0: // the last is a question
			role = "assistant"
		}
		a.Messages = append(a.Messages, client.Message{Role: role, Content: s.words.text(p)})
	}
}
