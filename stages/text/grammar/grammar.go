// Package grammar says which tokens may come next in a text that must follow a grammar.
//
// A grammar is a list of rules over bytes, each an Expr. New compiles them to a pushdown automaton,
// whose stacks share their common parts (Tomita, "An Efficient Augmented-Context-Free Parsing
// Algorithm", 1987), and whose steps are found when they are first needed and kept. A mask has a bit
// for each token of a vocabulary. What a mask needs of the innermost rule alone is found once, by a
// walk over the trie of all tokens; only tokens that end that rule are looked at again for each state
// of the rules around it (XGrammar, arXiv 2411.15100).
//
// Grammars come from readers of other languages: ParseGBNF, ParseRegexp, and package schema.
package grammar

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
)

// Errors of New and of a Matcher.
var (
	// ErrSource: the grammar is wrong, or larger than allowed. The message is fit for its author.
	ErrSource = errors.New("grammar")
	// ErrText: a token that may not come.
	ErrText = errors.New("grammar: the token does not fit")
	// ErrLimit: the text leads to more states, or to deeper ones, than a grammar may have.
	ErrLimit = errors.New("grammar: the text needs too many states")
)

// Limits of a grammar.
const (
	MaxSource = 1 << 20 // bytes of a grammar's text
	maxRules  = 1 << 16
	maxStates = 1 << 18 // states of the automaton's rules
	maxDepth  = 1 << 10 // rules within rules at one place of a text
	maxElems  = 1 << 14 // states that one rule may be in at once
	maxNodes  = 1 << 12 // stacks at one place of a text
	maxFresh  = 1 << 15 // work for one mask or token: states of the whole automaton, by their size
	maxTable  = 1 << 20 // words of its table of steps; beyond it, it is begun again
	maxMasks  = 256     // masks that are kept
)

// sourceError is an ErrSource with a message.
func sourceError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrSource, fmt.Sprintf(format, args...))
}

// Grammar is a compiled grammar for one vocabulary. It may be used by many matchers at once.
type Grammar struct {
	prog  *program
	vocab *Vocabulary

	mu   sync.Mutex
	auto *automaton
}

// New compiles rules. The first token of a text is one that rule root may begin with.
func New(rules *Rules, root int32, vocab *Vocabulary) (*Grammar, error) {
	prog, err := compile(rules, root, vocab)
	if err != nil {
		return nil, err
	}
	return &Grammar{prog: prog, vocab: vocab}, nil
}

// Matcher follows one text. It is not safe for concurrent use; matchers of one grammar are
// independent.
type Matcher struct {
	g    *Grammar
	auto *automaton
	at   int32 // state of auto
	over bool  // an end token came
}

// Matcher starts a text.
func (g *Grammar) Matcher() *Matcher {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.renew()
	return &Matcher{g: g, auto: g.auto, at: g.auto.start}
}

// renew begins the automaton again once it is large.
func (g *Grammar) renew() {
	if g.auto == nil || len(g.auto.next) > maxTable || len(g.auto.nodes) > maxTable/4 || g.auto.elems > maxTable {
		g.auto = newAutomaton(g.prog, g.vocab)
	}
}

// enter locks the grammar and moves the matcher to its present automaton. Where that would be too much
// work at once, the matcher stays with the one that it has.
func (m *Matcher) enter() {
	m.g.mu.Lock()
	m.g.renew()
	if m.auto != m.g.auto {
		m.g.auto.begin() // the limit is on what this call adds
		if at := m.g.auto.adopt(m.auto, m.at); at != dead {
			m.at, m.auto = at, m.g.auto
		}
	}
	m.auto.begin()
}

// Mask returns the tokens that may come next: bit i%32 of word i/32 is 1 for token i. End tokens may
// come where the text may end. The caller must not change it. After the end no token may come, nor where
// it fails with ErrLimit: the mask is then as long as ever, and empty.
func (m *Matcher) Mask() ([]uint32, error) {
	m.enter()
	defer m.g.mu.Unlock()
	if !m.over {
		if mask := m.auto.mask(m.at); mask != nil {
			return mask, m.auto.err
		}
	}
	return m.g.vocab.None(), m.auto.err
}

// Accept takes the next token. On ErrText or ErrLimit the matcher is as before.
func (m *Matcher) Accept(token int32) error {
	m.enter()
	defer m.g.mu.Unlock()
	v := m.g.vocab
	if m.over {
		return fmt.Errorf("%w: token %d after the end", ErrText, token)
	}
	if v.isEnd(token) && m.auto.configs[m.at].accepts {
		m.over = true
		return nil
	}
	if i := slices.Index(m.g.prog.tokens, token); i >= 0 {
		return m.take(func(yield func(uint16) bool) { yield(uint16(256 + i)) })
	}
	text := v.bytes(token)
	if len(text) == 0 {
		return fmt.Errorf("%w: token %d has no text", ErrText, token)
	}
	return m.take(bytesOf(text))
}

// take takes symbols.
func (m *Matcher) take(symbols iter.Seq[uint16]) error {
	at, n := m.at, 0
	for s := range symbols {
		if at = m.auto.step(at, m.g.prog.class(s)); at == dead {
			if m.auto.err != nil {
				return m.auto.err
			}
			return fmt.Errorf("%w: at symbol %d, %d", ErrText, n, s)
		}
		n++
	}
	m.at = at
	return nil
}

func bytesOf(text []byte) iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		for _, b := range text {
			if !yield(uint16(b)) {
				return
			}
		}
	}
}

// Text takes bytes instead of tokens.
func (m *Matcher) Text(text string) error {
	m.enter()
	defer m.g.mu.Unlock()
	return m.take(bytesOf([]byte(text)))
}

// Complete reports whether the text may end here, and Finished whether it must: nothing may follow.
func (m *Matcher) Complete() bool {
	m.enter()
	defer m.g.mu.Unlock()
	return m.over || m.auto.configs[m.at].accepts
}

// Finished: see Complete.
func (m *Matcher) Finished() bool {
	m.enter()
	defer m.g.mu.Unlock()
	return m.over || len(m.auto.configs[m.at].nodes) == 0
}

// Clone returns a matcher at the same place.
func (m *Matcher) Clone() *Matcher {
	c := *m
	return &c
}
