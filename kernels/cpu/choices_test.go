package cpu_test

import (
	"strings"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/cpu/level"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/ref"
	"krater/kernels/tensor"
)

// The environment fixes the prefetch; for every value the results have the bits of ref.
func TestPrefetchIsChosenAndChangesNothing(t *testing.T) {
	const n, k, group = 50, 256, 128
	x, want := kerneltest.Normal(kerneltest.Rand(1), k, 1), make([]float32, n)
	for name, distance := range map[string]int{"0": 0, "64": 64, "8192": 8192} {
		t.Setenv(cpu.EnvPrefetch, name)
		forLevels(t, func(t *testing.T, d *cpu.Device, s device.Stream) {
			c := d.Choices()
			if c.PrefetchFine != distance || c.PrefetchCoarse != distance || !strings.Contains(c.String(), "prefetch "+name+" bytes") {
				t.Errorf("choices are %s", c)
			}
			w, rw := newQMat(d, 2, n, k, tensor.INT4, group)
			ref.MatMulQ(want, ref.QuantizeRows(x, k, group), rw)
			got := make([]float32, n)
			d.MatMulQ(s, f32s(d, got, 1, n), quantized(d, s, x, 1, k, group), w)
			if err := kerneltest.SameBits(got, want); err != nil {
				t.Error(err)
			}
		})
	}
	for _, bad := range []string{"-1", "t0", "65537"} {
		t.Setenv(cpu.EnvPrefetch, bad)
		if _, err := cpu.New(cpu.Options{}); err == nil || !strings.Contains(err.Error(), cpu.EnvPrefetch) {
			t.Errorf("%q gives error %v", bad, err)
		}
	}
}

// A processor without VNNI is not said to have it.
func TestChoicesWithoutVNNI(t *testing.T) {
	defer level.WithoutVNNI()()
	forLevels(t, func(t *testing.T, d *cpu.Device, _ device.Stream) {
		if d.Choices().VNNI {
			t.Errorf("choices are %s", d.Choices())
		}
	})
}
