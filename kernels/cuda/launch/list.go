// Package launch describes work for a GPU: a list of kernel launches with their arguments, as
// plain data. Making a list needs no driver, so tests on any machine can check the kernel for a
// shape, its grid and the order of launches. Package rt runs lists.
package launch

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
)

// Kernel is the number of a kernel's name in this process.
type Kernel uint32

var names struct {
	sync.Mutex
	list []string
	byID map[string]Kernel
}

// Named returns the kernel of a name: the extern "C" name in kernels/cuda/src. It is for package
// variables. A name that the loaded modules lack fails when it is run.
func Named(name string) Kernel {
	names.Lock()
	defer names.Unlock()
	if k, ok := names.byID[name]; ok {
		return k
	}
	if names.byID == nil {
		names.byID = map[string]Kernel{}
	}
	k := Kernel(len(names.list))
	names.list = append(names.list, name)
	names.byID[name] = k
	return k
}

// String returns the kernel's name.
func (k Kernel) String() string {
	names.Lock()
	defer names.Unlock()
	if int(k) < len(names.list) {
		return names.list[k]
	}
	return fmt.Sprintf("kernel %d", uint32(k))
}

// Kernels returns the number of names.
func Kernels() int {
	names.Lock()
	defer names.Unlock()
	return len(names.list)
}

// Dim is a grid or a block; a zero dimension means 1.
type Dim struct{ X, Y, Z uint32 }

// Config says how a kernel is launched.
type Config struct {
	Grid, Block Dim
	Shared      uint32 // dynamic shared memory, bytes
	// PDL lets the kernel start while its predecessor still runs, on GPUs that support this. It
	// must then call pdl_wait before it accesses memory that its predecessors write or read.
	PDL bool
}

// Arg is one argument of a kernel: a pointer or a number of fixed size.
type Arg struct {
	bits uint64
	size uint8
}

// Ptr is an address in the GPU's memory.
type Ptr uint64

// Range is a range of the GPU's memory.
type Range struct {
	At    Ptr
	Bytes int
}

// P is a pointer argument, I32 an int, U32 an unsigned, I64 a long long, F32 a float.
func P(p Ptr) Arg       { return Arg{uint64(p), 8} }
func I32(v int) Arg     { return Arg{uint64(uint32(int32(v))), 4} }
func U32(v uint32) Arg  { return Arg{uint64(v), 4} }
func I64(v int64) Arg   { return Arg{uint64(v), 8} }
func F32(v float32) Arg { return Arg{uint64(math.Float32bits(v)), 4} }

// Kind is the kind of an op.
type Kind uint8

const (
	Run  Kind = iota // a kernel
	Fill             // bytes of memory set to one value: Dst, Bytes, Value
	Copy             // Bytes from Src to Dst, both on the GPU
)

// Op is one entry of a list. Its arguments are in the list.
type Op struct {
	Kind   Kind
	Kernel Kernel
	Config Config
	First  int // index of the first argument in List.Args
	Count  int
	Dst    Ptr
	Src    Ptr
	Bytes  int64
	Value  byte
}

// List is a sequence of ops in the order in which they run. It belongs to one goroutine. Reset
// keeps its memory, so a list that is used again allocates nothing.
type List struct {
	Ops  []Op
	Args []Arg
}

// Reset empties the list.
func (l *List) Reset() { l.Ops, l.Args = l.Ops[:0], l.Args[:0] }

// Add appends a launch.
func (l *List) Add(k Kernel, c Config, args ...Arg) {
	l.Ops = append(l.Ops, Op{Kind: Run, Kernel: k, Config: c, First: len(l.Args), Count: len(args)})
	l.Args = append(l.Args, args...)
}

// Fill appends the setting of n bytes at dst.
func (l *List) Fill(dst Ptr, n int64, value byte) {
	l.Ops = append(l.Ops, Op{Kind: Fill, Dst: dst, Bytes: n, Value: value})
}

// Copy appends a copy of n bytes within the GPU.
func (l *List) Copy(dst, src Ptr, n int64) {
	l.Ops = append(l.Ops, Op{Kind: Copy, Dst: dst, Src: src, Bytes: n})
}

// OpArgs returns the arguments of an op.
func (l *List) OpArgs(o *Op) []Arg { return l.Args[o.First : o.First+o.Count] }

// Size returns the argument's size in bytes.
func (a Arg) Size() int { return int(a.size) }

// Put writes the argument to dst, little endian, and returns its size.
func (a Arg) Put(dst []byte) int {
	if a.size == 8 {
		binary.LittleEndian.PutUint64(dst, a.bits)
	} else {
		binary.LittleEndian.PutUint32(dst, uint32(a.bits))
	}
	return int(a.size)
}

// Same reports whether m does exactly the same as l: equal kernels, shapes and arguments in the
// same order.
func (l *List) Same(m *List) bool {
	if len(l.Ops) != len(m.Ops) || len(l.Args) != len(m.Args) {
		return false
	}
	for i := range l.Ops {
		if l.Ops[i] != m.Ops[i] {
			return false
		}
	}
	for i := range l.Args {
		if l.Args[i] != m.Args[i] {
			return false
		}
	}
	return true
}

// Hash is equal for lists that are Same.
func (l *List) Hash() uint64 {
	const prime = 0x9e3779b97f4a7c15
	h := uint64(len(l.Ops))
	mix := func(v uint64) {
		h = (h ^ v) * prime
		h ^= h >> 29
	}
	for i := range l.Ops {
		o := &l.Ops[i]
		mix(uint64(o.Kernel)<<32 | uint64(o.Config.Grid.X))
		mix(uint64(o.Config.Grid.Y)<<32 | uint64(o.Config.Grid.Z))
		mix(uint64(o.Dst) ^ uint64(o.Src)<<1 ^ uint64(o.Bytes)<<2)
	}
	for i := range l.Args {
		mix(l.Args[i].bits)
	}
	return h
}

// Clone returns a copy that does not change with l.
func (l *List) Clone() *List {
	return &List{Ops: append([]Op(nil), l.Ops...), Args: append([]Arg(nil), l.Args...)}
}
