//go:build cuda

package rt

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/pool"
	"krater/kernels/device"
)

// ErrLost means that a fault of a kernel or of the hardware has ended the GPU's context: this
// process cannot use anything on the GPU any more.
var ErrLost = errors.New("the GPU's context is lost")

// Options say how a GPU is opened.
type Options struct {
	Index int
	// Images returns the kernels for a compute capability (90 for 9.0): cubins or PTX.
	Images func(capability int) ([]string, error)
	// Portable makes a GPU run the kernels of compute capability 8.6, 8.9 or 12.0: those for
	// compute_80, in blocks with at most PortableShared bytes of shared memory.
	Portable bool
	// Graphs is the number of instantiated graphs that a stream keeps; 0: the default, below 0:
	// none.
	Graphs int
	// Exact makes every buffer an allocation of exactly its size. It is for tests with a driver
	// that guards the ends of allocations.
	Exact bool
}

// PortableShared is the shared memory that a block can have on every GPU from compute capability
// 8.0 on.
const PortableShared = 99 << 10

// GPU is an opened GPU.
type GPU struct {
	owner *driver.Owner
	info  launch.GPU
	graph int
	kept  atomic.Int64 // graphs of all streams
	pins  pins

	// The owner's thread only.
	dev    cu.Device
	ctx    cu.CUContext
	clears cu.Stream // clears new memory
	mods   modules
	mem    *pool.Pool
	run    runner
	events []cu.Event // made and not in use
	clocks []cu.Event // the same, with a time; under mu

	mu    sync.Mutex
	lost  error
	total int64
}

// Graphs returns the number of instantiated graphs that all streams keep now.
func (c *GPU) Graphs() int { return int(c.kept.Load()) }

// Open opens a GPU. Without a driver or a GPU the error says which is missing.
func Open(o Options) (*GPU, error) {
	owner, err := driver.NewOwner(o.Index)
	if err != nil {
		return nil, err
	}
	c := &GPU{owner: owner, graph: o.Graphs}
	if c.graph == 0 {
		c.graph = launch.GraphsKept
	}
	if err := owner.Do(func() error { return c.open(o) }); err != nil {
		owner.Close()
		return nil, fmt.Errorf("GPU %d: %w", o.Index, err)
	}
	return c, nil
}

func (c *GPU) open(o Options) error {
	var err error
	if c.dev, err = cu.GetDevice(o.Index); err != nil {
		return err
	}
	if c.ctx, err = cu.CurrentContext(); err != nil {
		return err
	}
	if c.clears, err = cu.MakeStream(cu.NonBlocking); err != nil {
		return err
	}
	attr := func(a cu.DeviceAttribute) int {
		v, e := c.dev.Attribute(a)
		if e != nil && err == nil {
			err = e
		}
		return v
	}
	capability := 10*attr(cu.ComputeCapabilityMajor) + attr(cu.ComputeCapabilityMinor)
	c.info = launch.GPU{
		SMs:       attr(cu.MultiprocessorCount),
		Hopper:    capability == 90,
		SharedMax: attr(sharedOptin),
	}
	if err != nil {
		return err
	}
	if c.info.Name, err = c.dev.Name(); err != nil {
		return err
	}
	if capability < 80 {
		return fmt.Errorf("%s has compute capability %d.%d, 8.0 is needed", c.info.Name, capability/10, capability%10)
	}
	if o.Portable {
		capability, c.info.Hopper, c.info.SharedMax = 80, false, min(c.info.SharedMax, PortableShared)
	}
	if c.total, err = c.dev.TotalMem(); err != nil {
		return err
	}
	images := []string{c.info.Name} // the emulator contains its kernels
	if !strings.HasPrefix(c.info.Name, emulator) {
		if images, err = o.Images(capability); err != nil {
			return err
		}
	}
	c.mods = modules{hopper: c.info.Hopper, sharedMax: c.info.SharedMax}
	c.mem = pool.New(source{})
	if o.Exact {
		c.mem = pool.NewExact(source{})
	}
	return c.mods.load(images)
}

// emulator begins the name of the GPU of kernels/cuda/emu.
const emulator = "Krater emulated"

// Emulated reports whether the GPU is the emulator, whose times mean nothing.
func (c *GPU) Emulated() bool { return strings.HasPrefix(c.info.Name, emulator) }

