package enginetest

import (
	"context"
	"io"
	"strconv"
	"sync"
	"time"

	"krater/actors/engine"
)

// Metronome is an engine whose running streams get tokens at a steady rate, from one goroutine, as the
// stream actor of a pipeline gives them. The text of a token is the time at which it was made (see
// ReadBeat). The engine that it wraps tokenizes and describes the model.
type Metronome struct {
	*Engine

	mu    sync.Mutex
	beats []*beat
	next  int // index of the beat that gets the next token
}

// NewMetronome makes one whose context holds the given number of tokens.
func NewMetronome(context int) *Metronome {
	m := &Metronome{Engine: New()}
	m.SetInfo(func(i *engine.Info) { i.Context = context })
	return m
}

// Submit implements engine.Engine. Answers have as many tokens as the request allows.
func (m *Metronome) Submit(ctx context.Context, req *engine.Request) (engine.Stream, error) {
	ids, err := m.Tokenize(ctx, req.Prompt, m.Info().Context)
	if err != nil {
		return nil, err
	}
	b := &beat{prompt: len(ids), left: m.Info().Context - len(ids), ready: make(chan struct{}, 1)}
	if req.MaxTokens > 0 {
		b.left = min(b.left, req.MaxTokens)
	}
	b.push(engine.Event{Kind: engine.Started})
	b.unwatch = context.AfterFunc(ctx, b.Close)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beats = append(m.beats, b)
	return b, nil
}

// Run gives each stream a token every so often until ctx ends. Each step makes the tokens of some
// streams, as if batches of them took turns.
func (m *Metronome) Run(ctx context.Context, every, step time.Duration) {
	tick := time.NewTicker(step)
	defer tick.Stop()
	last, due := time.Now(), 0.0
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			m.mu.Lock()
			due += float64(len(m.beats)) * float64(now.Sub(last)) / float64(every)
			m.mu.Unlock()
			m.play(int(due))
			due -= float64(int(due))
			last = now
		}
	}
}

// play makes n tokens, one for each of the next n streams.
func (m *Metronome) play(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ; n > 0 && len(m.beats) > 0; n-- {
		m.next %= len(m.beats)
		if b := m.beats[m.next]; b.token() {
			m.next++
			continue
		}
		last := len(m.beats) - 1
		m.beats[m.next] = m.beats[last]
		m.beats = m.beats[:last]
	}
}

// beat is one stream. Tokens that are not read yet wait.
type beat struct {
	prompt  int
	unwatch func() bool
	ready   chan struct{} // capacity 1

	mu      sync.Mutex
	left    int // tokens to come
	made    int
	pending []engine.Event
	closed  bool
}

// BeatLen is the length of a token's text in bytes.
const BeatLen = 12

// token makes the next token; false: there is none.
func (b *beat) token() bool {
	b.mu.Lock()
	over := b.closed || b.left == 0
	b.left--
	b.made++
	used := engine.Usage{Prompt: b.prompt, Completion: b.made}
	b.mu.Unlock()
	if over {
		return false
	}
	b.push(engine.Event{Kind: engine.Tokens, Text: strconv.FormatInt(time.Now().UnixNano(), 36), Usage: used})
	if b.left == 0 {
		b.push(engine.Event{Kind: engine.Done, Finish: engine.FinishLength, Usage: used})
	}
	return true
}

// ReadBeat returns when the first token of a text was made, and the rest of the text.
func ReadBeat(text string) (at time.Time, rest string, ok bool) {
	if len(text) < BeatLen {
		return time.Time{}, "", false
	}
	ns, err := strconv.ParseInt(text[:BeatLen], 36, 64)
	return time.Unix(0, ns), text[BeatLen:], err == nil
}

func (b *beat) push(e engine.Event) {
	b.mu.Lock()
	if !b.closed {
		b.pending = append(b.pending, e)
	}
	b.mu.Unlock()
	b.wake()
}

func (b *beat) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// Next implements engine.Stream.
func (b *beat) Next(ctx context.Context) (engine.Event, error) {
	for {
		b.mu.Lock()
		closed := b.closed
		if n := len(b.pending); n > 0 {
			e := b.pending[0]
			copy(b.pending, b.pending[1:])
			b.pending[n-1] = engine.Event{}
			b.pending = b.pending[:n-1]
			b.mu.Unlock()
			if n > 1 {
				b.wake()
			}
			return e, nil
		}
		b.mu.Unlock()
		if closed {
			return engine.Event{}, io.EOF
		}
		select {
		case <-b.ready:
		case <-ctx.Done():
			return engine.Event{}, ctx.Err()
		}
	}
}

// Close implements engine.Stream.
func (b *beat) Close() {
	b.mu.Lock()
	b.closed, b.pending = true, nil
	b.mu.Unlock()
	b.unwatch()
	b.wake()
}

// PromptTokens implements engine.Stream.
func (b *beat) PromptTokens() int { return b.prompt }
