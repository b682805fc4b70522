//go:build cuda

package rt

import (
	"fmt"

	"gorgonia.org/cu"

	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/launch"
)

// modules finds kernels by number. It belongs to the owner's thread.
type modules struct {
	mods      []cu.Module
	found     []*function // by launch.Kernel; nil: not looked up yet
	hopper    bool
	sharedMax int
}

// function is a kernel of a loaded module.
type function struct {
	fn     cu.Function
	sizes  []int // of its parameters
	shared uint32
	max    int
}

// staticShared is the shared memory that every launch may use without a request.
const staticShared = 48 << 10

func (m *modules) load(images []string) error {
	for i, image := range images {
		mod, err := cu.LoadData(image)
		if err != nil {
			return fmt.Errorf("kernels, part %d of %d: %w", i+1, len(images), err)
		}
		m.mods = append(m.mods, mod)
	}
	return nil
}

func (m *modules) function(k launch.Kernel) (*function, error) {
	if int(k) < len(m.found) && m.found[k] != nil {
		return m.found[k], nil
	}
	name := k.String()
	for _, mod := range m.mods {
		fn, err := mod.Function(name)
		if driver.NotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		s, err := sizes(fn)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		f := &function{fn: fn, sizes: s, shared: staticShared, max: m.sharedMax}
		for len(m.found) <= int(k) {
			m.found = append(m.found, nil)
		}
		m.found[k] = f
		return f, nil
	}
	return nil, fmt.Errorf("no kernel %s in the loaded modules", name)
}

// fits checks arguments against the kernel's own parameters: a driver would read past the end of
// a wrong one.
func (f *function) fits(args []launch.Arg) error {
	if len(args) != len(f.sizes) {
		return fmt.Errorf("takes %d arguments, got %d", len(f.sizes), len(args))
	}
	for i := range args {
		if args[i].Size() != f.sizes[i] {
			return fmt.Errorf("argument %d has %d bytes, want %d", i, args[i].Size(), f.sizes[i])
		}
	}
	return nil
}

// room lets launches use n bytes of dynamic shared memory.
func (f *function) room(n uint32) error {
	if n <= f.shared {
		return nil
	}
	if int(n) > f.max {
		return fmt.Errorf("%d bytes of shared memory, the GPU has %d", n, f.max)
	}
	if err := driver.SetMaxDynamicShared(f.fn, int(n)); err != nil {
		return err
	}
	f.shared = n
	return nil
}
