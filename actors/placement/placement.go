// Package placement carries out the decisions of scheduler/dispatch. It records which expert is in which
// slot of a device, enqueues the device's part of a layer's routed work with the copies that it needs, and
// returns the host's part. It has no actors: the pipeline and plain calls (Model) use it.
package placement

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"krater/kernels/device"
	"krater/scheduler/dispatch"
	"krater/stages"
	"krater/stages/group"
	"krater/stages/load"
	"krater/stages/model"
	"krater/stages/offload"
	"krater/stages/weights"
)

// Options are the parameters of a placement.
type Options struct {
	Prefill, Decode dispatch.Strategy
	// Threshold is the least number of rows of a prefill batch; 0: 300.
	Threshold int
	// Budget is the device memory for experts in bytes; 0: the free memory less Reserve.
	Budget  int64
	Reserve int64
	// PrefillBudget is the part of Budget that prefill's strategy may take; 0: all of it. Decode has
	// the remaining budget.
	PrefillBudget int64
	// Heat [layer][expert] counts how often routers chose an expert, in layers with experts; nil: it
	// is not known.
	Heat [][]uint32
	// Now returns the time, for measuring steps if experts move between them; nil: the time of the clock.
	Now func() time.Duration
	// Progress, if set, is called with the bytes copied so far, and in all, of the experts that stay on the device.
	Progress func(done, all int64)
	// Seen, if set, is called with the routed work of every layer that has experts, counted from 0,
	// before the work is divided. It must not keep the list, nor take long.
	Seen func(index int, work []dispatch.Rows)
}

// thresholdDefault is the least number of rows of a batch for which copying experts takes less time than
// computing them on the host.
const thresholdDefault = 300

// Placement is a model with placed experts. It is safe for concurrent use; a stream still belongs to
// one goroutine at a time.
type Placement struct {
	*offload.Experts
	dev       device.Device
	accel     bool  // dev is an accelerator: it finds experts by itself and does not wait for the host
	callRows  int   // the most rows of a batch that makes host calls; 0: none does
	unasked   error // why none does although the strategy wants it
	threshold int
	topK      int
	setup     dispatch.Setup
	index     map[int]int // of a layer, in setup.Layers
	sides     [dispatch.Phases]*side
	falls     []Fall
	seen      func(index int, work []dispatch.Rows)
	views     [dispatch.Phases]*offload.View // of a GPU
	helped    [dispatch.Phases]bool          // see Help
	alone     bool                           // see Help: the host computes nothing
	loan      loan                           // its state is guarded by mu
	pool      *pool                          // likewise; nil: no strategy learns
	exchange  exchange                       // likewise

	mu        sync.Mutex // guards what follows, and the slots
	residency *dispatch.Residency
	line      line
	step      dispatch.Step
	decision  dispatch.Decision
	part      []device.ExpertRows
	everyone  []device.ExpertRows // all experts of a layer, without rows
	table     []int32             // scratch: the slots of a layer
	taken     []int32             // scratch: the slots of a wave
	stats     [dispatch.Phases]Stats
}

