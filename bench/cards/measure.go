//go:build cuda

package cards

import (
	"fmt"
	"math"
	"slices"
	"syscall"
	"time"

	"krater/kernels/cuda/driver"
	"krater/kernels/cuda/launch"
	"krater/kernels/cuda/rt"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// extent has the sizes that Measure uses.
type extent struct {
	Sizes
	readBytes int64
	steps     int // products per warpgroup
	launches  int
	few       []int // numbers of generated rows
	decode    history
	rows      [2]int // rows of prompts
	heads     int    // values of all query heads that share keys and values
	pieces    int    // copies of an expert's size
	small     int    // bytes of a small copy
	rounds    int
}

// usual takes a few seconds on a GPU, most of which go into random weights.
func usual() extent {
	return extent{
		Sizes: V2Lite(), readBytes: 8 << 30, steps: ceilingSteps, launches: 500, few: []int{1, 32},
		decode: history{seqs: 32, rows: 1, past: 2047}, rows: [2]int{512, 8192}, heads: 4096, pieces: 16, small: 64 << 10, rounds: 60,
	}
}

// little runs the same code on the emulator.
func little() extent {
	return extent{
		Sizes: Small(), readBytes: 1 << 16, steps: 1, launches: 4, few: []int{1, 3},
		decode: history{seqs: 2, rows: 1, past: 65}, rows: [2]int{70, 140}, heads: 512, pieces: 3, small: 4 << 10, rounds: 2,
	}
}

// headSizes have kernels of their own.
var headSizes = []int{64, 128, 256, 512}

// Measure measures the rates of a GPU that a planner needs, in a few seconds. Of the options it
// uses Index, Seed, Small and Step. It refuses an emulated GPU without Small.
func Measure(o Options) (*Points, error) {
	if err := driver.Available(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoGPU, err)
	}
	r, err := open(o)
	if err != nil {
		return nil, err
	}
	defer r.close()
	x := usual()
	switch {
	case o.Small:
		x = little()
	case r.gpu.Emulated():
		return nil, ErrEmulated
	}
	p := &Points{GPU: r.gpu.Info().Name, Emulated: r.gpu.Emulated(), Memory: r.gpu.Total()}
	steps := []func(*Points, *extent) error{r.bounds, r.launching, r.few, r.many, r.copying, r.round}
	for i, f := range steps {
		if o.Step != nil {
			o.Step(i, len(steps))
		}
		if err := f(p, &x); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// bounds measures the limits of the GPU.
func (r *runner) bounds(p *Points, x *extent) error {
	free, err := r.gpu.Free()
	if err != nil {
		return err
	}
	bytes, info := min(x.readBytes, free/4)&^255, r.gpu.Info()
	at := r.alloc(bytes)
	if r.err != nil {
		return r.clear()
	}
	r.s.List.Fill(at, bytes, 1)
	p.ReadGBps = float64(bytes) / 1e3 / r.best(func() { readAll(&r.s.List, info, at, at, bytes) })
	flops := 0.0
	us := r.best(func() { flops = multiply(&r.s.List, info, at, x.steps) })
	p.TFLOPs = flops / 1e6 / us
	return r.clear()
}

// launching measures launches that do next to nothing.
func (r *runner) launching(p *Points, x *extent) error {
	row := func() launch.Mat {
		return launch.Mat{At: r.alloc(4 * 64), DType: tensor.F32, Rows: 1, Cols: 64, Stride: 64}
	}
	a, b, build := row(), row(), r.builder()
	if r.err != nil {
		return r.clear()
	}
	r.s.List.Fill(a.At, 4*64, 0)
	r.s.List.Fill(b.At, 4*64, 0)
	all := func() {
		for range x.launches {
			build.Add(a, b)
		}
		r.s.Flush()
	}
	p.LaunchUS = r.best(all) / float64(x.launches)
	r.s.Keep(true)
	for range 2 { // first launched one by one, then recorded
		if _, err := r.s.Timed(all); err != nil && r.err == nil {
			r.err = err
		}
	}
	p.NodeUS = r.best(all) / float64(x.launches)
	r.s.Keep(false)
	return r.clear()
}

// speed returns the time of a case, without checking its results.
func (r *runner) speed(c *Case, rows float64) Speed {
	s := Speed{Rows: rows, Bytes: c.Bytes, Flops: c.Flops, Launches: len(c.Kernels(r.gpu.Info()))}
	free, err := r.gpu.Free()
	if err != nil && r.err == nil {
		r.err = err
	}
	copies := max(1, min(c.copies(), int(free/3/int64(max(1, c.Size, c.Rotate)))))
	if r.opt.Small {
		copies = 2
	}
	j := c.build(&desk{gpu: r.gpu.Info(), arena: r, rng: r.random(), copies: copies})
	b := r.builder()
	var first time.Duration
	if r.err == nil {
		first, r.err = r.s.Timed(func() { j.run(b, 0) })
	}
	if s.US = r.time(copies, first, func(i int) { j.run(b, i) }); r.opt.Small {
		s.US = first.Seconds() * 1e6 // time does not
	}
	r.err = r.clear()
	return s
}

// few measures kernels for few rows.
func (r *runner) few(p *Points, x *extent) error {
	m := x.mla
	for _, t := range x.few {
		router := device.Router{Experts: x.experts, TopK: x.topK, Scale: 1}
		p.Few = append(p.Few, r.speed(secondHalf(x.moe, int4, int8, t, m.Heads*m.V, router), float64(t)))
	}
	p.KV = r.speed(latent(true, x.decode, tensor.F8E4M3, m), float64(x.decode.seqs))
	return r.clear()
}

// many measures kernels for many rows.
func (r *runner) many(p *Points, x *extent) error {
	routed := x.moe
	routed.shared = 0
	p.Heads = map[int][2]Speed{}
	for i, t := range x.rows {
		each := float64(t*x.topK) / float64(x.experts)
		p.Dense[i] = r.speed(network("dense", int8, t, x.hidden, x.dense), float64(t))
		p.Experts[i] = r.speed(mix(routed, int4, int8, t), each)
		p.Attention[i] = r.speed(latent(false, history{seqs: 1, rows: t}, tensor.BF16, x.mla), float64(t))
		for _, size := range headSizes {
			heads := device.GQA{Heads: x.heads / size, KVHeads: max(1, x.heads/size/8), HeadDim: size, Scale: float32(1 / math.Sqrt(float64(size))), BlockTokens: x.mla.BlockTokens}
			two := p.Heads[size]
			two[i] = r.speed(grouped(false, history{seqs: 1, rows: t}, tensor.F8E4M3, heads, false), float64(t))
			p.Heads[size] = two
		}
	}
	return r.clear()
}

// copying measures copies from pinned memory, alone and during products.
func (r *runner) copying(p *Points, x *extent) error {
	expert := int4.bytes(2*x.width, x.hidden) + int4.bytes(x.hidden, x.width)
	host, err := syscall.Mmap(-1, 0, x.pieces*expert, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("%d bytes of host memory: %w", x.pieces*expert, err)
	}
	defer syscall.Munmap(host)
	release, err := r.gpu.Pin(host)
	if err != nil {
		return err
	}
	s, err := r.gpu.NewStream()
	if err == nil {
		err = r.copies(p, x, s, host, expert)
		s.Close()
	}
	if e := release(); err == nil {
		err = e
	}
	if e := r.clear(); err == nil {
		err = e
	}
	return err
}

// copies measures copies on s.
func (r *runner) copies(p *Points, x *extent, s *rt.Stream, host []byte, expert int) error {
	at := r.alloc(int64(len(host)))
	if r.err != nil {
		return r.err
	}
	some := func(piece, n int) (Piece, error) { // per copy, among n consecutive ones
		took, err := s.Timed(func() {
			for i := range n {
				s.CopyIn(at+launch.Ptr(i*piece), host[i*piece:(i+1)*piece])
			}
		})
		return Piece{float64(piece), took.Seconds() * 1e6 / float64(n)}, err
	}
	median := func(once func() (Piece, error)) (Piece, error) {
		var all []Piece
		for range rounds {
			one, err := once()
			if err != nil {
				return Piece{}, err
			}
			all = append(all, one)
		}
		slices.SortFunc(all, func(a, b Piece) int { return int(1e3 * (a.US - b.US)) })
		return all[len(all)/2], nil
	}
	var err error
	for i, piece := range []int{x.small, expert} {
		n := min(len(host)/piece, 4*x.pieces)
		if p.Copies[i], err = median(func() (Piece, error) { return some(piece, n) }); err != nil {
			return err
		}
	}
	p.Busy, err = r.beside(x, func() (Piece, error) { return some(expert, x.pieces) }, median)
	return err
}

// besideMost bounds the number of products that are enqueued to run during copies.
const besideMost = 1 << 12

// beside measures copies during products that end after them.
func (r *runner) beside(x *extent, copies func() (Piece, error), median func(func() (Piece, error)) (Piece, error)) (Piece, error) {
	c := network("dense", int8, x.rows[1], x.hidden, x.dense)
	j := c.build(&desk{gpu: r.gpu.Info(), arena: r, rng: r.random(), copies: 1})
	b, products := r.builder(), 4
	once := func() (Piece, error) {
		for {
			for range products {
				j.run(b, 0)
			}
			end := r.s.Record()
			one, err := copies()
			late := !end.Done()
			if e := r.s.Synchronize(); err == nil {
				err = e
			}
			if err != nil || late || r.gpu.Emulated() {
				return one, err
			}
			if products *= 2; products > besideMost {
				return one, fmt.Errorf("copies do not end before %d products of %d rows: they do not run beside each other", besideMost, x.rows[1])
			}
		}
	}
	if r.err != nil {
		return Piece{}, r.err
	}
	return median(once)
}

// round measures the time from a result on the GPU to the host's reply on the GPU.
func (r *runner) round(p *Points, x *extent) error {
	const n = 64
	at, build := launch.Mat{At: r.alloc(4 * n), DType: tensor.F32, Rows: 1, Cols: n, Stride: n}, r.builder()
	if r.err != nil {
		return r.clear()
	}
	r.s.List.Fill(at.At, 4*n, 0)
	row := make([]byte, 4*n)
	var all []float64
	for range x.rounds {
		begin := time.Now()
		r.s.CopyIn(at.At, row)
		build.Add(at, at)
		r.s.CopyOut(row, at.At)
		if err := r.s.Synchronize(); err != nil {
			return err
		}
		all = append(all, time.Since(begin).Seconds()*1e6)
	}
	slices.Sort(all)
	p.RoundUS = all[len(all)/2]
	return r.clear()
}
