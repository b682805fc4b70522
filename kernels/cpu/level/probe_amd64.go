//go:build amd64 && !purego

package level

import "github.com/klauspost/cpuid/v2"

// probe asks the processor (and, through XGETBV, the operating system).
func probe() Level { return choose(cpuid.CPU.Supports) }

// choose is the level of a machine that has what has says.
func choose(has func(...cpuid.FeatureID) bool) Level {
	switch {
	case has(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL, cpuid.AVX2, cpuid.FMA3, cpuid.BMI2):
		return AVX512
	case has(cpuid.AVX2, cpuid.FMA3, cpuid.BMI2):
		return AVX2
	}
	return Pure
}

func vnni() bool { return cpuid.CPU.Supports(cpuid.AVX512VNNI) }
