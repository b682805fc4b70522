package actors

import (
	"testing"

	"krater/actors/engine"
	"krater/scheduler"
)

// TestGrammarPanics: a panic in a grammar masks all tokens of its request. The goroutine that looks
// ahead must not end the process.
func TestGrammarPanics(t *testing.T) {
	c := &constraint{none: make([]uint32, 3), param: "guided_json"} // no matcher
	mask := c.allow(0, true)
	if len(mask) != 3 {
		t.Fatalf("a mask of %d words", len(mask))
	}
	for _, w := range mask {
		if w != 0 {
			t.Errorf("a token may come: %v", mask)
		}
	}
	if e := endError(scheduler.Failed, c.barred()); e.Param != "guided_json" || e.Kind != engine.BadRequest {
		t.Errorf("the request's error is %+v", e)
	}
}
