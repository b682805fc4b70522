package console

import (
	"os"
	"strings"
	"testing"
)

// TestLossyWriter: a writer that fails is no error.
func TestLossyWriter(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	l := lossyWriter{w: full}
	for range 3 {
		if n, err := l.Write([]byte("line\n")); n != 5 || err != nil {
			t.Errorf("%d %v", n, err)
		}
	}
	var b strings.Builder
	if l.w = &b; l.lost.Load() != 3 {
		t.Errorf("%d lines are lost", l.lost.Load())
	}
	if _, err := l.Write([]byte("line\n")); err != nil || b.String() != "line\n" || l.lost.Load() != 3 {
		t.Errorf("%v %q", err, &b)
	}
}
