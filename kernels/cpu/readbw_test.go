package cpu_test

import (
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
)

func TestReadBandwidth(t *testing.T) {
	for _, l := range []level.Level{level.Pure, level.Best()} {
		d, _ := open(t, cpu.Options{Level: l})
		rate, err := d.ReadBandwidth(2)
		if err != nil {
			t.Fatal(err)
		}
		// Wide of any machine this runs on: it shows a wrong unit or a loop that was optimised
		// away.
		if rate.Median < 100e6 || rate.Best < rate.Median || rate.Best > 10e12 || rate.Windows < 20 {
			t.Errorf("%s: %+v", l, rate)
		}
	}
	d, _ := open(t, cpu.Options{})
	if _, err := d.ReadBandwidth(0); err == nil {
		t.Error("no threads were accepted")
	}
}

func BenchmarkReadBandwidth(b *testing.B) {
	d, _ := open(b, cpu.Options{})
	for b.Loop() {
		one, err := d.ReadBandwidth(1)
		if err != nil {
			b.Fatal(err)
		}
		two, err := d.ReadBandwidth(2)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(one.Median/1e9, "1T-GB/s")
		b.ReportMetric(one.Best/1e9, "1T-best-GB/s")
		b.ReportMetric(two.Median/1e9, "2T-GB/s")
		b.ReportMetric(two.Best/1e9, "2T-best-GB/s")
	}
}
