package batches

import (
	"strings"
	"testing"
	"time"

	"krater/transport/api"
	"krater/transport/client"
)

// TestKeysTakeTurns: a batch of one key does not wait for the end of another's, however soon that
// one's time ends.
func TestKeysTakeTurns(t *testing.T) {
	r := start(t, setup{door: Options{InFlight: 1}, keys: []string{"key-of-many", "key-of-one"}, key: "key-of-many"})
	gate := make(chan struct{})
	r.engine.Play(gated(gate))
	long := r.submit(chats(8), chatPath, "1h")
	if err := r.engine.WaitOpen(r.ctx(), 1); err != nil {
		t.Fatal(err)
	}
	other := client.New(r.url, "key-of-one", r.http)
	file, err := other.Upload(r.ctx(), "lines.jsonl", strings.NewReader(strings.ReplaceAll(chats(3), "question", "other")))
	if err != nil {
		t.Fatal(err)
	}
	endpoint, window := chatPath, "24h"
	b, err := other.CreateBatch(r.ctx(), api.BatchRequest{InputFileID: &file.ID, Endpoint: &endpoint, Window: &window})
	if err != nil {
		t.Fatal(err)
	}
	for !r.door.runner.running(b.ID) {
		<-time.After(time.Millisecond)
	}
	close(gate)
	r.finish(long)
	var order []string
	for _, q := range r.engine.Requests() {
		text, err := r.engine.Render(t.Context(), q.Prompt.Chat)
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, strings.Fields(strings.TrimPrefix(text, "<user>"))[0])
	}
	if got := strings.Join(order[:7], " "); got != "question other question other question other question" {
		t.Errorf("%s", got)
	}
}
