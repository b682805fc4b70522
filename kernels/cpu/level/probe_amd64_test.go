//go:build amd64 && !purego

package level

import (
	"slices"
	"testing"

	"github.com/klauspost/cpuid/v2"
)

// A level needs every one of its features: a processor (or an operating system that does not save
// wide registers) that lacks one gets the next lower level.
func TestChooseByFeatures(t *testing.T) {
	narrow := []cpuid.FeatureID{cpuid.AVX2, cpuid.FMA3, cpuid.BMI2, cpuid.F16C}
	wide := append(slices.Clone(narrow), cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL)
	of := func(features []cpuid.FeatureID) Level {
		return choose(func(ids ...cpuid.FeatureID) bool {
			for _, id := range ids {
				if !slices.Contains(features, id) {
					return false
				}
			}
			return true
		})
	}
	without := func(all []cpuid.FeatureID, i int) []cpuid.FeatureID { return slices.Delete(slices.Clone(all), i, i+1) }
	if l := of(wide); l != AVX512 {
		t.Errorf("all features give %s", l)
	}
	if l := of(narrow); l != AVX2 {
		t.Errorf("AVX2, FMA3, BMI2 and F16C give %s", l)
	}
	if l := of(append(slices.Clone(narrow), cpuid.AVXVNNI)); l != AVXVNNI {
		t.Errorf("AVX2's features and AVX-VNNI give %s", l)
	}
	for i := range wide {
		want := AVX2
		if i < len(narrow) {
			want = Pure
		}
		if l := of(without(wide, i)); l != want {
			t.Errorf("all but %s give %s, want %s", wide[i], l, want)
		}
	}
}