// spin returns how long the owner polls for the next job while a step is in progress. It is 0 for
// the emulator, which needs the same processor.
func (c *GPU) spin() time.Duration {
	if c.Emulated() {
		return 0
	}
	return stepSpin
}

// sharedOptin is CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN.
const sharedOptin cu.DeviceAttribute = 97

// Info returns the properties on which the choice of kernels depends.
func (c *GPU) Info() launch.GPU { return c.info }

// Total returns the GPU's memory in bytes.
func (c *GPU) Total() int64 { return c.total }

// Free returns the unused bytes of the GPU's memory.
func (c *GPU) Free() (free int64, err error) {
	err = c.do(func() error {
		free, _, err = cu.MemInfo()
		return err
	})
	return free, err
}

// Close closes the GPU. Its streams must be idle.
func (c *GPU) Close() error {
	err := c.owner.Do(func() error {
		for i := range c.events {
			_ = cu.DestroyEvent(&c.events[i]) // the context ends anyway
		}
		c.events = nil
		c.mu.Lock()
		for i := range c.clocks {
			_ = cu.DestroyEvent(&c.clocks[i])
		}
		c.clocks = nil
		c.mu.Unlock()
		_ = c.clears.Destroy() // as the events
		return c.mem.Close()
	})
	c.owner.Close()
	if c.Err() != nil {
		return nil // memory of a lost GPU cannot be freed
	}
	return err
}

// Err returns why the GPU is lost, nil while it works.
func (c *GPU) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Owner returns the thread that talks to the GPU, for measurements.
func (c *GPU) Owner() *driver.Owner { return c.owner }

// do runs f on the owner's thread. After a fault that ends the context, every call returns
// ErrLost.
func (c *GPU) do(f func() error) error {
	if err := c.Err(); err != nil {
		return err
	}
	err := c.owner.Do(f)
	if driver.Sticky(err) {
		c.mu.Lock()
		if c.lost == nil {
			c.lost = fmt.Errorf("%w: %w", ErrLost, err)
		}
		err = c.lost
		c.mu.Unlock()
	}
	return err
}

// source allocates memory for a pool from the driver.
type source struct{}

func (source) Alloc(n int64) (uint64, error) {
	p, err := cu.MemAlloc(n)
	return uint64(p), err
}

func (source) Free(at uint64) error { return cu.MemFree(cu.DevicePtr(at)) }

// Alloc returns n bytes of the GPU's memory, cleared unless raw. They are aligned to 256.
func (c *GPU) Alloc(n int64, raw bool) (launch.Ptr, error) {
	var at uint64
	err := c.do(func() error {
		var err error
		if at, err = c.mem.Alloc(n); err != nil || raw {
			return err
		}
		// Not on the legacy stream, with which the whole device would have to be waited for.
		if err = cu.MemsetD8Async(cu.DevicePtr(at), 0, c.mem.Takes(n), c.clears); err == nil {
			err = c.clears.Synchronize()
		}
		if err != nil {
			_ = c.mem.Free(at) // the first error counts
		}
		return err
	})
	if driver.OutOfMemory(err) {
		err = fmt.Errorf("%w: %w", device.ErrOutOfMemory, err)
	}
	return launch.Ptr(at), err
}

// Release frees memory. No work that uses it may be running.
func (c *GPU) Release(at launch.Ptr) error {
	return c.do(func() error { return c.mem.Free(uint64(at)) })
}

// MapHost allocates n bytes of host memory, cleared and aligned to a page, and returns the
// address at which kernels see it. It is pinned for every GPU (Share).
func (c *GPU) MapHost(n int) (host []byte, at launch.Ptr, err error) {
	err = c.do(func() error {
		b, err := driver.HostAlloc(n, driver.Portable|driver.DeviceMap)
		if err != nil {
			return err
		}
		p, err := driver.HostDevicePtr(b)
		if err != nil {
			_ = driver.HostFree(b) // the first error counts
			return err
		}
		host, at = b, launch.Ptr(p)
		return nil
	})
	return host, at, err
}

// FreeHost frees memory of MapHost. No work that uses it may be running.
func (c *GPU) FreeHost(host []byte) error {
	return c.do(func() error { return driver.HostFree(host) })
}

// Held returns the memory that the GPU's pool has allocated from the driver.
func (c *GPU) Held() (n int64) {
	_ = c.do(func() error { n = c.mem.Held(); return nil }) // a lost GPU holds nothing of use
	return n
}
