//go:build cuda

package local

import (
	"slices"
	"testing"

	"krater/actors/local/config"
	"krater/kernels/cuda/driver"
)

// TestHelperOnGPUs: a helper on a second GPU gives the answers of one GPU, with sums that come back and with rows.
func TestHelperOnGPUs(t *testing.T) {
	if err := Usable(); err != nil {
		t.Skip(err)
	}
	if n, err := driver.Count(); err != nil || n < 2 {
		t.Skip(n, err)
	}
	for _, same := range []bool{false, true} {
		var want [][]int32
		for _, helper := range []string{"", "cuda:1"} {
			m := openPart(t, "cuda", nil, func(o *config.Options) {
				o.DecodeStrategy, o.PrefillStrategy, o.NoMeasure, o.GPUPrefillThreshold = config.Auto, config.Auto, true, 8
				if o.SameTokens = same; same {
					o.GPUExpertBits, o.CPUExpertBits, o.GroupSize = "4", "4", "64"
				}
				if o.ExpertDevice = helper; helper != "" {
					o.ExpertShare = 50
				}
			})
			got := answers(t, m, 1, 4, nil)
			if (m.Helper != nil) != (helper != "") {
				t.Errorf("helper %q: %v", helper, m.Helper)
			}
			if want == nil {
				want = got
			}
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("same tokens %t, helper %q: %v, want %v", same, helper, got, want)
			}
			m.Close()
		}
	}
}
