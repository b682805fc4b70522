package cpu_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
)

func TestAllocOnFakeNodes(t *testing.T) {
	const budget = 64 << 20
	d, _ := open(t, cpu.Options{Nodes: fakes(t, "2x2,1x1"), Budget: budget})
	for node := range d.Nodes() {
		for _, n := range []int{0, 1, 4096, 1 << 16, 20<<20 + 3} {
			b, err := d.AllocOn(node, n)
			if err != nil {
				t.Fatal(err)
			}
			host := b.Host()
			if b.Size() != n || len(host) != n || d.Memory().Used != int64(n) {
				t.Errorf("%d bytes, %d used, want %d", len(host), d.Memory().Used, n)
			}
			if n > 0 && uintptr(unsafe.Pointer(&host[0]))%64 != 0 {
				t.Errorf("%d bytes are not aligned", n)
			}
			if slices.ContainsFunc(host, func(v byte) bool { return v != 0 }) {
				t.Errorf("%d bytes are not zero", n)
			}
			p, err := d.PlacementOn(node, b)
			if err != nil || p.Looked != 0 || p.Bytes != int64(n) || !strings.Contains(p.String(), "made up") {
				t.Errorf("%+v, %v", p, err)
			}
			b.Free()
		}
	}
	if _, err := d.AllocOn(1, budget+1); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("beyond the budget: %v", err)
	}
	if _, err := d.AllocOn(1, -1); err == nil {
		t.Error("a negative size was accepted")
	}
	if used := d.Memory().Used; used != 0 {
		t.Errorf("%d bytes in use after all was freed", used)
	}
	for _, node := range []int{-1, 3} {
		if _, err := d.AllocOn(node, 1); err == nil {
			t.Errorf("memory of node %d", node)
		}
		if _, err := d.PlacementOn(node); err == nil {
			t.Errorf("placement on node %d", node)
		}
		if err := d.CopyOn(node, nil, 0, nil); err == nil {
			t.Errorf("copy on node %d", node)
		}
	}
	if n := d.Notices(); n != nil {
		t.Errorf("%v", n)
	}
}

func TestCopyOn(t *testing.T) {
	d, _ := open(t, cpu.Options{Nodes: fakes(t, "1x2,1x1")})
	const n = 17<<20 + 1 // three pieces
	src := make([]byte, n)
	r := kerneltest.Rand(1)
	for i := range src {
		src[i] = byte(r.Uint32())
	}
	for node := range d.Nodes() {
		b, err := d.AllocOn(node, n+10)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Free()
		if err := d.CopyOn(node, b, 7, src); err != nil {
			t.Fatal(err)
		}
		host := b.Host()
		if !slices.Equal(host[7:7+n], src) || slices.ContainsFunc(host[:7], func(v byte) bool { return v != 0 }) || host[n+7] != 0 {
			t.Errorf("node %d: not what was copied", node)
		}
		for _, at := range []int{-1, 11, n + 11, int(^uint(0) >> 1)} {
			if err := d.CopyOn(node, b, at, src); err == nil {
				t.Errorf("a copy to byte %d", at)
			}
		}
	}
}
