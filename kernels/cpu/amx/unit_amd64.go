//go:build linux && amd64 && !purego

package amx

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/unix"
)

// enable asks the kernel for the tile registers, once for the whole process. It refuses when some
// thread has too small an alternate signal stack; Go's are large enough.
var enable = sync.OnceValue(func() error {
	if os.Getenv(EnvAMX) == "off" {
		return errors.New(EnvAMX + " is off")
	}
	if !cpuid.CPU.Supports(cpuid.AMXTILE, cpuid.AVX512F, cpuid.AVX512BW) {
		return errors.New("the processor has no AMX")
	}
	const reqXCompPerm, tileData = 0x1023, 18 // arch_prctl(2), the state component
	if _, _, e := unix.RawSyscall(unix.SYS_ARCH_PRCTL, reqXCompPerm, tileData, 0); e != 0 {
		return fmt.Errorf("the kernel does not permit tile registers: %w", e)
	}
	return nil
})

// Int8 is nil when products of bytes can be used, else says why not.
func Int8() error { return with(cpuid.AMXINT8, "products of bytes") }

// BF16 is nil when products of BF16 can be used, else says why not.
func BF16() error { return with(cpuid.AMXBF16, "products of BF16") }

func with(feature cpuid.FeatureID, what string) error {
	if err := enable(); err != nil {
		return err
	}
	if !cpuid.CPU.Supports(feature) {
		return errors.New("AMX has no " + what + " here")
	}
	return nil
}
