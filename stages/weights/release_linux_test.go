package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

// resident is how much of the mapping that holds b is in this process, in KiB.
func resident(t *testing.T, b []byte) (kib int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	at, in := uintptr(unsafe.Pointer(&b[0])), false
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			in = from <= at && at < to
		}
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kib); in && n == 1 {
			return kib
		}
	}
	t.Fatal("no such mapping")
	return 0
}

// TestRelease: a tensor's pages leave the process; its neighbours and its content
// stay.
func TestRelease(t *testing.T) {
	const size = 4<<20 + 100
	head := fmt.Sprintf(`{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]},"b":{"dtype":"U8","shape":[100],"data_offsets":[%d,%d]}}`, size, size, size, size+100)
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	file = append(append(file, head...), bytes.Repeat([]byte("weights"), (size+100)/7+1)[:size+100]...)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), file, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a, _ := s.Tensor("a")
	before := bytes.Clone(a.Data)
	if kib := resident(t, a.Data); kib < 4<<10 {
		t.Fatalf("%d KiB resident after reading 4 MiB", kib)
	}
	s.Release("a")
	if kib := resident(t, a.Data); kib > 64 {
		t.Errorf("%d KiB resident after Release", kib)
	}
	if !bytes.Equal(a.Data, before) {
		t.Error("the tensor changed")
	}
	s.Release("b") // lies within a page
	s.Release("none")
	heap, err := FromBytes(map[string][]byte{"model.safetensors": file})
	if err != nil {
		t.Fatal(err)
	}
	heap.Release("a")
	if a, _ := heap.Tensor("a"); !bytes.Equal(a.Data, before) {
		t.Error("a tensor in plain memory changed")
	}
}
