package attention

import (
	"math"
	"testing"

	"krater/stages/internal/hosttest"
	"krater/stages/internal/refdevice"
	"krater/stages/model"
)

func TestRopeTable(t *testing.T) {
	cfg := &model.RopeConfig{Dim: 4, InvFreq: []float64{1, 0.25}, CosSinScale: 1.5}
	m, err := RopeTable(hosttest.Device{}, cfg, 3000)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []int{0, 1, 1023, 1024, 2999} {
		row := m.RowRange(p, p+1).F32s()
		for i, f := range cfg.InvFreq {
			cos, sin := 1.5*math.Cos(float64(p)*f), 1.5*math.Sin(float64(p)*f)
			if math.Abs(float64(row[2*i])-cos) > 1e-6 || math.Abs(float64(row[2*i+1])-sin) > 1e-6 {
				t.Errorf("position %d, frequency %v: got %v", p, f, row)
			}
		}
	}

	// A device with memory of its own gets the same bytes.
	hidden, err := RopeTable(refdevice.Device{}, cfg, 3000)
	if err != nil {
		t.Fatal(err)
	}
	s, err := refdevice.Device{}.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	back := make([]byte, hidden.Bytes())
	s.CopyOut(back, hidden)
	if err := s.Synchronize(); err != nil {
		t.Fatal(err)
	}
	if string(back) != string(m.Buf.Host()[:len(back)]) {
		t.Error("tables differ between devices")
	}
}
