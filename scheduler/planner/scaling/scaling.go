// Package scaling simulates a model that is cut over machines: tokens a second and the wait of one stream, by machines, streams and
// network.
package scaling

import (
	"fmt"
	"math"
	"slices"
)

// Model is the sizes of a mixture-of-experts model, by layer. All layers are alike.
type Model struct {
	Name        string
	Layers      int
	Experts     int     // routed, of a layer
	TopK        int     // of them, for a token
	ExpertBytes float64 // weights of one
	LayerBytes  float64 // weights that every step reads, of a layer
	HeadBytes   float64 // of the head
	KVBytes     float64 // of a token of context, of a layer
	RowBytes    float64 // of a token's hidden state on a hop
	Flops       float64 // of a token, of a layer
}

// Machine is one of equal machines.
type Machine struct {
	Read    float64 // bytes a second of its memory
	Compute float64 // operations a second in prompts
	Fixed   float64 // seconds of a step that are neither: messages and waits
}

// Network lies between two machines.
type Network struct {
	Name  string
	Delay float64 // seconds of one way of an empty frame
	Rate  float64 // bytes a second
}

// Load says how much is asked of the machines.
type Load struct {
	Streams int
	Context int // tokens of each stream
	Micro   int // micro-batches; 0: as many as machines, and at most as many as streams
}

// Decode is a simulated decode.
type Decode struct {
	TokensPerSecond float64
	Step            float64 // seconds between two tokens of a stream
	Busy            float64 // share of the time that the busiest machine computes
}

// expertsRead returns the expected number of experts of a layer that a step of the given number of rows reads, if each token chooses at random.
func (m *Model) expertsRead(rows float64) float64 {
	e := float64(m.Experts)
	if e == 0 {
		return 0
	}
	return e * (1 - math.Pow(1-float64(m.TopK)/e, rows))
}

// step returns the time of a step of that many rows over layers.
func (m *Model) step(layers int, rows float64, context int, x Machine) float64 {
	bytes := m.LayerBytes + m.expertsRead(rows)*m.ExpertBytes + rows*float64(context)*m.KVBytes
	read := bytes / x.Read
	return float64(layers) * max(read, rows*m.Flops/x.Compute)
}

// Simulate lets micro-batches go round over machines until their times repeat. The layers are divided as equally as
// possible; the first machine has the head besides.
func Simulate(m Model, machines int, x Machine, n Network, l Load) (Decode, error) {
	if machines < 1 || machines > m.Layers || l.Streams < 1 {
		return Decode{}, fmt.Errorf("%d machines for %d layers and %d streams", machines, m.Layers, l.Streams)
	}
	micro := l.Micro
	if micro == 0 {
		micro = machines
	}
	micro = min(micro, l.Streams)
	p := newPipeline(m, machines, x, n, l, micro)
	const warm, rounds = 8, 40
	began := p.run(warm)
	before := slices.Clone(p.work)
	took, busy := p.run(warm+rounds)-began, 0.0
	for i, w := range p.work {
		busy = max(busy, w-before[i])
	}
	step := took / rounds
	return Decode{TokensPerSecond: float64(l.Streams) / step, Step: step, Busy: busy / took}, nil
}

// pipeline is the state of a simulation. A machine, and the network interface of one, serves micro-batches in the order in
// which they come.
type pipeline struct {
	step  [][]float64 // [micro-batch][machine]: seconds of a step
	head  float64     // of the head, on the first machine
	wire  []float64   // [micro-batch] of a frame on a network interface
	delay float64     // of a frame besides
	free  []float64   // [machine] when it is free
	net   []float64   // [machine] when its interface is
	work  []float64   // [machine] that it has computed

	ready []float64 // [micro-batch] when it comes to its next machine
	next  []int     // [micro-batch] that machine; the number of machines: the head
	done  []int     // [micro-batch] rounds
}

func newPipeline(m Model, machines int, x Machine, n Network, l Load, micro int) *pipeline {
	p := &pipeline{
		delay: n.Delay, head: m.HeadBytes / x.Read, free: make([]float64, machines), net: make([]float64, machines), work: make([]float64, machines),
		ready: make([]float64, micro), next: make([]int, micro), done: make([]int, micro),
	}
	for b := range micro {
		rows := float64(l.Streams / micro)
		if b < l.Streams%micro {
			rows++
		}
		list := make([]float64, machines)
		for i := range list {
			layers := m.Layers / machines
			if i < m.Layers%machines {
				layers++
			}
			list[i] = m.step(layers, rows, l.Context, x) + x.Fixed
		}
		p.step, p.wire = append(p.step, list), append(p.wire, rows*m.RowBytes/n.Rate)
	}
	return p
}

// run goes on until the first micro-batch has made that many rounds, and returns when that is.
func (p *pipeline) run(rounds int) float64 {
	for p.done[0] < rounds {
		b := 0
		for i, at := range p.ready {
			if at < p.ready[b] || at == p.ready[b] && p.done[i] < p.done[b] {
				b = i
			}
		}
		p.visit(b)
	}
	return p.ready[0]
}

// visit takes a micro-batch through its next machine and over the network to the one behind.
func (p *pipeline) visit(b int) {
	i, machines := p.next[b], len(p.free)
	if i == machines {
		p.next[b], p.ready[b] = 0, p.compute(0, p.ready[b], p.head)
		p.done[b]++
		return
	}
	at := p.compute(i, p.ready[b], p.step[b][i])
	if machines > 1 {
		p.net[i] = max(p.net[i], at) + p.wire[b]
		at = p.net[i] + p.delay
	}
	p.next[b], p.ready[b] = i+1, at
}

// compute takes time of a machine from then on, and returns its end.
func (p *pipeline) compute(i int, from, time float64) float64 {
	p.free[i] = max(p.free[i], from) + time
	p.work[i] += time
	return p.free[i]
}

// Prefill returns the tokens a second of one long prompt in chunks, which follow each other through the machines.
func Prefill(m Model, machines int, x Machine, n Network, tokens, chunk int) float64 {
	layers := (m.Layers + machines - 1) / machines
	chunks := (tokens + chunk - 1) / chunk
	stage := m.step(layers, float64(chunk), 0, x) + x.Fixed
	hop := 0.0
	if machines > 1 {
		hop = float64(chunk) * m.RowBytes / n.Rate
	}
	slowest := max(stage, hop)
	first := float64(machines)*(stage+hop) + float64(machines)*n.Delay
	return float64(tokens) / (first + float64(chunks-1)*slowest)
}
