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

// ErrLost says that the GPU's context is gone after a fault of a kernel or of the
// hardware: nothing on it can be used any more in this process.
var ErrLost = errors.New("the GPU's context is lost")

// Options say how a GPU is opened.
type Options struct {
	Index int
	// Images give the kernels for a compute capability (90 for 9.0): cubins or PTX.
	Images func(capability int) ([]string, error)
	// Portable has a GPU run what one of compute capability 8.6, 8.9 or 12.0 would: the kernels
	// for compute_80, in blocks with at most PortableShared bytes of shared memory.
	Portable bool
	// Graphs is how many instantiated graphs a stream keeps; 0: the default, below 0: none
	// are made.
	Graphs int
	// Exact makes every buffer an allocation of its own, of just its size: for tests, with
	// a driver that guards the ends of allocations.
	Exact bool
}

// PortableShared is what a block can have of shared memory on every GPU from compute
// capability 8.0 on.
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
	mods   modules
	mem    *pool.Pool
	run    runner
	events []cu.Event // made and not in use
	clocks []cu.Event // the same, with a time; under mu

	mu    sync.Mutex
	lost  error
	total int64
}

// Graphs is how many instantiated graphs all streams keep now.
func (c *GPU) Graphs() int { return int(c.kept.Load()) }

// Open takes a GPU into use. Without a driver or a GPU the error says which.
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
	images := []string{c.info.Name} // of the emulator, which has its kernels in itself
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

// emulator is how the GPU of kernels/cuda/emu calls itself.
const emulator = "Krater emulated"

// Emulated reports whether the GPU is the emulator: it times nothing.
func (c *GPU) Emulated() bool { return strings.HasPrefix(c.info.Name, emulator) }

// spin is how long the owner looks for the next job while a step is in progress: not at all
// where the processor that would look is the one that emulates the GPU.
func (c *GPU) spin() time.Duration {
	if c.Emulated() {
		return 0
	}
	return stepSpin
}

// sharedOptin is CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN.
const sharedOptin cu.DeviceAttribute = 97

// Info is what the choice of kernels depends on.
func (c *GPU) Info() launch.GPU { return c.info }

// Total is the GPU's memory in bytes.
func (c *GPU) Total() int64 { return c.total }

// Free asks how many bytes of the GPU's memory nobody uses.
func (c *GPU) Free() (free int64, err error) {
	err = c.do(func() error {
		free, _, err = cu.MemInfo()
		return err
	})
	return free, err
}

// Close gives the GPU back. Its streams must be idle.
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
		return c.mem.Close()
	})
	c.owner.Close()
	if c.Err() != nil {
		return nil // what was lost cannot be freed
	}
	return err
}

// Err is why the GPU is lost, nil while it is well.
func (c *GPU) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Owner is the thread that talks to the GPU, for those who measure.
func (c *GPU) Owner() *driver.Owner { return c.owner }

// do runs f on the owner's thread. After a fault that ends the context everything
// answers ErrLost.
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

// source is the driver as a pool's.
type source struct{}

func (source) Alloc(n int64) (uint64, error) {
	p, err := cu.MemAlloc(n)
	return uint64(p), err
}

func (source) Free(at uint64) error { return cu.MemFree(cu.DevicePtr(at)) }

// Alloc gives n bytes of the GPU's memory, cleared unless raw. It is aligned to 256.
func (c *GPU) Alloc(n int64, raw bool) (launch.Ptr, error) {
	var at uint64
	err := c.do(func() error {
		var err error
		if at, err = c.mem.Alloc(n); err != nil || raw {
			return err
		}
		if err = cu.MemsetD8(cu.DevicePtr(at), 0, c.mem.Takes(n)); err == nil {
			err = cu.Synchronize() // the legacy stream does not order those that streams here are
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

// Release gives memory back. No work that uses it may be under way.
func (c *GPU) Release(at launch.Ptr) error {
	return c.do(func() error { return c.mem.Free(uint64(at)) })
}

// MapHost makes n bytes of host memory, cleared and aligned to a page, that kernels reach at
// the address it gives. For small mailboxes.
func (c *GPU) MapHost(n int) (host []byte, at launch.Ptr, err error) {
	err = c.do(func() error {
		b, err := driver.HostAlloc(n, driver.DeviceMap)
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

// FreeHost frees what MapHost made. No work that uses it may be under way.
func (c *GPU) FreeHost(host []byte) error {
	return c.do(func() error { return driver.HostFree(host) })
}

// Held is what the GPU's pool has from the driver.
func (c *GPU) Held() (n int64) {
	_ = c.do(func() error { n = c.mem.Held(); return nil }) // a lost GPU holds nothing of use
	return n
}
