package forecast

import (
	"strings"
	"testing"

	"krater/scheduler/planner/rates"
)

// TestDivide: with little room a prefill that is nearly as fast leaves decode a share, and says
// why; where a flag says what prefill has, or decode gains little, nothing is divided.
func TestDivide(t *testing.T) {
	c := lite()
	c.Rates.Card, _ = rates.Named("rtx-2000-ada")
	c.Skew, c.Work.Context, c.Prefill = Zipf(64), 512, "lru" // which keeps its slots while decode runs
	found := 0
	for c.Budget.Experts = 300 << 20; c.Budget.Experts < 6<<30; c.Budget.Experts += 200 << 20 {
		c.Budget.Prefill = 0
		divided, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		c.Budget.Prefill = c.Budget.Experts
		whole, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if whole.PrefillExperts != 0 {
			t.Errorf("%d experts where a flag says what prefill has", whole.PrefillExperts)
		}
		if divided.PrefillExperts == 0 {
			continue
		}
		found++
		if a, b := divided.Prefill.Prefill.Score, whole.Prefill.Prefill.Score; a < nearlyAsFast*b {
			t.Errorf("prefill %g, the fastest %g", a, b)
		}
		if a, b := divided.Decode.Decode.Score, whole.Decode.Decode.Score; a < muchFaster*b {
			t.Errorf("decode %g, beside the fastest prefill %g", a, b)
		}
		if a, b := exchange(&divided.Prefill.Prefill, &divided.Decode.Decode), exchange(&whole.Prefill.Prefill, &whole.Decode.Decode); a >= b {
			t.Errorf("a prompt and its answer take %g s, undivided %g s", a, b)
		}
		if r := divided.Prefill.Prefill.Reason; !strings.Contains(r, "so that decode is") {
			t.Errorf("%s", r)
		}
		if v := divided.Decode.Decode.VRAM; v > c.Budget.Experts {
			t.Errorf("%d bytes for both phases, there are %d", v, c.Budget.Experts)
		}
	}
	if found == 0 {
		t.Error("nothing was divided")
	}
	c.Budget.Prefill, c.Budget.Experts = 0, 16<<30
	if f, err := New(c); err != nil || f.PrefillExperts != 0 {
		t.Errorf("with room for all: %d experts, %v", f.PrefillExperts, err)
	}
}
