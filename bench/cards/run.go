//go:build cuda

package cards

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"krater/bench/stat"
	"krater/kernels/cuda/bin"
	"krater/kernels/cuda/cublaslt"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/ops"
	"krater/kernels/cuda/route"
	"krater/kernels/cuda/rt"
)

// At least this many launches of a case are timed together, this many times.
const (
	replaysMin = 20
	rounds     = 5
	graphLimit = 50 * time.Millisecond
)

// Run measures every case of the table.
func Run(o Options) (*Report, error) {
	r, err := open(o)
	if err != nil {
		return nil, err
	}
	defer r.close()
	sizes, known := Models()[cmp.Or(o.Model, "v2-lite")]
	if !known {
		return nil, fmt.Errorf("no sizes of a model %q", o.Model)
	}
	if o.Small {
		sizes = Small()
	} else if err := errors.Join(r.openLibrary(), r.ceilings(ceilingBytes, ceilingSteps)); err != nil {
		return nil, fmt.Errorf("ceilings: %w", err)
	}
	built, err := built()
	if err != nil {
		return nil, err
	}
	for _, c := range Table(sizes) {
		if o.Match != nil && !o.Match(c.Name()) {
			continue
		}
		row, err := r.row(c, built)
		if err != nil {
			return r.rep, fmt.Errorf("%s: %w", c.Name(), err) // the GPU may be lost
		}
		r.rep.Rows = append(r.rep.Rows, *row)
		if o.Progress != nil {
			o.Progress(row)
		}
	}
	return r.rep, r.trips()
}

func open(o Options) (*runner, error) {
	gpu, err := rt.Open(rt.Options{Index: o.Index, Images: bin.Images, Portable: o.Portable})
	if err != nil {
		return nil, err
	}
	r := &runner{gpu: gpu, opt: o, rep: &Report{Commit: o.Commit, GPU: gpu.Info().Name, Portable: o.Portable}}
	if r.s, err = gpu.NewStream(); err != nil {
		_ = gpu.Close() // the first error counts
		return nil, err
	}
	if r.turn, err = gpu.Alloc(route.TurnBytes, false); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *runner) close() {
	r.closeLibrary()
	r.s.Close()
	_ = r.gpu.Close() // the report has all results
}

// runner measures on one GPU. It is also an arena: data stays allocated until clear.
type runner struct {
	gpu     *rt.GPU
	s       *rt.Stream
	opt     Options
	rep     *Report
	owned   []launch.Ptr
	scratch launch.Ptr
	room    int
	turn    launch.Ptr // Turn of ops.Builder
	err     error
	library *cublaslt.Library // nil: not on this machine
}

// put allocates data on the GPU; the first error stays in r.err.
func (r *runner) put(n, copies int, fill func([]byte)) (launch.Ptr, int64, []byte) {
	step := int64(n+align-1) / align * align
	at := r.alloc(step * int64(copies))
	if r.err != nil {
		return align, step, make([]byte, n)
	}
	const poison = 0xff // NaN, and indices far out of range
	if fill == nil {
		r.s.List.Fill(at, step*int64(copies), poison)
		return at, step, nil
	}
	host := make([]byte, n)
	fill(host)
	r.s.CopyIn(at, host)
	for i := 1; i < copies; i++ {
		r.s.List.Copy(at+launch.Ptr(int64(i)*step), at, int64(n))
	}
	r.err = r.s.Synchronize()
	return at, step, host
}

func (r *runner) alloc(n int64) launch.Ptr {
	if r.err != nil {
		return 0
	}
	at, err := r.gpu.Alloc(n, true)
	if err != nil {
		r.err = err
		return 0
	}
	r.owned = append(r.owned, at)
	return at
}

func (r *runner) clear() error {
	for _, at := range r.owned {
		if err := r.gpu.Release(at); err != nil && r.err == nil {
			r.err = err
		}
	}
	r.owned, r.scratch, r.room = r.owned[:0], 0, 0
	err := r.err
	r.err = nil
	return err
}

