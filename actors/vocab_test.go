package actors

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors/engine"
	"krater/stages/text/tokenizer"
)

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestTokenBeyondTheEmbedding: a tokenizer may know tokens that the model has no row for. The
// request that has one is refused, others go on; and where one gets through all the same, the
// log says what failed its batch.
func TestTokenBeyondTheEmbedding(t *testing.T) {
	var text lockedBuffer
	r := newRig(t, setup{log: zerolog.New(&text)})
	data, err := fs.ReadFile(r.files, "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	extra := bytes.Replace(data, []byte(`"added_tokens": [`), []byte(`"added_tokens": [{"id": 8192, "content": "<extra>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},`), 1)
	tok, err := tokenizer.Parse(extra, nil)
	if err != nil {
		t.Fatal(err)
	}
	if ids := tok.Beyond(r.cfg.Vocab); !slices.Equal(ids, []int32{8192}) {
		t.Fatalf("tokens beyond: %v", ids)
	}
	gw := r.gateway(t)
	gw.opt.Tokenizer = tok
	running, err := gw.Submit(context.Background(), greedy([]int32{0, 5, 6}, 40))
	if err != nil {
		t.Fatal(err)
	}
	words := "a <extra>"
	for _, p := range []engine.Prompt{{Text: &words, ParseSpecial: true}, {IDs: []int32{5, 8192}}} {
		req := greedy(nil, 1)
		req.Prompt = p
		_, err := gw.Submit(context.Background(), req)
		var e *engine.Error
		if !errors.As(err, &e) || e.Kind != engine.BadRequest || !strings.Contains(e.Message, "token 8192") {
			t.Errorf("%v", err)
		}
	}
	if events, err := everything(running); err != nil || events[len(events)-1].Kind != engine.Done {
		t.Errorf("the running answer ended with %+v, %v", events, err)
	}
	gw.opt.Vocab++ // the door is fooled
	st, err := gw.Submit(context.Background(), greedy([]int32{5, 8192}, 1))
	if err != nil {
		t.Fatal(err)
	}
	if events, err := everything(st); err != nil || events[len(events)-1].Kind != engine.Failed {
		t.Errorf("%+v, %v", events, err)
	}
	if log := text.String(); !strings.Contains(log, "token 8192 is not in a vocabulary of 8192") || !strings.Contains(log, `"requests":[2]`) {
		t.Errorf("the log has no cause:\n%s", log)
	}
}
