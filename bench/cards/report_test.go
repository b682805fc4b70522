package cards

import (
	"strings"
	"testing"
)

// TestRates: a row and the table give a launch's rates with enough digits for comparisons.
func TestRates(t *testing.T) {
	r := &Row{Op: "matmul", Pass: true, Launches: []Launch{{"kr_x", 12.34}}}
	r.rate(&Case{Bytes: 30.12e6, Flops: 1e9}, 12.345678, Ceilings{ReadGBps: 3012, TFLOPs: 800})
	if r.US != 12.35 || r.GBps != 2440 || r.TFLOPs != 81 || r.Share != 0.81 || r.Bound != "memory" {
		t.Errorf("%+v", r)
	}
	var b strings.Builder
	if err := (&Report{GPU: "a GPU", Ceilings: Ceilings{ReadGBps: 3012, Far: []Far{{8, 2345}}}, Rows: []Row{*r},
		Trips: []Trip{{Rows: 1, Hidden: 2048, DType: "BF16", US: 6.25}, {Rows: 2, Hidden: 8, DType: "F32", Silent: true, Fault: "late"}}}).Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"reads 3012 GB/s", "8 GiB in one go: reads 2345 GB/s", "12.35     2440     81.0     81%", "kr_x",
		"trip T=1 H=2048 BF16 ", " 6.25 us", "trip T=2 H=8 F32 nothing asked  WRONG: late "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
