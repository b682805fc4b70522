//go:build unix

package cache

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKilledAtEveryStep kills a build with SIGKILL right before each of its
// steps. Afterwards a start always gets a good cache, and every layer that was
// entered is kept.
func TestKilledAtEveryStep(t *testing.T) {
	list := steps(t)
	t.Logf("%d steps", len(list))
	entered := 0
	for i, name := range list {
		o, src, _ := options(t, t.TempDir())
		cmd, out := start(t, childDir+"="+o.Dir, childStep+"="+strconv.Itoa(i))
		for out.Scan() && out.Text() != "stopped" {
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatalf("step %d (%s): the build came to its end", i, name)
		}
		_, err := os.Stat(pathOf(o))
		if renamed := name == "sync folder"; (err == nil) != renamed {
			t.Errorf("step %d (%s): the file exists: %v", i, name, err)
		}
		c := whole(t, o)
		switch {
		case name == "sync folder":
			if c.Report != nil {
				t.Errorf("built again after the rename")
			}
		case c.Report.Resumed != entered || len(src.asked) != 4*(3-entered):
			t.Errorf("step %d (%s): %d layers entered, report %+v, %d experts asked", i, name, entered, c.Report, len(src.asked))
		}
		onlyFile(t, o)
		if name == "enter layer" {
			entered++
		}
	}
}

// TestKilledAtRandom kills builds while they run, several times in a row in one
// folder, until one comes to its end.
func TestKilledAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	total := len(steps(t))
	kills, want := 0, 20
	if testing.Short() {
		want = 5
	}
	for round := 0; kills < want; round++ {
		if round == 200 {
			t.Fatalf("%d kills in %d rounds: the builds end too early", kills, round)
		}
		o, _, _ := options(t, t.TempDir())
		for range 3 {
			cmd, out := start(t, childDir+"="+o.Dir)
			for n := r.IntN(total); n > 0 && out.Scan(); n-- {
			}
			spin := r.IntN(200000) // somewhere within a step
			for x := 0; x < spin; x++ {
				sink++
			}
			cmd.Process.Kill()
			var state *os.ProcessState
			if cmd.Wait() != nil {
				state = cmd.ProcessState
			}
			if state != nil && state.Sys().(syscall.WaitStatus).Signaled() {
				kills++
			}
			if err := loads(o); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("round %d: a killed build left %v", round, err)
			}
		}
		whole(t, o)
		onlyFile(t, o)
	}
}

var sink int

// TestTwoProcesses start at once; the second waits and finds the first's file.
func TestTwoProcesses(t *testing.T) {
	o, _, _ := options(t, t.TempDir())
	first, out := start(t, childDir+"="+o.Dir, childStep+"=8")
	for out.Scan() && out.Text() != "stopped" {
	}
	second, out2 := start(t, childDir+"="+o.Dir)
	if !out2.Scan() || !strings.HasPrefix(out2.Text(), "notice ") || !strings.Contains(out2.Text(), "waiting") {
		t.Errorf("the second says %q", out2.Text())
	}
	if err := first.Process.Kill(); err != nil { // and its lock goes with it
		t.Fatal(err)
	}
	first.Wait()
	last := ""
	for out2.Scan() {
		last = out2.Text()
	}
	if err := second.Wait(); err != nil || !strings.HasPrefix(last, "built 2 resumed 1 asked 8") {
		t.Errorf("the second ends with %q, %v", last, err)
	}
	third, out3 := start(t, childDir+"="+o.Dir)
	for out3.Scan() {
		last = out3.Text()
	}
	if err := third.Wait(); err != nil || !strings.HasPrefix(last, "built 0 resumed 0 asked 0 found true") {
		t.Errorf("the third ends with %q, %v", last, err)
	}
	whole(t, o)
}

// failing is a disk that is full, or broken, from some write on.
type failing struct {
	storage
	left int
	err  error
}

func (f *failing) WriteAt(b []byte, off int64) (int, error) {
	if f.left--; f.left < 0 {
		return 0, f.err
	}
	return f.storage.WriteAt(b, off)
}

func (f *failing) Sync() error {
	if f.left--; f.left < 0 {
		return f.err
	}
	return f.storage.Sync()
}

// TestFailingDisk fails every write and sync in turn.
func TestFailingDisk(t *testing.T) {
	for _, cause := range []error{unix.ENOSPC, unix.EIO, unix.EDQUOT} {
		for n := 0; ; n++ {
			o, _, _ := options(t, t.TempDir())
			o.wrap = func(s storage) storage { return &failing{s, n, cause} }
			_, err := Build(context.Background(), *o)
			if err == nil {
				if n < 20 {
					t.Errorf("only %d writes and syncs", n)
				}
				break
			}
			if !errors.Is(err, cause) || !strings.Contains(err.Error(), filepath.Dir(pathOf(o))) {
				t.Fatalf("write %d: got %v", n, err)
			}
			if full := cause != unix.EIO; errors.Is(err, ErrFull) != full || full && !strings.Contains(err.Error(), "--cache-dir") {
				t.Errorf("write %d: got %v", n, err)
			} else if full {
				if _, err := os.Stat(pathOf(o) + ".part"); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("write %d: the part stays on the full disk: %v", n, err)
				}
			}
			if err := loads(o); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("write %d: %v", n, err)
			}
			o.wrap = nil
			whole(t, o)
			onlyFile(t, o)
		}
	}
}
