//go:build amd64 && !purego

package level

import "github.com/klauspost/cpuid/v2"

// probe asks the processor (and, through XGETBV, the operating system).
func probe() Level { return choose(cpuid.CPU.Supports) }

// choose returns the level of a machine; has reports its features.
func choose(has func(...cpuid.FeatureID) bool) Level {
	l := AVX512
	for l > Pure && !has(l.Features()...) {
		l--
	}
	return l
}

func avxvnni() bool { return cpuid.CPU.Supports(AVXVNNI.Features()...) }

func vnni() bool { return cpuid.CPU.Supports(cpuid.AVX512VNNI) }

func vbmi() bool { return cpuid.CPU.Supports(cpuid.AVX512VBMI, cpuid.GFNI) }
