package serve

import (
	"context"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"krater/transport/enginetest"
	"krater/transport/responses"
)

// TestPaced: each stream gets its tokens, none is late for long on an idle server, and the report has
// the figures.
func TestPaced(t *testing.T) {
	m := enginetest.NewMetronome(1 << 16)
	door := responses.New(m, responses.Options{})
	s := httptest.NewServer(door.Handler())
	defer s.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go m.Run(ctx, 10*time.Millisecond, time.Millisecond)
	p := &Paced{URL: s.URL, PID: os.Getpid(), Streams: 5, Windows: 2, Window: 300 * time.Millisecond, Read: enginetest.ReadBeat}
	r, err := p.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range r.Windows {
		// The memory of five streams is less than what the process gives back meanwhile.
		if w.Tokens < 50 || w.Tokens > 250 || w.Delay.P50 <= 0 || w.Delay.P50 > 100 {
			t.Errorf("%+v", w)
		}
	}
	var text strings.Builder
	if err := r.Text(&text); err != nil || !strings.Contains(text.String(), "5 streams") {
		t.Errorf("%v: %s", err, &text)
	}
	p.Read = func(string) (time.Time, string, bool) { return time.Time{}, "", false }
	if _, err := p.Run(ctx); err == nil || !strings.Contains(err.Error(), "not the time of a token") {
		t.Errorf("a text of another engine: %v", err)
	}
	if err := door.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}
