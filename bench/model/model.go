// Package model measures a loaded model: decode by context length and number of streams, prefill by
// length, and the time of each stage. Plain reads of memory alternate with decode steps.
package model

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
	"time"

	"krater/bench/clock"
	"krater/bench/cores"
	"krater/bench/read"
	"krater/bench/stat"
	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/stages"
	"krater/stages/drive"
)

// Options are the settings of a measurement.
type Options struct {
	Prefill []int // prompt lengths
	Decode  int   // steps per measurement
	Batch   []int // numbers of streams that decode together; a lone one is always measured
	Context []int // context lengths at which a single stream decodes
	Chunk   int   // prompt tokens of a step
	Vocab   int
	// ReadBytes is the memory that plain reads go over.
	ReadBytes int
	Progress  func(string) // receives what is measured next; may be nil
}

const (
	prompt      = 16 // tokens before a decode measurement without depth
	segment     = 8  // steps between two looks at memory and cores
	prefillRuns = 3  // of a length, unless it takes long:
	prefillLong = 20 * time.Second
	contextMax  = 32 // steps at a depth

	madeFrom   = 8 << 10 // contexts longer than that have made-up rows
	madePrompt = 512     // tokens of a prompt whose rows are copied there
	madeMoves  = 512     // copies of blocks in a step
)

// Positions returns the number of tokens a lone sequence takes at most.
func (o *Options) Positions() int {
	n := prompt
	for _, l := range slices.Concat(o.Prefill, o.Context) {
		n = max(n, l)
	}
	return n + 2*o.Decode + 1
}

// Blocks returns the number of KV blocks, of the given tokens, that the measurement takes.
func (o *Options) Blocks(blockTokens int) int {
	each := func(tokens int) int { return (tokens + blockTokens - 1) / blockTokens }
	streams := 1
	for _, n := range o.Batch {
		streams = max(streams, n)
	}
	return max(each(o.Positions()), streams*each(prompt+2*min(o.Decode, contextMax)))
}

// bench is a running measurement.
type bench struct {
	o      Options
	run    drive.Runner
	dev    *cpu.Device
	clock  *clock.Device
	reader *read.Reader
	probe  *cores.Probe
	memory []byte
	at     int // of memory
	before string
	report *Report
	draws  bool        // the device chooses tokens
	chunks []float64   // ms of prompts' steps
	cpu    stat.Sample // ms of processor time of each segment of the last steps
}

// Run measures a model on dev, loaded on c (which wraps dev).
func Run(r drive.Runner, dev *cpu.Device, c *clock.Device, o Options) (*Report, error) {
	probe, err := cores.New(dev.Team().Threads())
	if err != nil {
		return nil, err
	}
	defer probe.Close()
	size := max(4, o.ReadBytes/read.WindowBytes) * read.WindowBytes
	buf, err := dev.Alloc(size)
	if err != nil {
		return nil, fmt.Errorf("bench model: memory to read: %w", err)
	}
	defer buf.Free()
	b := &bench{o: o, run: r, dev: dev, clock: c, reader: read.New(dev), probe: probe, memory: buf.Host(), report: &Report{Threads: dev.Team().Threads(), Level: dev.Level().String()}}
	for i := 0; i < size; i += 4096 {
		b.memory[i] = 1 // untouched pages would all be one page of zeros
	}
	b.before = probe.Take().Regime()
	for _, step := range []func() error{b.decode, b.batches, b.lengths} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b.report, nil
}

func (b *bench) tell(format string, args ...any) {
	if b.o.Progress != nil {
		b.o.Progress(fmt.Sprintf(format, args...))
	}
}

// look reads memory once with every loop, probes the cores and returns the regime since the last
// look.
func (b *bench) look() string {
	for range cpu.ReadLoops {
		b.reader.Window(b.memory[b.at:][:read.WindowBytes])
		b.at = (b.at + read.WindowBytes) % len(b.memory)
	}
	after, regime := b.probe.Take().Regime(), ""
	if regime = after; after != b.before {
		regime = Changing
	}
	b.before = after
	b.reader.Mark(regime)
	return regime
}

// sequences are streams in the cache, each with pos tokens.
type sequences struct {
	batch stages.Step
	next  []int32
	pos   int
}

