package actors

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"krater/actors/msg"
	"krater/actors/trace"
	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages/expert"
	"krater/stages/group"
	"krater/stages/helper"
	"krater/stages/link"
)

// Help is a helper of a pipeline's only rank: another device that computes a share of the routed experts.
type Help struct {
	Experts *helper.Experts
	// Share is the share of the rows that the helper computes. With 0 it follows from times measured at the start, and may be
	// none. If the rank does not hold all experts, the helper computes those of its own that the rank lacks.
	Share float64
	// Least is the least number of rows of a batch for which the helper computes if the rank holds all experts.
	Least int
	Heat  [][]uint32 // counts of routers, by layer with experts; nil: not known
}

// helpTurn is the time that messages and waits take for a layer that has a helper.
const helpTurn = 60 * time.Microsecond

// help is a helper as a pipeline uses it. nil: there is none.
type help struct {
	*Help
	name     string
	rank     *rank
	workers  []*helper.Worker // by batch
	takes    map[int][]bool
	least    int // rows of a batch with a part for the helper
	pair     [2]*link.Pair
	computed atomic.Uint64 // experts of layers
	lost     func(rank int, name string, cause error)
}

// errHelper reports a fault of a helper or of the link to it. The step is lost and may be repeated.
var errHelper = errors.New("a helper did not do its part")

// spawnHelper makes the helper's worker and actor.
func (p *Pipeline) spawnHelper(batches []*msg.Batch) error {
	o := p.opt.Help
	if o == nil {
		return nil
	}
	if len(p.ranks) > 1 || p.opt.Remote != nil || p.opt.segment != nil {
		return errors.New("a helper goes with a pipeline of one rank")
	}
	r := p.ranks[0]
	h := &help{Help: o, name: o.Experts.Device().Name(), rank: r, takes: map[int][]bool{}, lost: p.lose}
	for i := range h.pair {
		h.pair[i] = &link.Pair{Deadline: p.opt.hopDeadline}
	}
	kinds := p.opt.links
	if kinds == nil {
		kinds = link.Kinds()
	}
	queue := 0
	if r.accel != nil {
		queue = r.queues + 1
	}
	p.help = h
	out, back := "", ""
	for i, b := range batches {
		w, fallen, err := o.Experts.Open(helper.WorkerOptions{
			Rank: r.Rank, Queue: queue, Links: kinds, Out: h.pair[0], Back: h.pair[1], Sample: b.Ranks[0].State.Room(),
		})
		if err != nil {
			return fmt.Errorf("helper %s: %w", h.name, err)
		}
		h.workers = append(h.workers, w)
		out, back = w.Links()
		for _, fault := range fallen {
			if i == 0 {
				p.log.Warn().Str("helper", h.name).Err(fault).Str("out", out).Str("back", back).Msg("a kind of link to a helper does not work")
			}
		}
	}
	if err := h.settle(p.host.now); err != nil {
		return fmt.Errorf("helper %s: %w", h.name, err)
	}
	if share, least := p.Helper(); share == 0 {
		p.log.Info().Str("helper", h.name).Msg("the helper would make no batch faster, and has no part")
	} else {
		p.log.Info().Str("helper", h.name).Float64("share", share).Int("rows", least).Str("out", out).Str("back", back).Msg("a helper computes a share of the experts of batches of that many rows or more")
	}
	p.routes.helper = p.actor("helper", trace.Experts, ownGoroutine, h.name, func() node {
		return &helperNode{h}
	})
	return nil
}

// layers lists the rank's layers with experts.
func (h *help) layers() (list []int) {
	for _, g := range h.rank.Groups {
		for layer := g.First; layer < g.Last; layer++ {
			if g.MoE(layer) {
				list = append(list, layer)
			}
		}
	}
	return list
}

// settle decides which experts the helper computes, and for which batches.
func (h *help) settle(now func() int64) error {
	layers := h.layers()
	lacks := h.rank.place != nil && h.rank.place.Leaves(dispatch.Prefill)
	share := h.Share
	h.least = h.Least
	switch {
	case len(layers) == 0 || !lacks && h.Least > h.rank.Limits.Tokens: // no batch has as many rows
		h.least = math.MaxInt
		return nil
	case lacks:
		share, h.least = 1, 0
	case share == 0:
		var err error
		if share, err = h.measure(layers[0], now); err != nil {
			return err
		}
	}
	if share == 0 {
		h.least = math.MaxInt
		return nil
	}
	for i, layer := range layers {
		var heat []uint32
		if h.Heat != nil {
			heat = h.Heat[i]
		}
		has := h.Experts.Holds(layer)
		if h.takes[layer] = dispatch.Divide(len(has), heat, has, share); lacks {
			h.takes[layer] = has
		}
	}
	if h.rank.place == nil {
		return nil
	}
	return h.rank.place.Help(h.least, func(layer int) []bool { return h.takes[layer] })
}

// helpRows is the largest number of rows for which times are measured.
const helpRows = 2048

// helpSteps is in how many steps the fewest rows are found for which a helper pays.
const helpSteps = 4

