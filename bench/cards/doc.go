// Package cards checks and times a GPU's operators, one by one at the sizes of a real
// model. A result is checked with poisoned outputs, new random inputs in every run, and
// samples compared with float64 on the host. A time is compared with what the GPU can do:
// bytes over the speed of a read, operations over the speed of its matrix units, both
// measured in the same run.
//
// A case is built from launches that package kernels/cuda/ops chooses, as the stages
// run them, so what is measured is what serves. Which kernels those are needs no GPU:
// tests know for every case whether it has a record for the present sources.
package cards

import (
	"math/rand/v2"

	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
)

// Case is an operator at a size.
type Case struct {
	Op    string // "mix"
	Shape string // "T=8 E=64 K=6 ..."
	DType string // of the weights, or of what is read most
	Bytes float64
	Flops float64
	// Rotate is the size of what a launch reads or writes: as many copies of the data take
	// turns as the cache cannot hold. Size is that of a copy, where it is more.
	Rotate, Size int
	// A sample is right within Rel*|want| + Abs*scale.
	Rel, Abs float64

	build func(d *desk) *job
}

// Name tells cases of a table apart.
func (c *Case) Name() string { return c.Op + " " + c.Shape + " " + c.DType }

// job is a case with its data in place.
type job struct {
	run   func(b *ops.Builder, copy int) // appends the launches over a copy's data
	outs  []data
	check func(read reader) []Sample
	// product is the whole case as one product of BF16, out = x * w^T; nil: it is not.
	product func(copy int) (out, x, w launch.Mat)
}

// reader gives the numbers of a matrix that is F32, BF16 or I32.
type reader func(m launch.Mat) []float64

// Sample is an output beside what float64 makes of the same inputs. Scale is about how
// large the sum's terms were together: an error is measured by it.
type Sample struct{ Got, Want, Scale float64 }

// desk is what a case is built on.
type desk struct {
	gpu    launch.GPU
	arena  arena
	rng    *rand.Rand
	copies int
}

// arena is where data lies: on a GPU, or nowhere.
type arena interface {
	// put gives room for copies of n bytes. Without fill they are poisoned; else all
	// are what fill makes of the first one, and host is that one. In a plan fill is not
	// called and host is nil.
	put(n, copies int, fill func(b []byte)) (at launch.Ptr, step int64, host []byte)
}

// Copies of a case's data take turns until the cache is sure to have forgotten the
// first: the largest cache of a GPU has 50 MB.
const (
	rotateBytes = 200 << 20
	copiesMax   = 128
	copiesBytes = 8 << 30 // of all copies, about
)

func (c *Case) copies() int {
	n := min(copiesMax, (rotateBytes+c.Rotate-1)/max(1, c.Rotate))
	return max(1, min(n, copiesBytes/max(1, c.Rotate, c.Size)))
}

// plan is an arena without a GPU.
type plan struct{ next launch.Ptr }

func (p *plan) put(n, copies int, _ func([]byte)) (launch.Ptr, int64, []byte) {
	step := (n + align - 1) / align * align
	at := max(p.next, align)
	p.next = at + launch.Ptr(step*copies)
	return at, int64(step), nil
}

// align is what every copy starts at.
const align = 256

// launches is what a case does on a GPU, without running it.
func (c *Case) launches(gpu launch.GPU) *launch.List {
	scratch := &plan{}
	d := &desk{gpu: gpu, arena: scratch, rng: rand.New(rand.NewPCG(1, 2)), copies: 1}
	var list launch.List
	c.build(d).run(&ops.Builder{GPU: gpu, List: &list, Turn: align, Scratch: func(n int) launch.Ptr {
		at, _, _ := scratch.put(n, 1, nil)
		return at
	}}, 0)
	return &list
}

// Kernels names what a case launches on a GPU, in order, without running it.
func (c *Case) Kernels(gpu launch.GPU) []string {
	var names []string
	for _, o := range c.launches(gpu).Ops {
		if o.Kind == launch.Run {
			names = append(names, o.Kernel.String())
		}
	}
	return names
}

// shared is the most shared memory that a block of a case asks for, bytes.
func (c *Case) shared(gpu launch.GPU) int {
	n := uint32(0)
	for _, o := range c.launches(gpu).Ops {
		n = max(n, o.Config.Shared)
	}
	return int(n)
}
