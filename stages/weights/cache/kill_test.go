//go:build unix

package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"krater/stages/internal/hosttest"
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

// kind of file that can be killed.
type kind struct {
	name string
	// prepare fills the folder first; nil leaves it empty.
	prepare func(t *testing.T, dir string)
	steps   func(t *testing.T) []string
	// loads returns why a file in the folder cannot be used, nil if all can.
	loads func(dir string) error
	// whole starts once more and compares everything.
	whole func(t *testing.T, dir string)
}

func kinds() []kind {
	matrices := kind{"matrices", nil, stepsOfMatrices(0), func(dir string) error {
		o, _ := matrixOptions(dir)
		x, err := loadMatrices(context.Background(), hosttest.Device{}, pathOfMatrices(o), o)
		if err == nil {
			err = x.close()
		}
		return err
	}, func(t *testing.T, dir string) {
		o, _ := matrixOptions(dir)
		loadAll(t, o)
		if made := loadAll(t, o); made != 0 {
			t.Errorf("%d matrices made again", made)
		}
		onlyFiles(t, filepath.Dir(pathOfMatrices(o)), o.fileName())
	}}
	more := matrices
	more.name, more.steps, more.prepare = "more matrices", stepsOfMatrices(4), func(t *testing.T, dir string) {
		o, _ := matrixOptions(dir)
		if _, err := fillMatrices(t, o, wanted()[:4]); err != nil {
			t.Fatal(err)
		}
	}
	more.loads = func(dir string) error {
		err := matrices.loads(dir)
		if errors.Is(err, os.ErrNotExist) {
			err = errors.New("the file that was there is gone")
		}
		return err
	}
	return []kind{
		{"", nil, steps, func(dir string) error {
			o, _, _ := options(nil, dir)
			return loads(o)
		}, func(t *testing.T, dir string) {
			o, _, _ := options(t, dir)
			whole(t, o)
			onlyFile(t, o)
		}},
		{"both", nil, func(t *testing.T) (list []string) {
			o, _, _ := both(t, t.TempDir())
			o.onStep = func(name string) { list = append(list, name) }
			wholeBoth(t, o)
			return list
		}, func(dir string) error {
			o, _, _ := options(nil, dir)
			b := loads(o)
			o.Plan = forGPU(o.Plan)
			if a := loads(o); b == nil || errors.Is(b, os.ErrNotExist) {
				return a
			}
			return b
		}, func(t *testing.T, dir string) {
			o, _, _ := both(t, dir)
			wholeBoth(t, o)
			onlyFile(t, o)
		}},
		matrices, more,
	}
}

// stepsOfMatrices lists the steps of a load that finds the first n matrices.
func stepsOfMatrices(n int) func(t *testing.T) []string {
	return func(t *testing.T) (list []string) {
		o, _ := matrixOptions(t.TempDir())
		if n > 0 {
			if _, err := fillMatrices(t, o, wanted()[:n]); err != nil {
				t.Fatal(err)
			}
		}
		o.onStep = func(name string) { list = append(list, name) }
		loadAll(t, o)
		return list
	}
}

// TestKilledAtRandom kills builds while they run, several times in a row in one
// folder, until one comes to its end.
func TestKilledAtRandom(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) { killedAtRandom(t, k) })
	}
}

func killedAtRandom(t *testing.T, k kind) {
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 1))
	total := len(k.steps(t))
	kills, want := 0, 20
	if testing.Short() {
		want = 5
	}
	for round := 0; kills < want; round++ {
		if round == 200 {
			t.Fatalf("%d kills in %d rounds: the builds end too early", kills, round)
		}
		dir := t.TempDir()
		if k.prepare != nil {
			k.prepare(t, dir)
		}
		for range 3 {
			cmd, out := start(t, childDir+"="+dir, childKind+"="+k.name)
			for n := r.IntN(total); n > 0 && out.Scan(); n-- {
			}
			spin := r.IntN(200000) // somewhere within a step
			for x := 0; x < spin; x++ {
				sink++
			}
			cmd.Process.Kill()
			if cmd.Wait() != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
				kills++
			}
			if err := k.loads(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("round %d: a killed build left %v", round, err)
			}
		}
		k.whole(t, dir)
	}
}

// TestOthersKilledAtEveryStep: the same for two formats and for matrices.
func TestOthersKilledAtEveryStep(t *testing.T) {
	for _, k := range kinds()[1:] {
		t.Run(k.name, func(t *testing.T) {
			list := k.steps(t)
			t.Logf("%d steps", len(list))
			for i, name := range list {
				if testing.Short() && i%4 != 0 {
					continue
				}
				dir := t.TempDir()
				if k.prepare != nil {
					k.prepare(t, dir)
				}
				cmd, out := start(t, childDir+"="+dir, childKind+"="+k.name, childStep+"="+strconv.Itoa(i))
				for out.Scan() && out.Text() != "stopped" {
				}
				cmd.Process.Kill()
				if err := cmd.Wait(); err == nil {
					t.Fatalf("step %d (%s): the build came to its end", i, name)
				}
				if err := k.loads(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Errorf("step %d (%s): a killed build left %v", i, name, err)
				}
				k.whole(t, dir)
			}
		})
	}
}

// TestTwoLoads: a second process waits for the first's load and takes its matrices;
// when the first is killed it makes them.
func TestTwoLoads(t *testing.T) {
	dir := t.TempDir()
	first, out := start(t, childDir+"="+dir, childKind+"=matrices", childStep+"=5")
	for out.Scan() && out.Text() != "stopped" {
	}
	second, out2 := start(t, childDir+"="+dir, childKind+"=matrices")
	if !out2.Scan() || !strings.Contains(out2.Text(), "waiting") {
		t.Errorf("the second says %q", out2.Text())
	}
	first.Process.Kill()
	first.Wait()
	last := ""
	for out2.Scan() {
		last = out2.Text()
	}
	if err := second.Wait(); err != nil || last != fmt.Sprint("made ", len(wanted())) {
		t.Errorf("the second ends with %q, %v", last, err)
	}
	third, out3 := start(t, childDir+"="+dir, childKind+"=matrices")
	for out3.Scan() {
		last = out3.Text()
	}
	if err := third.Wait(); err != nil || last != "made 0" {
		t.Errorf("the third ends with %q, %v", last, err)
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

var fullAndBroken = []error{unix.ENOSPC, unix.EIO, unix.EDQUOT}

// TestFailingDisk fails every write and sync in turn.
func TestFailingDisk(t *testing.T) {
	for _, cause := range fullAndBroken {
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
