package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"krater/kernels/cpu/axpy"
	"krater/kernels/cpu/blockdot"
	"krater/kernels/cpu/btile"
	"krater/kernels/cpu/convert"
	"krater/kernels/cpu/delta"
	"krater/kernels/cpu/dot"
	"krater/kernels/cpu/exp"
	"krater/kernels/cpu/index"
	"krater/kernels/cpu/level"
	"krater/kernels/cpu/norm"
	"krater/kernels/cpu/qdot"
	"krater/kernels/cpu/qrows"
	"krater/kernels/cpu/rope"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Options say how a Device is made. The zero value is a good default.
type Options struct {
	Name    string      // "cpu" when empty
	Threads int         // callers included; 0: GOMAXPROCS. With Nodes 0, or the sum of theirs
	Nodes   []Node      // where threads and memory are bound to; none: nowhere, the system moves both
	Budget  int64       // bytes Alloc may hand out; 0: unlimited
	Level   level.Level // level.Auto: the best one, or KRATER_CPU_LEVEL
	// TileBF16 has MatMul and FFN multiply BF16 weights on the tile unit (AMX), for every number of
	// rows, and MLAPrefill attend on it (prefillUnit); New fails where there is none, but for level.Pure, which computes the same in
	// plain Go. Activations count with 16 of their 24 bits, so results differ from those without it; see package btile.
	TileBF16 bool
}

// Device computes on host memory. All methods but the operators are safe for concurrent use; an
// operator belongs to its Stream.
type Device struct {
	name   string
	level  level.Level
	budget int64
	team   *Team  // all threads
	homes  []home // at least one
	wakeNs int    // see the constant
	speed  speed
	fetch  prefetch
	unit   unitUse

	tileBF16 bool // see Options

	slabs   slabs
	used    atomic.Int64
	scratch atomic.Int64
	closed  atomic.Bool

	mu      sync.Mutex
	notices []string
	pieces  [][]byte // scratch of the nodes' streams, mapped

	btile   *btile.Funcs
	dot     *dot.Funcs
	axpy    *axpy.Funcs
	convert *convert.Funcs
	norm    *norm.Funcs
	exp     *exp.Funcs
	rope    *rope.Funcs
	delta   *delta.Funcs
	index   *index.Funcs
	qdot    qdot.Funcs
	qrows   *qrows.Funcs

	blockdot *blockdot.Funcs

	encodings map[*tensor.Encoding]*encodingKernels
}

// Assumed speeds of one core, by which the device decides whether work is worth sharing: weights
// from memory, and the multiply-adds of a tile; then the same for integer weights.
type speed struct{ bytesPerNs, flopsPerNs, quantBytesPerNs, quantOpsPerNs int }

var speeds = [...]speed{level.Pure: {2, 2, 1, 1}, level.AVX2: {30, 80, 30, 200}, level.AVXVNNI: {30, 80, 30, 250}, level.AVX512: {30, 90, 30, 350}}

var _ device.Device = (*Device)(nil)

// New makes a device and starts Threads-1 resident workers. It fails when the level asked for (or
// named by the environment) is unknown or not available, and when nodes overlap, have more threads
// than processors, or processors that this process may not use. See Processors about nodes.
func New(o Options) (*Device, error) {
	l, err := level.Resolve(o.Level)
	if err != nil {
		return nil, err
	}
	if o.Threads < 0 || o.Budget < 0 {
		return nil, fmt.Errorf("cpu: %d threads, budget of %d bytes: neither may be negative", o.Threads, o.Budget)
	}
	if err := checkNodes(o.Nodes); err != nil {
		return nil, err
	}
	if n := threadsOf(o.Nodes); n > 0 && o.Threads > 0 && o.Threads != n {
		return nil, fmt.Errorf("cpu: %d threads, the nodes have %d", o.Threads, n)
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if len(o.Nodes) == 0 {
		o.Nodes = []Node{{Threads: o.Threads, Fake: true}}
	}
	if o.Name == "" {
		o.Name = "cpu"
	}
	if o.TileBF16 && l != level.Pure {
		if err := btile.Available(); err != nil {
			return nil, fmt.Errorf("cpu: BF16 on the tile unit: %w", err)
		}
	}
	fetch, err := prefetchChoice()
	if err != nil {
		return nil, err
	}
	d := &Device{
		name: o.Name, level: l, budget: o.Budget, wakeNs: wakeNs, speed: speeds[l],
		btile: btile.At(l), dot: dot.At(l), axpy: axpy.At(l), convert: convert.At(l),
		norm: norm.At(l), exp: exp.At(l), rope: rope.At(l), delta: delta.At(l), index: index.At(l), qdot: qdot.At(l), qrows: qrows.At(l), blockdot: blockdot.At(l),
		fetch: fetch, tileBF16: o.TileBF16, unit: unitFor(l),
	}
	d.encodings = kernelTable(d.qdot, d.blockdot, d.convert)
	d.team, d.homes = settle(o.Nodes)
	for i := range d.homes {
		if err := d.homes[i].crew.failure; err != nil {
			d.notice(fmt.Sprintf("threads of node %d are not bound to it: %v", d.homes[i].ID, err))
		}
	}
	return d, nil
}

// Name is "cpu" or Options.Name.
func (d *Device) Name() string { return d.name }

// Level returns the instruction level in use.
func (d *Device) Level() level.Level { return d.level }

// Team returns all threads, which run the operators of a plain stream. Callers may use it for their
// own work.
func (d *Device) Team() *Team { return d.team }

// Memory counts what Alloc has handed out.
func (d *Device) Memory() device.Memory {
	return device.Memory{Total: d.budget, Used: d.used.Load()}
}

// Scratch returns the number of bytes the streams' scratch holds, outside the budget.
func (d *Device) Scratch() int64 { return d.scratch.Load() }

// Close ends the workers. No operator may be running or run afterwards. Buffers stay readable until
// they are freed.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return errors.New("cpu: device closed twice")
	}
	d.team.Close()
	d.dropScratch()
	return nil
}
