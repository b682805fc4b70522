//go:build unix

package cache

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"

	"krater/kernels/device"
	"krater/stages/internal/hosttest"
)

// TestOutOfMemory of the device is no reason to build again.
func TestOutOfMemory(t *testing.T) {
	o, src, _ := options(t, t.TempDir())
	whole(t, o)
	o.Copy = true
	if _, err := Open(context.Background(), &budget{layers: 2}, *o); !errors.Is(err, device.ErrOutOfMemory) || len(src.asked) != 12 {
		t.Errorf("got %v, %d experts asked", err, len(src.asked))
	}
}

// TestShortenedWhileMapped: a file cut after it was opened and before it was read
// is an error where the kernel can tell, not the end of the process.
func TestShortenedWhileMapped(t *testing.T) {
	if err := populate(make([]byte, 1)[:0]); runtime.GOOS != "linux" || err != nil {
		t.Skip("the kernel cannot tell")
	}
	o, _, _ := options(t, t.TempDir())
	whole(t, o)
	for _, o.Copy = range []bool{false, true} {
		x, err := openFile(pathOf(o), &o.Plan)
		if err != nil {
			t.Fatal(err)
		}
		c := &Cache{}
		if err := os.Truncate(pathOf(o), x.layout.at(1)); err != nil {
			t.Fatal(err)
		}
		if o.Copy {
			err = c.copy(context.Background(), hosttest.Device{}, x, o)
		} else {
			err = c.mapIn(context.Background(), hosttest.Device{}, x, o)
		}
		if !errors.Is(err, ErrTruncated) {
			t.Errorf("copy %v: got %v", o.Copy, err)
		}
		c.Close()
		x.file.Close()
		whole(t, o)
	}
}