// New places the routed experts of parts, which were loaded with experts in host memory, and waits for
// the copies. A strategy that does not fit is replaced by a smaller one: see Falls. The caller keeps
// parts, which have their experts back after Close.
func New(dev device.Device, host offload.Host, parts *load.Parts, o Options) (*Placement, error) {
	x, err := offload.New(dev, host, parts)
	if err != nil {
		return nil, err
	}
	p := &Placement{Experts: x, dev: dev, accel: dev.Accelerator() != nil, threshold: o.Threshold, topK: parts.Config.MoE.Router.TopK, seen: o.Seen, index: map[int]int{}, residency: dispatch.NewResidency()}
	if p.threshold == 0 {
		p.threshold = thresholdDefault
	}
	p.setup = dispatch.Setup{Experts: max(1, parts.Config.MoE.Experts), Bytes: int64(max(1, x.SlotBytes())), Budget: o.budget(dev), Heat: o.Heat}
	for i, l := range x.Layers() {
		p.setup.Layers = append(p.setup.Layers, int32(l))
		p.index[l] = i
	}
	for e := range p.setup.Experts {
		p.everyone = append(p.everyone, device.ExpertRows{Expert: int32(e)})
	}
	if p.line, err = newLine(dev, x); err == nil {
		err = p.begin(&o)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Load puts a model on dev, its routed experts on the host, and places them. The caller closes the
// placement, then the parts.
func Load(dev load.Device, host offload.Host, cfg *model.Config, set *weights.Set, lo load.Options, o Options) (*load.Parts, *Placement, error) {
	lo.Routed = host
	parts, err := load.Model(dev, cfg, set, lo)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", dev.Name(), err)
	}
	p, err := New(dev, host, parts, o)
	if err != nil {
		parts.Close()
		return nil, nil, fmt.Errorf("%s: %w", dev.Name(), err)
	}
	return parts, p, nil
}

// budget is bytes for experts.
func (o *Options) budget(dev device.Device) int64 {
	if o.Budget > 0 {
		return o.Budget
	}
	m := dev.Memory()
	if m.Total == 0 {
		return dispatch.Unlimited
	}
	return max(0, m.Total-m.Used-o.Reserve)
}

// Device returns the device that has the slots.
func (p *Placement) Device() device.Device { return p.dev }

// Close frees the slots and gives the experts back to the groups. Nothing may run on them.
func (p *Placement) Close() {
	p.pool.close()
	p.line.close()
	p.exchange.close()
	for _, v := range p.views {
		if v != nil {
			v.Close()
		}
	}
	p.Experts.Close()
}

// Phase returns the phase of a batch with the given number of rows.
func (p *Placement) Phase(rows int) dispatch.Phase {
	if rows >= p.threshold {
		return dispatch.Prefill
	}
	return dispatch.Decode
}

// Parts returns the layers at which parts of the model begin, for a batch with the given number of
// rows. All pieces of the batch pass a part before any piece goes on (group.Walk). nil means one part.
func (p *Placement) Parts(rows int) []int {
	if p.Phase(rows) != dispatch.Prefill {
		return nil
	}
	return p.sides[dispatch.Prefill].parts
}

// Run decides where the routed work of a layer is computed, enqueues the device's part with the copies
// that it needs, and appends the host's part to list, in the order of work. s is the stream of g,
// synchronised since Ask; operators enqueued on it afterwards follow the device's part. If a device
// refuses a copy or an operator, Run panics or the stream has the error. Then the batch is lost, but the
// contents of the slots are still known.
func (p *Placement) Run(s device.Stream, g *group.Group, st *stages.State, layer int, work, list []device.ExpertRows) ([]device.ExpertRows, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	phase := p.decide(layer, st.Total(), work)
	p.count(p.step.Index, st.Total(), work)
	if p.seen != nil && len(work) > 0 {
		p.seen(p.step.Index, p.step.Work)
	}
	p.overLink(phase, st.Timing)
	waves, ahead := p.decision.Waves, false
	for i := range waves {
		w := &waves[i]
		if !ahead {
			if err := p.load(w.Loads, &p.stats[phase], st.Timing); err != nil {
				return list, err
			}
		}
		if ahead = false; len(w.Work) == 0 {
			continue
		}
		p.part = pick(p.part[:0], work, w.Work)
		p.tell(s, layer, phase)
		if i+1 < len(waves) && p.apart(w, &waves[i+1]) {
			if p.accel {
				s.Record() // the table is sent before the copies, which use the same engine
			}
			if err := p.load(waves[i+1].Loads, &p.stats[phase], st.Timing); err != nil {
				p.doubt(layer, phase)
				return list, err
			}
			ahead = true
		}
		if !p.line.compute(s, p.residency, &p.step, w.Work, st.Timing, func(s device.Stream) { p.enqueue(s, g, st, layer, phase) }) {
			p.doubt(layer, phase)
		}
	}
	p.line.join(s)
	p.trickle()
	if p.ReturnsSums() && (p.helped[phase] || len(p.decision.Host) > 0) {
		st.ExpertSlot = p.views[phase].Bank(layer).Map
	} else {
		st.ExpertSlot = device.Mat{}
	}
	return pick(list, work, p.decision.Host), nil
}

// enqueue enqueues p.part of a layer's work. Its experts are on the device.
func (p *Placement) enqueue(s device.Stream, g *group.Group, st *stages.State, layer int, phase dispatch.Phase) {
	if !p.accel {
		g.Experts(s, st, layer, p.part)
		return
	}
	g.ExpertsOn(s, st, p.views[phase].Bank(layer))
}

// tell enqueues an accelerator's table of a layer with the slots of the experts of p.part. The wait for
// their copies follows it.
func (p *Placement) tell(s device.Stream, layer int, phase dispatch.Phase) {
	if !p.accel || p.sides[phase].settled.Start.Fixed[phase] {
		return
	}
	p.nowhere()
	for _, w := range p.part {
		p.table[w.Expert], _ = p.residency.Slot(dispatch.Key{Layer: int32(layer), Expert: w.Expert})
	}
	p.views[phase].Set(s, layer, p.table)
}

// doubt records that an accelerator's table of a layer may not be what tell has enqueued last.
func (p *Placement) doubt(layer int, phase dispatch.Phase) {
	if p.accel {
		p.views[phase].Doubt(layer)
	}
}

// apart reports whether the copies of the next wave may begin before the work of this one is enqueued,
// which takes the host some time: none of them may replace an expert of this wave.
func (p *Placement) apart(now, next *dispatch.Wave) bool {
	if len(next.Work) == 0 || len(next.Loads) == 0 {
		return false
	}
	p.taken = p.taken[:0]
	for _, i := range now.Work {
		slot, _ := p.residency.Slot(dispatch.Key{Layer: p.step.Layer(), Expert: p.step.Work[i].Expert})
		p.taken = append(p.taken, slot)
	}
	return !slices.ContainsFunc(next.Loads, func(l dispatch.Load) bool { return slices.Contains(p.taken, l.Slot) })
}

// nowhere clears p.table: no expert has a slot.
func (p *Placement) nowhere() {
	p.table = p.table[:0]
	for range p.everyone {
		p.table = append(p.table, -1)
	}
}

// Steady reports whether experts stay in their slots, so that steps of different queues may run at the
// same time.
func (p *Placement) Steady() bool {
	for phase := range dispatch.Phases {
		if !p.sides[phase].settled.Start.Fixed[phase] {
			return false
		}
	}
	return p.pool == nil
}

// Whole reports whether the experts of a layer can be enqueued, by Mix, without knowing the router's
// choice for a batch with the given number of rows. A step with a probe shows the rows of experts,
// which must then all be on the device.
func (p *Placement) Whole(rows int, watched bool) bool {
	phase := p.Phase(rows)
	start := &p.sides[phase].settled.Start
	return p.accel && start.Fixed[phase] && !p.helped[phase] && (!start.Host[phase] || p.Asks(rows, watched))
}

// Asks reports whether a batch with the given number of rows makes host calls for experts.
func (p *Placement) Asks(rows int, watched bool) bool {
	phase := p.Phase(rows)
	start := &p.sides[phase].settled.Start
	return p.accel && start.Fixed[phase] && !p.helped[phase] && start.Host[phase] && !watched && rows <= p.callRows
}

// callRowsMost bounds the rows of a host call: copies of more rows are faster than operators that
// read and write host memory.
const callRowsMost = 512

// NewHostCalls makes the host calls of a batch for the given number of servers; nil if no batch
// makes any. If the device refuses, no batch makes any from now on: the host takes part between two
// layers, and Notices says so. It is called before the first step.
func (p *Placement) NewHostCalls(servers int) *offload.HostCalls {
	if p.callRows == 0 {
		return nil
	}
	l, err := p.Experts.NewHostCalls(p.callRows, servers)
	if err != nil {
		p.callRows, p.unasked = 0, err
		return nil
	}
	return l
}

// Notices returns lines about parts that work in a slower way than planned.
func (p *Placement) Notices() []string {
	lines := p.Experts.Notices()
	if p.unasked != nil {
		lines = append(lines, fmt.Sprintf("%s: the device cannot ask the host in the middle of a step, so each layer waits for it, which is slower: %v",
			p.Strategy(dispatch.Decode).Name(), p.unasked))
	}
	return lines
}

// mostCallRows returns the largest number of rows of a host call, 0 if no batch makes host calls.
func (p *Placement) mostCallRows() int {
	rows := 0
	for phase := range dispatch.Phases {
		if start := &p.sides[phase].settled.Start; start.Fixed[phase] && start.Host[phase] {
			rows = HostCallRows(p.threshold, p.Rows())
		}
	}
	return rows
}

// HostCallRows returns the most rows of a host call. Batches of threshold or more rows are prompts,
// and rows is the most that a layer sees at once.
func HostCallRows(threshold, rows int) int {
	rows = min(rows, callRowsMost)
	if threshold > 1 { // else all batches are prompts
		rows = min(rows, threshold-1)
	}
	return rows
}

// Mix enqueues all of a MoE layer after Attend, with the copies it needs, for batches that are Whole. l
// belongs to the batch. It panics as Run does.
func (p *Placement) Mix(s device.Stream, g *group.Group, st *stages.State, layer int, l *offload.HostCalls, probe stages.Probe) error {
	rows := st.Total()
	phase := p.Phase(rows)
	here := p.views[phase].Bank(layer)
	if !p.sides[phase].moves {
		asks, links := p.Asks(rows, probe != nil), st.Links && p.pool != nil && p.pool.link.on != nil
		if links {
			here = p.pool.link.on.Pick(s, st, layer)
		}
		if asks {
			l.Post(s, st, here.Map)
		}
		if links {
			p.pool.link.on.Bring(s, st, layer)
		}
		switch {
		case asks && p.AnswersRows():
			slots := here.Map
			if !p.Any() {
				here = nil
			}
			g.MixRows(s, st, layer, here, func(x *stages.Program) { l.TakeRows(x, st, slots) })
			return nil
		case asks && !p.Any():
			g.FinishHostRouted(s, st, layer)
		default:
			g.MixOf(s, st, layer, here, probe)
		}
		if asks {
			l.Take(s, st)
		}
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide(layer, rows, p.everyone)
	for i := range p.decision.Waves {
		w := &p.decision.Waves[i]
		if err := p.load(w.Loads, &p.stats[phase], st.Timing); err != nil {
			return err
		}
		if len(w.Work) > 0 {
			p.line.compute(s, p.residency, &p.step, w.Work, st.Timing, func(s device.Stream) { g.MixOf(s, st, layer, here, probe) })
		}
	}
	return nil
}

// Ahead begins the first copies for a batch with the given number of rows, if a prefill goes through the
// model part by part. Dense layers and attention run meanwhile. timing records the copies.
func (p *Placement) Ahead(rows int, timing *device.Timing) error {
	if len(p.Parts(rows)) < 2 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	phase := p.decide(int(p.setup.Layers[0]), rows, nil)
	for i := range p.decision.Waves {
		if err := p.load(p.decision.Waves[i].Loads, &p.stats[phase], timing); err != nil {
			return err
		}
	}
	return nil
}

// decide fills p.decision for the routed work of a layer in a batch with the given number of rows.
func (p *Placement) decide(layer, rows int, work []device.ExpertRows) dispatch.Phase {
	phase := p.Phase(rows)
	s := p.sides[phase]
	in := &p.step
	*in = dispatch.Step{Setup: &p.setup, Start: &s.settled.Start, First: s.first, Index: p.index[layer], Phase: phase, Work: in.Work[:0], Residency: p.residency}
	for _, w := range work {
		in.Work = append(in.Work, dispatch.Rows{Expert: w.Expert, Rows: int32(len(w.Assign))})
	}
	s.settled.Decide(&p.decision, in)
	switch {
	case p.accel && s.settled.Start.Host[phase]:
		p.byTable(p.views[phase].Slots(layer))
	case s.settled.Start.Learns:
		p.byTable(p.pool.there[in.Index])
	}
	return phase
}

// byTable divides the work by a table of slots. The table of an accelerator has the experts that stay, but not
// those that another strategy has just copied, and the table of a pool does not have experts that are coming.
func (p *Placement) byTable(slots []int32) {
	d := &p.decision
	d.Host, d.Waves = d.Host[:0], append(d.Waves[:0], dispatch.Wave{})
	for i, w := range p.step.Work {
		if slots[w.Expert] < 0 {
			d.Host = append(d.Host, int32(i))
		} else {
			d.Waves[0].Work = append(d.Waves[0].Work, int32(i))
		}
	}
}

// load enqueues copies, one for consecutive experts in consecutive slots.
func (p *Placement) load(loads []dispatch.Load, s *Stats, timing *device.Timing) error {
	for len(loads) > 0 {
		n := 1
		for n < len(loads) && loads[n].Layer == loads[0].Layer {
			n++
		}
		done, err := p.line.load(p.residency, loads[:n], timing)
		s.Copies += int64(done)
		s.CopiedBytes += int64(done) * p.setup.Bytes
		if err != nil {
			return err
		}
		loads = loads[n:]
	}
	return nil
}

// Settle waits until the device has completed all work. Then no work reads or writes the memory of an
// abandoned batch any more.
func (p *Placement) Settle() error {
	p.mu.Lock()
	e := p.line.mark()
	p.mu.Unlock()
	if e == nil {
		return nil // the work is on the batches' streams
	}
	return e.Wait()
}

// pick appends the items of work with the given indices.
func pick(list, work []device.ExpertRows, index []int32) []device.ExpertRows {
	for _, i := range index {
		list = append(list, work[i])
	}
	return list
}
