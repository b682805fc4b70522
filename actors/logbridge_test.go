package actors

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"krater/actors/msg"
)

// TestLogBridge: the library's lines are ours one level lower, and never show
// what is in a message.
func TestLogBridge(t *testing.T) {
	var out bytes.Buffer
	log := slogLogger(zerolog.New(&out).Level(zerolog.DebugLevel)).With("system", "s1").WithGroup("any")
	log.Info("note", slog.Any("message", &msg.Submit{Prompt: []int32{4711}}), slog.Int("n", 3))
	log.Error("bad", slog.String("why", "x"))
	log.Warn("hm")
	const want = `{"level":"debug","from":"protoactor","system":"s1","type":"*msg.Submit","n":"3","message":"note"}
{"level":"error","from":"protoactor","system":"s1","why":"x","message":"bad"}
{"level":"warn","from":"protoactor","system":"s1","message":"hm"}
`
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	out.Reset()
	log = slogLogger(zerolog.New(&out).Level(zerolog.InfoLevel))
	log.Info("quiet")
	log.Debug("quiet")
	if strings.Contains(out.String(), "quiet") {
		t.Errorf("at level info: %s", out.String())
	}
}