// builder returns a builder that appends launches to the stream's list.
func (r *runner) builder() *ops.Builder {
	return &ops.Builder{GPU: r.gpu.Info(), List: &r.s.List, Plain: r.opt.Plain, Turn: r.turn, Scratch: func(n int) launch.Ptr {
		if n > r.room {
			r.room = n
			r.scratch = r.alloc(int64(n))
		}
		return r.scratch
	}}
}

// row measures one case.
func (r *runner) row(c *Case, built *Sources) (*Row, error) {
	row := &Row{Op: c.Op, Shape: c.Shape, DType: c.DType, Kernels: c.Kernels(r.gpu.Info())}
	var err error
	if row.Source, err = built.Hash(row.Kernels); err != nil && !r.opt.Small { // small runs are not recorded
		return nil, err
	}
	copies := c.copies()
	if r.opt.Small {
		copies = 2
	}
	d := &desk{gpu: r.gpu.Info(), arena: r, rng: r.random(), copies: copies, plain: r.opt.Plain}
	j := c.build(d)
	b := r.builder()
	var first time.Duration
	if r.err == nil {
		first, r.err = r.s.Timed(func() { j.run(b, 0) })
	}
	if r.err == nil {
		row.Error, row.Fault = c.judge(j.check(r.read))
		row.Error = stat.Round(row.Error, 3)
		row.Pass = row.Fault == "" && r.err == nil
	}
	if us := r.time(copies, first, func(i int) { j.run(b, i) }); us > 0 && !r.opt.Small {
		row.rate(c, us, r.rep.Ceilings)
		row.LibraryUS = r.libraryTime(j, copies, us)
		if r.opt.Launches {
			row.Launches = r.launches(j, copies, first)
		}
	}
	return row, r.clear()
}

// random returns a generator whose numbers are new in every run and case.
func (r *runner) random() *rand.Rand {
	return rand.New(rand.NewPCG(r.opt.Seed, uint64(len(r.rep.Rows))))
}

// launches times each kernel of a case by itself.
func (r *runner) launches(j *job, copies int, first time.Duration) (out []Launch) {
	var all launch.List
	b := r.builder()
	b.List = &all
	list := func(i int) []launch.Op {
		all.Reset()
		j.run(b, i)
		return all.Ops
	}
	for k, op := range list(0) {
		if op.Kind != launch.Run {
			continue
		}
		us := r.time(copies, first, func(i int) {
			o := &list(i)[k]
			r.s.List.Add(o.Kernel, o.Config, all.OpArgs(o)...)
		})
		out = append(out, Launch{op.Kernel.String(), stat.Round(us, 4)})
	}
	return out
}

// time returns the median time of the launches that run adds, in microseconds. It times graphs of
// them, each on the next copy of the data, and fewer than usual if the first took long.
func (r *runner) time(copies int, first time.Duration, run func(copy int)) float64 {
	replays := min(max(replaysMin, copies), max(2, int(graphLimit/max(1, first))))
	if r.opt.Small {
		replays = 2
	}
	once := func() {
		for i := range replays {
			run(i % copies)
		}
		r.s.Flush()
	}
	r.s.Keep(true)
	defer r.s.Keep(false)
	var times []float64
	for i := range rounds + 2 { // the first is launched one by one, the second is recorded
		if r.err != nil {
			return 0
		}
		took, err := r.s.Timed(once)
		r.err = err
		if i >= 2 {
			times = append(times, took.Seconds()*1e6/float64(replays))
		}
		if r.opt.Small {
			break
		}
	}
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// read copies a matrix to the host.
func (r *runner) read(m launch.Mat) []float64 {
	raw := make([]byte, m.Rows*m.Cols*m.DType.Size())
	r.s.CopyOut(raw, m.At)
	out := make([]float64, m.Rows*m.Cols)
	if err := r.s.Synchronize(); err != nil {
		r.err = err
		return out
	}
	x := data{Mat: launch.Mat{DType: m.DType, Rows: 1, Cols: len(out)}, host: raw}
	for i := range out {
		out[i] = x.get(0, i)
	}
	return out
}

// built is the manifest of the kernels in this program.
func built() (*Sources, error) {
	m, rows, err := bin.Built()
	if err != nil {
		return nil, err
	}
	return NewSources(m, rows), nil
}
