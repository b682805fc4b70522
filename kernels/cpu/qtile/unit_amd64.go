//go:build linux && amd64 && !purego

package qtile

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/unix"
)

// Available is nil when the unit can be used, else says why not. The first call
// asks the kernel for the tile registers, for the whole process. It refuses when
// some thread has too small an alternate signal stack; Go's are large enough.
var Available = sync.OnceValue(func() error {
	if os.Getenv(EnvAMX) == "off" {
		return errors.New(EnvAMX + " is off")
	}
	if !cpuid.CPU.Supports(cpuid.AMXTILE, cpuid.AMXINT8, cpuid.AVX512F, cpuid.AVX512BW) {
		return errors.New("the processor has no AMX with INT8")
	}
	const reqXCompPerm, tileData = 0x1023, 18 // arch_prctl(2), the state component
	if _, _, e := unix.RawSyscall(unix.SYS_ARCH_PRCTL, reqXCompPerm, tileData, 0); e != 0 {
		return fmt.Errorf("the kernel gives no tile registers: %w", e)
	}
	return nil
})

func int4Blocks(t *Tile) { int4BlocksAMX(t) }
