//go:build cuda

package benches

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"krater/cmd/krater/console"
	"krater/kernels/cuda/driver"
)

// The emulator has two GPUs here. It reads this when it is first used.
func init() {
	if os.Getenv("KR_EMU_DEVICES") == "" {
		os.Setenv("KR_EMU_DEVICES", "2")
	}
}

// TestLinks: both kinds of links between two GPUs are measured, and rows that are changed are noticed.
func TestLinks(t *testing.T) {
	if err := driver.Available(); err != nil {
		t.Skip(err)
	}
	var out, told bytes.Buffer
	c := benchFor(t, "links", "--bytes", "14336,40000", "--rounds", "2", "--json")
	if err := c.Links.Run(&console.Env{Out: &out, Err: &told}); err != nil {
		t.Fatal(err)
	}
	var r linkReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Kinds) != 2 || r.Used != "peer" {
		t.Fatalf("%+v", r)
	}
	for _, k := range r.Kinds {
		if k.Fault != "" || len(k.Hops) != 2 || !strings.Contains(k.Caught, "other rows arrived than were sent") {
			t.Errorf("%+v", k)
		}
		for _, h := range k.Hops {
			if h.Bytes < 14336 || h.HopUs <= 0 || h.CheckUs <= 0 {
				t.Errorf("%s: %+v", k.Name, h)
			}
		}
	}
}
