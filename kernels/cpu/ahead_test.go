package cpu

import (
	"testing"

	"krater/kernels/device"
	"krater/kernels/tensor"
)

// An operator that reads no weights has the workers ask for those of the first one after it that does, once.
func TestLookAhead(t *testing.T) {
	d, err := New(Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	own, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	s := own.(*Stream)
	s.team = newTeam(2, false) // whose workers take nothing
	mat := func(rows, cols int) device.Mat {
		m, err := device.AllocMat(d, tensor.F32, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	x, out, norm := mat(1, 40), mat(1, 1300), mat(1, 40)
	w := device.Weight{F: mat(1300, 40)}
	var l device.List
	l.RMSNorm(x, x, norm, 1)
	l.Add(x, norm)
	l.MatMul(out, x, device.QRows{}, &w)
	pieces := func() (n int) {
		for s.team.ahead.fetch() {
			n++
		}
		return n
	}
	s.lookAhead(l)
	if got, want := pieces(), (w.Bytes()+aheadPiece-1)/aheadPiece; got != want {
		t.Errorf("%d pieces of %d bytes, want %d", got, w.Bytes(), want)
	}
	if s.lookAhead(l.From(1)); pieces() != 0 {
		t.Error("the same weights again")
	}
	s.lookAhead(l.From(2))
	s.lookAhead(l)
	if s.lookAhead(l.From(2)); pieces() != 0 {
		t.Error("a product has begun, and workers still ask for its weights")
	}
	many := device.Weight{F: mat(40, 40)}
	var prompt device.List
	prompt.RMSNorm(x, x, norm, 1)
	prompt.MatMul(mat(9, 40), mat(9, 40), device.QRows{}, &many)
	if s.lookAhead(prompt); pieces() != 0 {
		t.Error("weights of many rows")
	}
}
