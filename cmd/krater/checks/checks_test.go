package checks

import (
	"errors"
	"strings"
	"testing"

	"krater/kernels/cuda"
	"krater/kernels/cuda/driver"
)

// TestDoctorWithoutGPU: what is missing is said: a build for it, the driver, a GPU, or nothing.
func TestDoctorWithoutGPU(t *testing.T) {
	for _, x := range []struct {
		missing            error
		value, recommended string
	}{
		{cuda.ErrNotBuilt, "none", "this build computes on the CPU"},
		{driver.ErrNoDriver, "none: no CUDA driver on this machine", "--device cuda needs a GPU and its driver"},
		{errors.New("cuDeviceGetCount: CUDA_ERROR_NO_DEVICE"), "none: cuDeviceGetCount: CUDA_ERROR_NO_DEVICE", "--device cuda needs"},
		{nil, "the driver reports one", "link"},
	} {
		if c := checkNoGPU(x.missing); !c.OK || !strings.HasPrefix(c.Value, x.value) || !strings.Contains(c.Recommended, x.recommended) {
			t.Errorf("%v: %+v", x.missing, c)
		}
	}
}
