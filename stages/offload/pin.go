package offload

import (
	"fmt"
	"sync"
)

// unpinned is host memory that the device copies from slower than it could.
type unpinned struct {
	mu    sync.Mutex
	bytes int64
	why   error // the first refusal
}

// pin has the device copy b, host memory of which it takes a lot again and again, from where it
// lies. Where that is refused copies go through a stream's own buffers: Notices tells.
func (x *Experts) pin(b []byte) (release func() error) {
	if x.accel == nil {
		return func() error { return nil }
	}
	release, err := x.accel.Pin(b)
	if err == nil {
		return release
	}
	x.plain.mu.Lock()
	defer x.plain.mu.Unlock()
	x.plain.bytes += int64(len(b))
	if x.plain.why == nil {
		x.plain.why = err
	}
	return func() error { return nil }
}

// Notices are lines about what works slower than it was meant to.
func (x *Experts) Notices() []string {
	x.plain.mu.Lock()
	defer x.plain.mu.Unlock()
	if x.plain.why == nil {
		return nil
	}
	return []string{fmt.Sprintf("%d bytes of host memory are not pinned, copies of them are slower: %v", x.plain.bytes, x.plain.why)}
}
