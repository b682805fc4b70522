//go:build cuda

package link

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cuda"
	"krater/kernels/cuda/cudatest"
	"krater/kernels/cuda/driver"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// The emulator has two GPUs here. It reads this when it is first used.
func init() {
	if os.Getenv("KR_EMU_DEVICES") == "" {
		os.Setenv("KR_EMU_DEVICES", "2")
	}
}

// twoGPUs opens two GPUs.
func twoGPUs(t *testing.T) (gpus []device.Device) {
	t.Helper()
	if err := driver.Available(); errors.Is(err, driver.ErrNoDriver) {
		t.Skip(err)
	}
	for i := range 2 {
		d, err := cuda.Open(cuda.Options{Index: i, Budget: 1 << 28})
		if err != nil && i > 0 {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		gpus = append(gpus, d)
	}
	return gpus
}

// TestCards: rows of every size come over links between two GPUs and between a GPU and the CPU, on
// every kind of link, and rows that change are noticed.
func TestCards(t *testing.T) {
	gpus := twoGPUs(t)
	c, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	defer func(n int) { pieceBytes = n }(pieceBytes)
	pieceBytes = 8 << 10
	const rows, cols = 130, 128 // 65 KiB: more than the room of a link through the host
	for _, x := range []struct {
		from, to device.Device
		kind     Kind
		name     string
	}{{gpus[0], gpus[1], Peer, "peer"}, {gpus[1], gpus[0], Bounce, "bounce"}, {gpus[0], c, Bounce, "bounce"}, {c, gpus[1], Bounce, "bounce"}} {
		p := newPair(t, x.from, x.to)
		if p.src, err = device.AllocMat(x.from, tensor.F32, rows, cols); err != nil {
			t.Fatal(err)
		}
		if p.dst, err = device.AllocMat(x.to, tensor.F32, rows, cols); err != nil {
			t.Fatal(err)
		}
		h, _, err := p.open(t, x.kind)
		if err != nil || h.Name() != x.name {
			t.Fatalf("%s to %s: %v, %v", x.from.Name(), x.to.Name(), h, err)
		}
		sent, got := pattern(p.src.Bytes(), 1), make([]byte, p.dst.Bytes())
		p.from.CopyIn(p.src, sent)
		for _, n := range []int{1, 16, 17, rows} {
			p.to.CopyIn(p.dst, make([]byte, len(got)))
			src := []device.Mat{p.src.RowRange(0, n), p.src.RowRange(rows-1, rows)}
			dst := []device.Mat{p.dst.RowRange(0, n), p.dst.RowRange(rows-1, rows)}
			err := errors.Join(p.to.Synchronize(), h.Carry(p.from, p.to, src, dst))
			p.to.CopyOut(got, p.dst)
			if err = errors.Join(err, p.to.Synchronize(), p.from.Synchronize(), h.Arrived()); err != nil {
				t.Fatalf("%s to %s, %d rows: %v", x.from.Name(), x.to.Name(), n, err)
			}
			end, last := 4*cols*n, 4*cols*(rows-1)
			if !bytes.Equal(got[:end], sent[:end]) || !bytes.Equal(got[last:], sent[last:]) || n < rows-1 && got[end] != 0 {
				t.Errorf("%s to %s, %d rows: other rows arrived", x.from.Name(), x.to.Name(), n)
			}
		}
		p.src.Buf.Free()
		p.dst.Buf.Free()
	}
}

// TestCopiesThatDoNotCome: rows that were not copied are noticed.
func TestCopiesThatDoNotCome(t *testing.T) {
	cudatest.Peer(t, "") // skips the test without the emulator
	gpus := twoGPUs(t)
	p := newPair(t, gpus[0], gpus[1])
	h, _, err := p.open(t, Peer, Bounce)
	if err != nil {
		t.Fatal(err)
	}
	cudatest.Peer(t, "stale")
	p.from.CopyIn(p.src, pattern(p.src.Bytes(), 3))
	err = h.Carry(p.from, p.to, []device.Mat{p.src}, []device.Mat{p.dst})
	if err = errors.Join(err, p.to.Synchronize(), p.from.Synchronize(), h.Arrived()); !errors.Is(err, ErrChanged) {
		t.Errorf("rows that were not copied: %v", err)
	}
	cudatest.Peer(t, "")
}