// start puts n prompts of length tokens into the cache and returns the time of their steps.
func (b *bench) start(n, length, room int) (*sequences, time.Duration, error) {
	lim := b.run.Limits()
	each := (length + room + lim.BlockTokens - 1) / lim.BlockTokens
	if n > lim.Seqs || n*each > lim.Blocks || length+room > lim.Context {
		return nil, 0, fmt.Errorf("bench model: %d streams of %d tokens do not fit: %d streams, %d KV blocks of %d, context %d",
			n, length+room, lim.Seqs, lim.Blocks, lim.BlockTokens, lim.Context)
	}
	q := &sequences{next: make([]int32, n), pos: length}
	for i := range n {
		blocks := make([]int32, each)
		for j := range blocks {
			blocks[j] = int32(i*each + j)
		}
		q.batch.Spans = append(q.batch.Spans, stages.Span{Seq: uint64(i), Span: device.Span{Slot: i, Blocks: blocks}})
		q.next[i] = token(i, length, b.o.Vocab)
	}
	took, err := b.prefill(q.batch.Spans, length)
	return q, took, err
}

// deep is start for a measurement of decode. Above madeFrom the cache gets a short prompt, and copies of its blocks up to
// length; states that are not in blocks stay those of the prompt. made is the number of rows that were copied.
func (b *bench) deep(n, length, room int) (q *sequences, made int, err error) {
	if length <= madeFrom {
		q, _, err = b.start(n, length, room)
		return q, 0, err
	}
	tokens := b.run.Limits().BlockTokens
	have := (madePrompt + tokens - 1) / tokens
	if q, _, err = b.start(n, have*tokens, length-have*tokens+room); err != nil {
		return nil, 0, err
	}
	var moves []stages.Move
	for _, s := range q.batch.Spans {
		for i := have; i*tokens < length; i++ {
			moves = append(moves, stages.Move{Kind: stages.Copy, From: s.Blocks[i%have], To: s.Blocks[i]})
		}
	}
	for some := range slices.Chunk(moves, madeMoves) { // a step has rows; these do not matter
		q.decodes()
		q.batch.Moves = some
		if _, err := b.step(&q.batch, nil); err != nil {
			return nil, 0, err
		}
	}
	q.batch.Moves, q.pos = nil, length
	return q, length - have*tokens, nil
}

// prefill puts one prompt per span into the cache: a single prompt in chunks, several together with
// as many rows per step.
func (b *bench) prefill(spans []stages.Span, length int) (took time.Duration, err error) {
	chunk := min(max(1, b.o.Chunk), b.run.Limits().Tokens)
	for len(spans) > 0 {
		some := spans[:max(1, min(len(spans), chunk/length))]
		spans = spans[len(some):]
		for pos, rows := 0, 0; pos < length; pos += rows {
			rows = min(length-pos, chunk/len(some))
			var batch stages.Step
			for i := range some {
				sp := some[i]
				sp.Row, sp.Pos, sp.Len, sp.Want = len(batch.Tokens), pos, rows, pos+rows == length
				batch.Spans = append(batch.Spans, sp)
				for p := range rows {
					batch.Tokens = append(batch.Tokens, token(int(sp.Seq), pos+p, b.o.Vocab))
				}
			}
			d, err := b.step(&batch, nil)
			if err != nil {
				return 0, err
			}
			b.chunks = append(b.chunks, ms(d))
			took += d
		}
	}
	return took, nil
}

// token returns a token of an invented text.
func token(seq, pos, vocab int) int32 { return int32((pos*7919 + seq*104729 + 13) % vocab) }

// step runs a batch and returns the time until its result is ready.
func (b *bench) step(batch *stages.Step, read func(*stages.State)) (time.Duration, error) {
	batch.Draws = nil
	if b.draws {
		batch.Draws = greedy(batch)
	}
	start := time.Now()
	var took time.Duration
	err := b.run.Step(batch, nil, func(st *stages.State) error {
		took = time.Since(start)
		if read != nil {
			read(st)
		}
		return nil
	})
	return took, err
}

// decodes makes the batch the next step of every sequence.
func (q *sequences) decodes() {
	q.batch.Tokens = q.next
	for i := range q.batch.Spans {
		s := &q.batch.Spans[i]
		s.Row, s.Pos, s.Len, s.Decode, s.Want = i, q.pos, 1, true, true
	}
}

// forward decodes one token of every sequence.
func (b *bench) forward(q *sequences) (time.Duration, error) {
	q.decodes()
	q.pos++
	return b.step(&q.batch, func(st *stages.State) {
		for i := range q.next {
			if id, ok := st.ChosenID(i); ok {
				q.next[i] = max(id, 0)
				continue
			}
			q.next[i] = drive.Argmax(st.LogitRow(i))
		}
	})
}

