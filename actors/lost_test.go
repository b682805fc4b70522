package actors

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krater/actors/engine"
	"krater/scheduler/files"
)

// TestLostWeights: where a file of weights is cut while it is in use, requests fail and the
// gateway refuses new ones, both with the file's name; the process goes on.
func TestLostWeights(t *testing.T) {
	for _, inline := range []bool{false, true} { // by the pools, by the group itself
		dir := t.TempDir()
		from := os.DirFS(golden("deepseek_v2_lite"))
		if err := os.CopyFS(dir, from); err != nil {
			t.Fatal(err)
		}
		o := setup{dir: dir, limits: small(2), pools: 2}
		if inline {
			o.inline = 1 << 40
		}
		r := newRig(t, o)
		gw := r.gateway(t)
		if events, err := ask(gw); err != nil || events[len(events)-1].Kind != engine.Done {
			t.Fatalf("%+v, %v", events, err)
		}
		if err := os.Truncate(filepath.Join(dir, "model.safetensors"), 8192); err != nil {
			t.Fatal(err)
		}
		// A step that ran ahead of the first answer may have read the missing page already: then
		// the request is refused, which is checked below.
		if events, err := ask(gw); err == nil {
			last := events[len(events)-1]
			if last.Kind != engine.Failed || last.Err.Kind != engine.Unavailable || !strings.Contains(last.Err.Message, "model.safetensors") {
				t.Errorf("the request ended with %+v", last)
			}
		}
		<-r.Failed()
		if _, lost := errors.AsType[*files.LostError](r.Err()); !lost || !errors.Is(r.Err(), errFatal) {
			t.Errorf("failed with %v", r.Err())
		}
		_, err := ask(gw)
		for _, err := range []error{err, gw.Ready()} {
			var e *engine.Error
			if !errors.As(err, &e) || e.Kind != engine.Unavailable || !e.Lasting || !strings.Contains(e.Message, "model.safetensors") || strings.Contains(e.Message, dir) {
				t.Errorf("%v", err)
			}
		}
	}
}

// ask asks for four tokens.
func ask(gw *Gateway) ([]engine.Event, error) {
	st, err := gw.Submit(context.Background(), greedy([]int32{5, 6, 7}, 4))
	if err != nil {
		return nil, err
	}
	return everything(st)
}
