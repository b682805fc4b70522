package local

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// TestMemoryOffPlan: 10 % off is fine, more is a warning with both numbers.
func TestMemoryOffPlan(t *testing.T) {
	for _, x := range []struct {
		use   MemoryUse
		words []string
	}{
		{MemoryUse{Planned: 1000, Resident: 1100, Promised: 500, Allocated: 550}, nil},
		{MemoryUse{Planned: 1000, Resident: 10, Promised: 500, Allocated: 451}, nil},
		{MemoryUse{Planned: 1000, Resident: 0, Promised: 500, Allocated: 500}, nil},
		{MemoryUse{Planned: 1000, Resident: 1200, Promised: 500, Allocated: 500}, []string{"20 % more memory"}},
		{MemoryUse{Planned: 1000, Resident: 900, Promised: 500, Allocated: 400}, []string{"-20 % off"}},
		{MemoryUse{Planned: 1000, Resident: 1200, Promised: 500, Allocated: 600}, []string{"20 % more memory", "+20 % off"}},
	} {
		var text bytes.Buffer
		x.use.Log(zerolog.New(&text))
		got := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
		level, lines := `"level":"warn"`, len(x.words)
		if lines == 0 {
			level, lines = `"level":"info"`, 1
		}
		if len(got) != lines {
			t.Fatalf("%+v: %q", x.use, got)
		}
		for i, l := range got {
			if !strings.Contains(l, level) || !strings.Contains(l, `"planned_bytes":1000`) || !strings.Contains(l, `"resident_bytes":`) || i < len(x.words) && !strings.Contains(l, x.words[i]) {
				t.Errorf("%+v: %s", x.use, l)
			}
		}
	}
}