// steps decodes n tokens of every sequence and returns the times in ms, with looks in between.
func (b *bench) steps(q *sequences, n int) (*stat.Series, error) {
	s := &stat.Series{}
	if _, err := b.forward(q); err != nil { // scratch memory, first use of code
		return nil, err
	}
	b.look()
	b.reader = read.New(b.dev)
	b.cpu = nil
	before := cpuTime()
	for i := range n {
		d, err := b.forward(q)
		if err != nil {
			return nil, err
		}
		s.Add(ms(d))
		if i%segment == segment-1 {
			b.cpu = append(b.cpu, ms(cpuTime()-before))
		}
		if i%segment == segment-1 || i == n-1 {
			s.Mark(b.look())
			before = cpuTime()
		}
	}
	return s, nil
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// counted decodes n tokens with the clock on and returns its counts.
func (b *bench) counted(q *sequences, n int) ([]clock.Spent, time.Duration, error) {
	b.clock.Reset()
	b.clock.On = true
	defer func() { b.clock.On = false }()
	var all time.Duration
	for range n {
		d, err := b.forward(q)
		if err != nil {
			return nil, 0, err
		}
		all += d
	}
	return b.clock.Spent(), all, nil
}

// decode measures a lone stream, and its breakdown.
func (b *bench) decode() error {
	b.tell("decode, %d steps", b.o.Decode)
	q, _, err := b.start(1, prompt, 2*b.o.Decode+1)
	if err != nil {
		return err
	}
	s, err := b.steps(q, b.o.Decode)
	if err != nil {
		return err
	}
	b.report.DecodeCPUMS = b.cpu.Percentile(0) / segment
	n := (b.o.Decode + 1) / 2
	spent, all, err := b.counted(q, n)
	if err != nil {
		return err
	}
	b.report.decode(s, b.reader, spent, all, n)
	return nil
}

// batches measures several streams together.
func (b *bench) batches() error {
	for _, n := range b.o.Batch {
		if n == 1 {
			continue // measured by decode
		}
		b.tell("decode, %d streams", n)
		steps := min(b.o.Decode, contextMax)
		q, _, err := b.start(n, prompt, 2*steps)
		if err != nil {
			return err
		}
		s, err := b.steps(q, steps-2)
		if err != nil {
			return err
		}
		spent, all, err := b.counted(q, 1)
		if err != nil {
			return err
		}
		b.report.batch(n, s, b.reader, spent, all)
	}
	return nil
}

// lengths measures prefill and, at the given context lengths, the decode that follows.
func (b *bench) lengths() error {
	all := slices.Concat(b.o.Prefill, b.o.Context)
	slices.SortFunc(all, cmp.Compare[int])
	for _, length := range slices.Compact(all) {
		deep := slices.Contains(b.o.Context, length)
		runs, steps := 1, 0
		if slices.Contains(b.o.Prefill, length) {
			runs = prefillRuns
		}
		if deep {
			steps = min(b.o.Decode, contextMax)
		}
		if runs == 1 && length > madeFrom {
			q, made, err := b.deep(1, length, 2*steps)
			if err == nil {
				err = b.depth(q, length, made, steps)
			}
			if err != nil {
				return err
			}
			continue
		}
		b.tell("prefill, %d tokens", length)
		var times, busy stat.Sample
		var q *sequences
		b.clock.Reset()
		b.clock.On = true
		for begin := time.Now(); len(times) < runs && (len(times) == 0 || time.Since(begin) < prefillLong); {
			var took time.Duration
			var err error
			before := cpuTime()
			if q, took, err = b.start(1, length, 2*steps); err != nil {
				b.clock.On = false
				return err
			}
			times, busy = append(times, ms(took)), append(busy, ms(cpuTime()-before))
		}
		b.clock.On = false
		regime := b.look()
		if slices.Contains(b.o.Prefill, length) {
			b.report.prefill(length, times, busy, regime, b.clock.Spent())
		}
		if !deep {
			continue
		}
		if err := b.depth(q, length, 0, steps); err != nil {
			return err
		}
	}
	return nil
}

// depth measures decode behind length tokens, whose made last rows are made up.
func (b *bench) depth(q *sequences, length, made, steps int) error {
	b.tell("decode at depth %d", length)
	s, err := b.steps(q, steps-2)
	if err != nil {
		return err
	}
	user := b.cpu.Percentile(0) / segment
	spent, all, err := b.counted(q, 1)
	if err != nil {
		return err
	}
	b.report.context(length, made, s, b.reader, spent, all)
	b.report.Context[len(b.report.Context)-1].CPUMS = user
	return nil
}

// cpuTime is the processor time of all threads of the process. 0: it is unknown.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()) // their sum is exact, each alone is estimated by ticks
}
