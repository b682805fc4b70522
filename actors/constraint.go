package actors

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"krater/actors/engine"
	"krater/stages/text/grammar"
	"krater/stages/text/grammar/schema"
	"krater/stages/text/toolcall"
)

// constraint is the grammar of one answer, and how far the answer is.
type constraint struct {
	mu      sync.Mutex
	matcher *grammar.Matcher
	param   string   // the field of the request that asks for it
	n       int      // tokens
	mask    []uint32 // of the next one; nil: not found yet
	none    []uint32 // no token may come
	err     error    // why none may come
}

// formatError says that an answer cannot follow its format any further.
type formatError struct {
	param string
	token int // of the answer, from 1
	cause error
}

// Error implements error.
func (e *formatError) Error() string {
	return fmt.Sprintf("token %d of the answer cannot follow '%s': %v", e.token, e.param, e.cause)
}

// Unwrap returns the cause.
func (e *formatError) Unwrap() error { return e.cause }

// errGrammar is the cause where the grammar's own code failed.
var errGrammar = errors.New("its grammar failed")

// barred is sample.Params.Barred.
func (c *constraint) barred() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail notes the first error; c.mu is held.
func (c *constraint) fail(cause error) error {
	if c.err == nil {
		c.err = &formatError{c.param, c.n + 1, cause}
	}
	return c.err
}

// allow is sample.Params.Allow. Where the text leads too far, no token may come.
func (c *constraint) allow(n int, wait bool) []uint32 {
	if wait {
		c.mu.Lock()
	} else if !c.mu.TryLock() { // a mask is being found
		return nil
	}
	defer c.mu.Unlock()
	switch {
	case n != c.n:
		return nil
	case wait:
		return c.find()
	}
	return c.mask
}

// find returns the mask of the next token. A panic in a grammar ends its own request, whose tokens
// are all masked then, and not the batch or the process.
func (c *constraint) find() (mask []uint32) {
	if c.mask == nil {
		defer func() {
			if recover() != nil {
				_ = c.fail(errGrammar)
				c.mask, mask = c.none, c.none
			}
		}()
		var err error
		if c.mask, err = c.matcher.Mask(); err != nil { // the mask is empty
			_ = c.fail(err)
		}
	}
	return c.mask
}

// took is sample.Params.Took. The next mask is found beside the step that follows.
func (c *constraint) took(id int32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.accept(id); err != nil {
		return err
	}
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.find()
	}()
	return nil
}

// accept takes the next token; c.mu is held.
func (c *constraint) accept(id int32) error {
	if err := c.matcher.Accept(id); err != nil {
		return c.fail(err)
	}
	c.n, c.mask = c.n+1, nil
	return nil
}

// grammars are the compiled grammars of recent requests, and the vocabulary that they share.
type grammars struct {
	once  sync.Once
	vocab *grammar.Vocabulary

	mu    sync.Mutex
	known map[[sha256.Size]byte]*grammar.Grammar
	order [][sha256.Size]byte // the oldest first
}

// keptGrammars bounds them. Each may have tables of some 20 MB.
const keptGrammars = 24

func (s *grammars) find(key [sha256.Size]byte, compile func() (*grammar.Grammar, error)) (*grammar.Grammar, error) {
	s.mu.Lock()
	g := s.known[key]
	s.mu.Unlock()
	if g != nil {
		return g, nil
	}
	g, err := compile()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = map[[sha256.Size]byte]*grammar.Grammar{}
	}
	if s.known[key] == nil {
		if len(s.order) >= keptGrammars {
			delete(s.known, s.order[0])
			s.order = append(s.order[:0], s.order[1:]...)
		}
		s.order = append(s.order, key)
		s.known[key] = g
	}
	return g, nil
}

// vocabulary returns the model's tokens.
func (g *Gateway) vocabulary() *grammar.Vocabulary {
	g.grammars.once.Do(func() {
		tok := g.opt.Tokenizer
		g.grammars.vocab = grammar.NewVocabulary(g.opt.Vocab, func(id int32) []byte {
			if tok.IsSpecial(id) {
				return nil
			}
			text, _ := tok.TokenBytes(id)
			return text
		}, g.opt.EOS)
		go func() { _ = schema.Warm(g.grammars.vocab) }() // what fails here fails in a request, too
	})
	return g.grammars.vocab
}

// constrain returns the grammar of a request's answer, nil for none.
func (g *Gateway) constrain(req *engine.Request, ids []int32) (*grammar.Grammar, error) {
	s := &speech{g: g, req: req, inside: g.inside(req, ids)}
	if !s.needed() {
		return nil, nil
	}
	switch {
	case req.IgnoreEOS:
		return nil, &engine.Error{Kind: engine.BadRequest, Param: "ignore_eos", Message: "'ignore_eos' cannot be combined with a format of the answer"}
	case req.MinTokens > 0:
		return nil, &engine.Error{Kind: engine.BadRequest, Param: "min_tokens", Message: "'min_tokens' cannot be combined with a format of the answer"}
	case len(g.opt.EOS) == 0:
		return nil, &engine.Error{Kind: engine.BadRequest, Message: "the model has no end token, so that a format of the answer cannot be demanded"}
	}
	key, err := json.Marshal([]any{req.Format, req.Parts, s.inside, req.Prompt.Chat != nil})
	if err != nil {
		return nil, err
	}
	return g.grammars.find(sha256.Sum256(key), s.compile)
}

