package expert

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"krater/kernels/device"
	"krater/kernels/tensor"
	"krater/stages/internal/hosttest"
)

// mapped is a Memory whose pages come as they are written.
type mapped struct {
	mu   sync.Mutex
	bufs [][]byte
}

func (m *mapped) AllocOn(_, n int) (device.Buffer, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bufs = append(m.bufs, b)
	return hosttest.Buffer(b), err
}

func (m *mapped) CopyOn(_ int, dst device.Buffer, at int, src []byte) error {
	copy(dst.Host()[at:], src)
	return nil
}

// resident is the memory of this process in pages of its own and of files.
func resident(t *testing.T) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, name := range []string{"RssAnon:", "RssFile:"} {
		_, rest, ok := bytes.Cut(status, []byte(name))
		fields := bytes.Fields(rest)
		if !ok || len(fields) == 0 {
			t.Skip("the system does not tell")
		}
		kb, _ := strconv.Atoi(string(fields[0]))
		total += kb << 10
	}
	return total
}

// TestPlaceNeedsLittleMore than the experts' new memory, when the caller lets go
// of each that is done: experts of 4 MB in a mapped file of 96.
func TestPlaceNeedsLittleMore(t *testing.T) {
	const experts, pools = 24, 2
	f13 := tensor.Layout{Format: tensor.INT4.By(128), Rows: 2048, Cols: 2048}
	f2 := tensor.Layout{Format: tensor.INT8.By(128), Rows: 2048, Cols: 1024}
	each := f13.ValueBytes() + f13.ScaleBytes() + f2.ValueBytes() + f2.ScaleBytes()
	path := filepath.Join(t.TempDir(), "experts")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	one := bytes.Repeat([]byte{7}, each) // kept to the end, so that the heap stays as it is
	for range experts {
		if _, err := f.Write(one); err != nil {
			t.Fatal(err)
		}
	}
	defer f.Close()
	file, err := unix.Mmap(int(f.Fd()), 0, experts*each, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(file)
	layer := make([]device.QExpert, experts)
	for e := range layer {
		matrix := func(f tensor.Layout, at int) device.QMat {
			return device.QMat{Layout: f, Values: hosttest.Buffer(file), ValueAt: at, Scales: hosttest.Buffer(file), ScaleAt: at + f.ValueBytes()}
		}
		layer[e] = device.QExpert{W13: matrix(f13, e*each), W2: matrix(f2, e*each+f13.ValueBytes()+f13.ScaleBytes())}
	}
	mem := &mapped{}
	before, placed, most := resident(t), 0, 0
	p, err := Place(context.Background(), mem, Even(experts, pools), [][]device.QExpert{layer}, func(_, e int) {
		from, to := e*each, (e+1)*each
		from, to = (from+4095)&^4095, to&^4095
		if err := unix.Madvise(file[from:to], unix.MADV_DONTNEED); err != nil {
			t.Error(err)
		}
		placed += each
		most = max(most, resident(t)-before-placed)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(fmt.Sprintf("%d MB more at most than was placed, an expert has %d", most>>20, each>>20))
	// The other pool has an expert in hand, in both places.
	if limit := 2*pools*each + 8<<20; most > limit {
		t.Errorf("%d MB more than was placed, want at most %d", most>>20, limit>>20)
	}
	if n := resident(t) - before; n < experts*each {
		t.Errorf("%d bytes are resident, the experts have %d: nothing was measured", n, experts*each)
	}
	if e := p.Experts(0)[experts-1]; !bytes.Equal(contents(e), one) {
		t.Error("the last expert has changed")
	}
	p.Close()
	for _, b := range mem.bufs {
		unix.Munmap(b)
	}
}
