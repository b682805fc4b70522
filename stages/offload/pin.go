package offload

import (
	"fmt"
	"sync"
)

// unpinned counts host memory that could not be pinned, so that copies of it are slower.
type unpinned struct {
	mu    sync.Mutex
	bytes int64
	why   error // the first refusal
}

// pin lets the device copy b in place. b is host memory that is copied often. If the device refuses,
// copies go through a stream's own buffers, and Notices says so.
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

// Notices returns lines about parts that work in a slower way than planned.
func (x *Experts) Notices() []string {
	x.plain.mu.Lock()
	defer x.plain.mu.Unlock()
	if x.plain.why == nil {
		return nil
	}
	return []string{fmt.Sprintf("%d bytes of host memory are not pinned, copies of them are slower: %v", x.plain.bytes, x.plain.why)}
}
