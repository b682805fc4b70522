package level

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for l := Auto; l <= AVX512; l++ {
		if got, err := Parse(l.String()); err != nil || got != l {
			t.Errorf("Parse(%q) = %v, %v", l.String(), got, err)
		}
	}
	if got, err := Parse(""); err != nil || got != Auto {
		t.Errorf("Parse of nothing = %v, %v", got, err)
	}
	for _, bad := range []string{"0", "AVX2", "avx1024", " avx2"} {
		if _, err := Parse(bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("Parse(%q) gives error %v", bad, err)
		}
	}
}

func TestUnknownEnvironmentIsAnError(t *testing.T) {
	forget(t)
	t.Setenv(EnvLevel, "fast")
	if _, err := Active(); err == nil || !strings.Contains(err.Error(), EnvLevel) || !strings.Contains(err.Error(), "fast") {
		t.Errorf("error %v does not name the variable and its value", err)
	}
}

func TestEnvironmentLowers(t *testing.T) {
	forget(t)
	t.Setenv(EnvLevel, "pure")
	if got, err := Active(); err != nil || got != Pure {
		t.Errorf("Active() = %s, %v", got, err)
	}
}

func TestUnavailableLevelIsRefused(t *testing.T) {
	if Best() == AVX512 {
		t.Skip("this machine has every level")
	}
	if _, err := Resolve(AVX512); err == nil {
		t.Error("a level that cannot run here was accepted")
	}
}

// AVX-VNNI is no part of AVX-512: where it is missing between levels that run, it is refused.
func TestAvailableLevelsCanRun(t *testing.T) {
	for l := Pure; l <= AVX512; l++ {
		_, err := Resolve(l)
		if listed := slices.Contains(Available(), l); listed != (err == nil) {
			t.Errorf("level %s: listed %v, error %v", l, listed, err)
		}
		if l == AVXVNNI && (err == nil) != avxvnni() {
			t.Errorf("level %s: error %v, the processor says %v", l, err, avxvnni())
		}
	}
}

// CI says which level its machine has; a probe that failed silently would make everything slow and
// every test pass.
func TestExpectedLevel(t *testing.T) {
	name := os.Getenv("KRATER_EXPECT_LEVEL")
	if name == "" {
		t.Skip("KRATER_EXPECT_LEVEL is not set")
	}
	want, err := Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Active(); err != nil || got != want {
		t.Errorf("level %s (%v) was selected, expected %s", got, err, want)
	}
}

// forget makes the next Active read the environment again.
func forget(t *testing.T) {
	state.Lock()
	before := state.active
	state.active = Auto
	state.Unlock()
	t.Cleanup(func() {
		state.Lock()
		state.active = before
		state.Unlock()
	})
}
