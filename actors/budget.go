package actors

import (
	"sync"

	"krater/actors/engine"
	"krater/stages/sample"
	"krater/stages/text/tokenizer"
	"krater/stages/text/toolcall"
)

// budget ends the reasoning of one answer after a number of tokens: from then on only the tokens
// that end it may come.
type budget struct {
	mu     sync.Mutex
	n      int // tokens of the answer
	left   int // tokens of reasoning that may still come
	detok  *tokenizer.Stream
	parser *toolcall.Parser // tells reasoning from the answer
	end    []int32          // what ends the reasoning
	forced int              // tokens of end that have come
	all    []uint32         // a mask of every token
}

// budget returns how many tokens a request's reasoning may have; 0 if there is no limit, or the model has no
// reasoning apart from its answer.
func (g *Gateway) budget(req *engine.Request) int {
	if req.Parts == nil || req.Prompt.Chat == nil || g.opt.Template == nil || g.opt.Template.Format().Closing() == "" {
		return 0
	}
	return req.Parts.Budget
}

// newBudget limits the reasoning of an answer to a prompt.
func (g *Gateway) newBudget(tokens int, prompt []int32) *budget {
	f, tok := g.opt.Template.Format(), g.opt.Tokenizer
	b := &budget{left: tokens, detok: tok.NewStream(true), end: tok.Encode(f.Closing(), tokenizer.EncodeOptions{ParseSpecial: true}), all: make([]uint32, (g.opt.Vocab+31)/32)}
	for i := range b.all {
		b.all[i] = ^uint32(0)
	}
	b.detok.Show(f.Uses)
	b.parser = f.New(toolcall.Options{
		Inside:  f.Opens(tok.Decode(prompt[max(0, len(prompt)-tailTokens):], false)),
		Special: func(text string) bool { id, ok := tok.TokenID(text); return ok && tok.IsSpecial(id) },
	})
	return b
}

// bind puts the limit before what the parameters allow already.
func (b *budget) bind(p *sample.Params) {
	allow, took := p.Allow, p.Took
	p.Allow = func(n int, wait bool) []uint32 {
		mask, ending := b.allow(n)
		if ending || mask == nil || allow == nil {
			return mask
		}
		return allow(n, wait)
	}
	p.Took = func(id int32) error {
		b.took(id)
		if took == nil {
			return nil
		}
		return took(id)
	}
}

// allow is sample.Params.Allow. ending says that the reasoning is being ended.
func (b *budget) allow(n int) (mask []uint32, ending bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case n != b.n:
		return nil, false
	case b.left > 0 || b.forced == len(b.end):
		return b.all, false
	}
	mask = make([]uint32, len(b.all))
	id := b.end[b.forced]
	mask[id/32] = 1 << (id % 32)
	return mask, true
}

// took is sample.Params.Took.
func (b *budget) took(id int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	switch {
	case b.left <= 0:
		b.forced = min(b.forced+1, len(b.end))
	default:
		b.parser.Push(b.detok.Push(id))
		if b.parser.Reasoning() {
			b.left--
		}
	}
}
