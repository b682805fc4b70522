package cuda

import (
	"strings"
	"testing"

	"krater/kernels/device"
)

// TestCheckNamesFields: what no kernel computes is refused by the fields of config.json.
func TestCheckNamesFields(t *testing.T) {
	s := &device.StepSizes{Streams: 4, Mixed: true, Taps: device.TapConv{Taps: 16, Step: 16}, Index: device.Index{Heads: 32, Dim: 128, TopK: 512, Pool: 4}, Delta: device.DeltaNet{KeyDim: 128, Floor: -5},
		Blocks: device.BlockIndex{Heads: 4, Dim: 128, Chosen: 8194, Local: 1}}
	err := Layout{}.Check(s)
	for _, field := range []string{"sparse_topk_blocks", "ple_conv_kernel_size"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
	if err := (Layout{}).Check(&device.StepSizes{Streams: 4, Taps: device.TapConv{Taps: 4, Step: 3}, Index: device.Index{Heads: 64, Dim: 128, TopK: 2048}, Delta: device.DeltaNet{KeyDim: 128},
		Blocks: device.BlockIndex{Heads: 4, Dim: 128, Chosen: 16, Local: 1}}); err != nil {
		t.Error(err)
	}
}
