// Package level says which vector instructions the kernels may use. The machine is probed once;
// KRATER_CPU_LEVEL lowers the choice. Without assembly (tag purego, or another architecture than
// amd64) only Pure exists.
package level

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/klauspost/cpuid/v2"
)

// Level is a set of instructions. Of two levels that a machine has, the later one is the faster.
type Level uint8

const (
	Auto    Level = iota // the active level; never the answer of Active
	Pure                 // portable Go
	AVX2                 // AVX2, FMA3, BMI2 and F16C, 256 bits
	AVXVNNI              // and AVX-VNNI: integer dot products of 256 bits. All else is as on AVX2
	AVX512               // those of AVX2, and AVX-512 F, BW, DQ and VL, 512 bits
)

// Features returns what a processor must have to run a level.
func (l Level) Features() []cpuid.FeatureID {
	narrow := []cpuid.FeatureID{cpuid.AVX2, cpuid.FMA3, cpuid.BMI2, cpuid.F16C}
	switch l {
	case AVX2:
		return narrow
	case AVXVNNI:
		return append(narrow, cpuid.AVXVNNI)
	case AVX512:
		return append(narrow, cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL)
	}
	return nil
}

// Floats returns the level whose kernels of floats l has: AVX-VNNI brings integers only.
func (l Level) Floats() Level {
	if l == AVXVNNI {
		return AVX2
	}
	return l
}

// EnvLevel is the environment variable that lowers the level.
const EnvLevel = "KRATER_CPU_LEVEL"

// String returns the name Parse takes.
func (l Level) String() string {
	switch l {
	case Auto:
		return "auto"
	case Pure:
		return "pure"
	case AVX2:
		return "avx2"
	case AVXVNNI:
		return "avxvnni"
	case AVX512:
		return "avx512"
	}
	return fmt.Sprintf("Level(%d)", uint8(l))
}

// Parse returns the inverse of String; the empty string is Auto.
func Parse(name string) (Level, error) {
	if name == "" {
		return Auto, nil
	}
	for l := Auto; l <= AVX512; l++ {
		if name == l.String() {
			return l, nil
		}
	}
	return Auto, fmt.Errorf("CPU level %q is none of auto, pure, avx2, avxvnni, avx512", name)
}

var state struct {
	sync.Mutex
	probed bool
	best   Level
	active Level // Auto: not yet chosen
}

// Best returns the highest level this machine and this build can run.
func Best() Level {
	state.Lock()
	defer state.Unlock()
	return best()
}

func best() Level {
	if !state.probed {
		state.best, state.probed = probe(), true
	}
	return state.best
}

// Active returns the level to use: the best one, unless the environment lowers it. An unknown or
// unavailable value of the environment is an error.
func Active() (Level, error) {
	state.Lock()
	defer state.Unlock()
	if state.active != Auto {
		return state.active, nil
	}
	want, err := Parse(os.Getenv(EnvLevel))
	if err != nil {
		return Auto, fmt.Errorf("%s: %w", EnvLevel, err)
	}
	if want == Auto {
		want = best()
	}
	if !available(want, best()) {
		return Auto, fmt.Errorf("%s: level %s is not available here, the best is %s", EnvLevel, want, best())
	}
	state.active = want
	return want, nil
}

// Resolve turns Auto into the active level and refuses what cannot run here.
func Resolve(l Level) (Level, error) {
	if l == Auto {
		return Active()
	}
	if !available(l, Best()) {
		return Auto, fmt.Errorf("CPU level %s is not available here, the best is %s", l, Best())
	}
	return l, nil
}

// VNNI reports whether this machine has the integer dot products of AVX-512 (VPDPBUSD). It is a
// property of level AVX512, not a level: without it only the integer kernels fall back to AVX2.
func VNNI() bool { return !withoutVNNI.Load() && vnni() }

// VBMI reports whether this machine has permutations of bytes (AVX-512 VBMI) and the products of
// bit matrices (GFNI) that come with them. Where it has not, or is to be without VNNI, kernels that
// look bytes up in tables fall back to AVX2.
func VBMI() bool { return !withoutVNNI.Load() && vbmi() }

var withoutVNNI atomic.Bool

// WithoutVNNI hides VNNI from devices made afterwards, and returns a function that restores it. It
// is for tests.
func WithoutVNNI() (restore func()) {
	before := withoutVNNI.Swap(true)
	return func() { withoutVNNI.Store(before) }
}

// Available lists the levels that can run here, lowest first.
func Available() []Level {
	var all []Level
	for l := Pure; l <= Best(); l++ {
		if available(l, Best()) {
			all = append(all, l)
		}
	}
	return all
}

// available reports whether l can run where best is the highest level.
func available(l, best Level) bool { return l <= best && (l != AVXVNNI || avxvnni()) }
