package enginetest

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"krater/actors/engine"
)

// TestMetronome: tokens come at the rate, end at the limit, and carry their time.
func TestMetronome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMetronome(1000)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go m.Run(ctx, 100*time.Millisecond, 10*time.Millisecond)
		text := "hi"
		start := time.Now()
		s, err := m.Submit(ctx, &engine.Request{Prompt: engine.Prompt{Text: &text}, MaxTokens: 5})
		if err != nil {
			t.Fatal(err)
		}
		tokens := 0
		for {
			e, err := s.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == engine.Tokens {
				tokens++
				if at, rest, ok := ReadBeat(e.Text); !ok || rest != "" || !at.Equal(time.Now()) {
					t.Errorf("token %d says %v, %q", tokens, at, rest)
				}
			}
			if e.Kind == engine.Done {
				break
			}
		}
		if took := time.Since(start); tokens != 5 || took < 490*time.Millisecond || took > 510*time.Millisecond {
			t.Errorf("%d tokens in %v", tokens, took)
		}
		s.Close()
		if _, err := s.Next(ctx); err != io.EOF {
			t.Errorf("after the end: %v", err)
		}
	})
}