// inside reports whether a chat's prompt ends within reasoning.
func (g *Gateway) inside(req *engine.Request, ids []int32) bool {
	return req.Prompt.Chat != nil && g.opt.Template != nil &&
		g.opt.Template.Format().Opens(g.opt.Tokenizer.Decode(ids[max(0, len(ids)-tailTokens):], false))
}

// speech makes the grammar of a request's answer.
type speech struct {
	g      *Gateway
	req    *engine.Request
	inside bool
}

// needed reports whether the answer is constrained at all.
func (s *speech) needed() bool {
	p := s.req.Parts
	if s.req.Format != nil {
		return true
	}
	if p == nil || p.Tools == nil || s.g.opt.Template == nil {
		return false
	}
	return p.Call != nil || s.g.opt.Template.Speech().Speaks() && s.speaker(nil).Strict()
}

func (s *speech) speaker(rules *grammar.Rules) *toolcall.Speaker {
	p := s.req.Parts
	if p == nil {
		p = &engine.Parts{}
	}
	return &toolcall.Speaker{Rules: rules, Spell: s.spell, Tools: p.Tools, Names: p.Call, Single: p.Single}
}

// spell returns a text in which control tokens are themselves.
func (s *speech) spell(text string) *grammar.Expr {
	var list []*grammar.Expr
	for from := 0; from < len(text); {
		at, end, id := s.control(text, from)
		list = append(list, grammar.Text(text[from:at]))
		if end > at {
			list = append(list, grammar.Token(id))
		}
		from = end
	}
	return grammar.Seq(list...)
}

// control finds the first control token of the format in a text; at the text's end there is none.
func (s *speech) control(text string, from int) (at, end int, id int32) {
	tok := s.g.opt.Tokenizer
	for at = from; at < len(text); at++ {
		for end = len(text); end > at; end-- {
			if id, ok := tok.TokenID(text[at:end]); ok && tok.IsSpecial(id) {
				return at, end, id
			}
		}
	}
	return len(text), len(text), 0
}

func (s *speech) compile() (*grammar.Grammar, error) {
	rules := &grammar.Rules{}
	e, err := s.answer(rules)
	if err != nil {
		return nil, s.refuse(err)
	}
	compiled, err := grammar.New(rules, rules.Add(e), s.g.vocabulary())
	if err != nil {
		return nil, s.refuse(err)
	}
	return compiled, nil
}

// answer is all of an answer: reasoning, and then text that follows the format, or calls, or either.
func (s *speech) answer(rules *grammar.Rules) (*grammar.Expr, error) {
	var text *grammar.Expr
	var err error
	if s.req.Format != nil {
		if text, err = format(rules, s.req.Format); err != nil {
			return nil, err
		}
	}
	template := s.g.opt.Template
	if s.req.Prompt.Chat == nil || template == nil {
		return text, nil
	}
	sp, f := s.speaker(rules), template.Speech()
	p := s.req.Parts
	if p == nil || p.Tools == nil {
		return f.Answer(sp, f.Text(sp, text), s.inside), nil
	}
	calls, err := f.Calls(sp)
	if err != nil {
		return nil, err
	}
	body := calls
	switch {
	case p.Call != nil:
	case text != nil:
		body = grammar.Alt(f.Text(sp, text), calls)
	default:
		body = f.Free(sp, calls)
	}
	return f.Answer(sp, body, s.inside), nil
}

// format returns the text of a format.
func format(rules *grammar.Rules, f *engine.Format) (*grammar.Expr, error) {
	o := schema.Options{Closed: f.Closed}
	if f.Space != nil {
		var err error
		if o.Space, err = grammar.ParseRegexp(*f.Space, grammar.RegexpOptions{}); err != nil {
			return nil, err
		}
	}
	switch f.Kind {
	case engine.AnyObject:
		return schema.Object(rules, o), nil
	case engine.JSONSchema:
		return schema.Add(rules, f.Source, o)
	case engine.Regexp:
		return grammar.ParseRegexp(string(f.Source), grammar.RegexpOptions{})
	case engine.Choice:
		return grammar.Words(f.Choices...), nil
	}
	own, root, err := grammar.ParseGBNF(string(f.Source))
	if err != nil {
		return nil, err
	}
	return rules.Join(own, root), nil
}

// refuse words an error for the client.
func (s *speech) refuse(err error) error {
	e := &engine.Error{Kind: engine.BadRequest}
	if s.req.Format != nil {
		e.Param = s.req.Format.Param
	}
	if tool, ok := errors.AsType[*toolcall.ToolError](err); ok {
		e.Param = fmt.Sprintf("tools[%d].function.parameters", tool.Index)
	} else if e.Param == "" {
		e.Param = "tool_choice"
	}
	e.Message = fmt.Sprintf("'%s' is not supported: %v", e.Param, err)
	return e
}