// measure takes times, and returns the share of the helper. It sets least.
func (h *help) measure(layer int, now func() int64) (share float64, err error) {
	var bank *expert.Bank
	var here *device.Bank
	for _, g := range h.rank.Groups {
		if layer >= g.First && layer < g.Last {
			bank = g.Bank(layer)
		}
	}
	if h.rank.place != nil {
		here = h.rank.place.Here(layer)
	}
	// helps measures batches of some rows, the first time in order to choose the share.
	helps := func(rows int) (bool, error) {
		t, err := h.workers[0].Measure(h.rank.Rank, layer, rows, bank, here, now)
		x := dispatch.Help{Alone: t.Alone.Seconds(), Held: t.Held.Seconds(), Carry: t.Carry.Seconds(), Part: t.Part, Turn: helpTurn.Seconds()}
		if share == 0 {
			share = x.Share()
		}
		return err == nil && x.Helps(share), err
	}
	low, high := min(h.Least, h.rank.Limits.LayerRows())-1, min(helpRows, h.rank.Limits.LayerRows())
	if ok, err := helps(high); !ok {
		return 0, err
	}
	for range helpSteps { // of batches of low rows it is not known that they are shorter
		rows := (low + high + 1) / 2
		ok, err := helps(rows)
		switch {
		case err != nil:
			return 0, err
		case ok:
			high = rows
		default:
			low = rows
		}
	}
	h.least = max(high, h.Least)
	return share, nil
}

// Helper returns the share of the rows that the helper computes if experts are equally hot, and the least number of rows of a
// batch for which it computes any. Both are 0 if it computes none.
func (p *Pipeline) Helper() (share float64, least int) {
	h := p.help
	if h == nil || h.least == math.MaxInt {
		return 0, 0
	}
	n, all := 0, 0
	for _, list := range h.takes {
		n, all = n+dispatch.Count(list), all+len(list)
	}
	return float64(n) / float64(max(1, all)), h.least
}

// divide gives the helper its part of a layer's work and returns the rest. s is the batch's stream.
func (h *help) divide(s device.Stream, b *msg.Batch, layer int, work []device.ExpertRows) (rest []device.ExpertRows, any bool) {
	if h == nil {
		return work, false
	}
	p := b.Work.Helped()
	p.Rows, p.Whole = p.Rows[:0], false
	if b.State.Total() < h.least {
		return work, false
	}
	takes := h.takes[layer]
	rest = work[:0]
	for _, x := range work {
		if takes[x.Expert] {
			p.Rows = append(p.Rows, x)
		} else {
			rest = append(rest, x)
		}
	}
	if len(p.Rows) == 0 {
		return rest, false
	}
	h.workers[b.Index].Begin(s, b.State)
	return rest, true
}

// mixes enqueues a layer's experts of both devices if the host does not need the batch's choices. It reports whether it has done so.
func (h *help) mixes(s device.Stream, g *group.Group, b *msg.Batch, layer int) bool {
	if h == nil || h.rank.place == nil || !h.rank.place.Unasked(b.State.Total(), b.Probe() != nil) {
		return false
	}
	p := b.Work.Helped()
	p.Rows, p.Whole = p.Rows[:0], true
	h.workers[b.Index].Begin(s, b.State)
	h.rank.place.Mixes(s, g, b.State, layer)
	b.Host = b.Host[:0]
	return true
}

// back enqueues that the helper's sums are added.
func (h *help) back(s device.Stream, b *msg.Batch) {
	if h == nil {
		return
	}
	if p := b.Work.Helped(); len(p.Rows) == 0 && !p.Whole {
		return
	}
	if sum := h.workers[b.Index].Sum(); !sum.Zero() {
		h.rank.place.AddSum(s, b.State, sum.RowRange(0, b.State.T))
	}
}

// close frees the workers.
func (h *help) close() {
	if h == nil {
		return
	}
	for _, w := range h.workers {
		w.Close()
	}
}

// helperNode computes the helper's part of a layer.
type helperNode struct{ *help }

func (n *helperNode) receive(c *turn, m any) {
	p := m.(*msg.Part)
	w := p.Work
	if w.Batch.Abandoned.Load() {
		n.drop(w.Batch)
	} else {
		p.Cause = n.compute(w, p)
	}
	c.send(c.routes.merges[w.Group], p)
}

func (n *helperNode) compute(w *msg.Work, p *msg.Part) error {
	worker := n.workers[w.Batch.Index]
	err := worker.Compute(w.Batch.State, w.Layer, p.Rows)
	if err == nil {
		experts := len(p.Rows)
		if p.Whole {
			experts = dispatch.Count(n.takes[w.Layer])
		}
		n.computed.Add(uint64(experts))
		return nil
	}
	n.fail(worker.Recover())
	return fmt.Errorf("%w: %w", errHelper, err)
}

// drop waits for what the helper was given of a batch that was given up.
func (h *help) drop(b *msg.Batch) {
	if h != nil {
		h.fail(h.workers[b.Index].Drop())
	}
}

// fail reports devices that are lost.
func (h *help) fail(rank, helper error) {
	switch {
	case rank != nil:
		h.lost(0, h.rank.name, rank)
	case helper != nil:
		h.lost(1, h.name, helper)
	}
}
