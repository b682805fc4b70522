//go:build unix

package heat

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// saver makes the test binary a process that saves until it is killed.
const saver = "TEST_HEAT_SAVER"

func TestMain(m *testing.M) {
	if path := os.Getenv(saver); path != "" {
		save(path)
	}
	os.Exit(m.Run())
}

// large is a map that takes a while to write: layer 0 has seen n tokens, all of them
// gone to expert n.
func large(n int) *Map {
	m, err := New(model, Shape{Layers: []int32{0}, Experts: expertsMost, TopK: 1})
	if err == nil {
		counts := make([]uint64, expertsMost)
		counts[n] = uint64(n)
		err = m.Add(0, uint64(n), counts)
	}
	if err != nil {
		panic(err)
	}
	return m
}

// save writes one map after another over the same file.
func save(path string) {
	for n := 1; ; n++ {
		if err := large(n).Save(path); err != nil {
			panic(err)
		}
	}
}

// TestKill: a file that is being replaced when its writer is killed is one of the maps
// that were written, whole.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.heat")
	if err := large(0).Save(path); err != nil {
		t.Fatal(err)
	}
	replaced := 0
	for round := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), saver+"="+path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(30+7*round) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		m, err := Load(path)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		n := m.Seen()
		if m.Counts(0)[n] != n {
			t.Fatalf("round %d: %d tokens, %d of them at their expert", round, n, m.Counts(0)[n])
		}
		if n > 0 {
			replaced++
		}
	}
	if replaced == 0 {
		t.Error("no writer came to write: nothing was tried")
	}
}
