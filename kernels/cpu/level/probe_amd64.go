//go:build amd64 && !purego

package level

import "github.com/klauspost/cpuid/v2"

// probe asks the processor (and, through XGETBV, the operating system).
func probe() Level {
	switch {
	case cpuid.CPU.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL, cpuid.AVX2, cpuid.FMA3, cpuid.BMI2):
		return AVX512
	case cpuid.CPU.Supports(cpuid.AVX2, cpuid.FMA3, cpuid.BMI2):
		return AVX2
	}
	return Pure
}

func vnni() bool { return cpuid.CPU.Supports(cpuid.AVX512VNNI) }
