// Package cards checks and times a GPU's operators, one by one, at the sizes of a real model. It
// checks a result with poisoned outputs, new random inputs in every run, and samples compared
// with float64 on the host. It compares a time with the GPU's limits, which it measures in the
// same run: bytes divided by the speed of reads, and operations divided by the speed of the
// matrix units.
//
// A case consists of launches that package kernels/cuda/ops chooses, as for the stages, so it
// measures the kernels that serve. The choice needs no GPU: tests find out for every case whether
// the current sources have a record.
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
	DType string // of the weights, or of the operand that is read most
	Bytes float64
	Flops float64
	// Rotate is the number of bytes that a launch reads or writes. There are enough copies of the
	// data to exceed the cache, and launches use them in turn. Size is the size of a copy, if
	// that is larger.
	Rotate, Size int
	// A sample is right within Rel*|want| + Abs*scale.
	Rel, Abs float64

	build func(d *desk) *job
}

// Name is unique among the cases of a table.
func (c *Case) Name() string { return c.Op + " " + c.Shape + " " + c.DType }

// job is a case whose data is in memory.
type job struct {
	run   func(b *ops.Builder, copy int) // appends the launches over a copy's data
	outs  []data
	check func(read reader) []Sample
	// product is the case as a single product of BF16, out = x * w^T; nil if it is not one.
	product func(copy int) (out, x, w launch.Mat)
}

// reader returns the numbers of a matrix of F32, BF16 or I32.
type reader func(m launch.Mat) []float64

// Sample is an output and its float64 value for the same inputs. Scale is about the sum of the
// sizes of the terms; errors are relative to it.
type Sample struct{ Got, Want, Scale float64 }

// desk has everything that the construction of a case needs.
type desk struct {
	gpu    launch.GPU
	arena  arena
	rng    *rand.Rand
	copies int
	plain  bool // the plain kernels compute the case
}

// arena allocates data on a GPU or, for a plan, nowhere.
type arena interface {
	// put allocates copies of n bytes. Without fill they are poisoned. Else all copies hold the
	// data that fill writes to the first one, and host is that data. A plan does not call fill,
	// and its host is nil.
	put(n, copies int, fill func(b []byte)) (at launch.Ptr, step int64, host []byte)
}

// Launches use the copies of a case's data in turn, so that the cache no longer has the first
// copy when it is used again. The largest cache of a GPU has 50 MB.
const (
	rotateBytes = 200 << 20
	copiesMax   = 128
	copiesBytes = 8 << 30 // of all copies, approximately
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

// align is the alignment of every copy.
const align = 256

// launches returns the launches of a case on a GPU, without running them.
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

// Kernels returns the names of the kernels that a case launches on a GPU, in order, without
// running it.
func (c *Case) Kernels(gpu launch.GPU) []string {
	var names []string
	for _, o := range c.launches(gpu).Ops {
		if o.Kind == launch.Run {
			names = append(names, o.Kernel.String())
		}
	}
	return names
}

// shared returns the most shared memory that a block of a case requests, in bytes.
func (c *Case) shared(gpu launch.GPU) int {
	n := uint32(0)
	for _, o := range c.launches(gpu).Ops {
		n = max(n, o.Config.Shared)
	}
	return int(n)
}
