package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"krater/kernels/device"
)

// ErrChanged means that other rows arrived than were sent, ErrLate that none had arrived by the deadline.
var (
	ErrChanged = errors.New("other rows arrived than were sent")
	ErrLate    = errors.New("the rows did not arrive in time")
)

// Deadline is how long the copies of a hop may take: the slowest link takes some milliseconds.
const Deadline = 5 * time.Second

// Pair belongs to all hops from one rank to the next. It counts their costs and knows which kinds of
// link had a fault.
type Pair struct {
	Deadline time.Duration // 0: Deadline
	worst    atomic.Int32  // the first of the kinds that is still used
	costs    [8]cost       // by kind
}

// Cost counts the hops over links of one kind.
type Cost struct {
	Kind   string
	Hops   uint64
	Bytes  uint64
	Faults uint64
	// Time is how long the host waited for the sender and the copies. Where it does not wait, the
	// receiver's device times the copies of one hop in timedEvery, which stands for all of them.
	Time time.Duration
}

const timedEvery = 16

type cost struct {
	name                      atomic.Pointer[string]
	hops, bytes, faults, time atomic.Uint64
}

// Costs returns the costs of the kinds in use so far.
func (p *Pair) Costs() (list []Cost) {
	for i := range p.costs {
		if c := &p.costs[i]; c.name.Load() != nil {
			list = append(list, Cost{*c.name.Load(), c.hops.Load(), c.bytes.Load(), c.faults.Load(), time.Duration(c.time.Load())})
		}
	}
	return list
}

// Hop is the way of a batch's rows from one rank to the next: the links that passed their test, and
// the check of what they carry. It belongs to one batch. Of its kinds the first is used that no hop
// of the pair had a fault with.
type Hop struct {
	pair  *Pair
	links []chosen
	left  []Link // did not pass: a copy of theirs may hang
	at    int    // the one in use
	way   Way
	sums  device.Bridge // of the way, or of the one accelerator; nil: there is none
	sides [2]side       // the sender's and the receiver's

	mu     sync.Mutex // for what expire uses
	timer  *time.Timer
	sent   device.Event // the rows are ready
	ready  bool         // sent had passed when expire ran last
	late   bool
	flying bool // from Carry to Arrived
}

// chosen is a link and the place of its kind among all.
type chosen struct {
	Link
	kind int
}

// side has the sum of the rows on one device.
type side struct {
	sum    uint64   // of rows that the host sees
	copies [][]byte // of others, unless the device adds up
	used   int      // of copies
	device bool     // it adds up
}

// Open makes the hop between two devices from every kind of link that passes a Test. src and dst are
// matrices of the largest size that it will carry; the test overwrites them. more is the number of
// further bytes that it carries. fallen are the faults of kinds that did not pass. If no kind passes,
// Open returns them as an error.
func Open(p *Pair, kinds []Kind, from, to device.Stream, src, dst device.Mat, more int) (h *Hop, fallen []error, err error) {
	h = &Hop{pair: &Pair{Deadline: p.Deadline}, way: Way{From: from.Device(), To: to.Device(), Largest: src.Bytes() + more + mostMats*lineBytes}}
	h.bridge()
	for i, kind := range kinds {
		l, ok := kind(h.way)
		if !ok {
			continue
		}
		h.links = append(h.links, chosen{l, i})
		h.at = len(h.links) - 1
		if err := h.test(from, to, src, dst); err != nil {
			fallen = append(fallen, fmt.Errorf("%s: %w", l.Name(), err))
			h.links = h.links[:h.at]
			if err := errors.Join(from.Recover(), to.Recover()); err != nil {
				return nil, fallen, fmt.Errorf("%s: %w", l.Name(), err)
			}
			h.left = append(h.left, l)
		}
	}
	if h.at = 0; len(h.links) == 0 {
		return nil, fallen, fmt.Errorf("no link from %s to %s works: %w", h.way.From.Name(), h.way.To.Name(), errors.Join(fallen...))
	}
	name := h.Name()
	h.pair = p // tests do not count
	for _, l := range h.links {
		if f := l.Flight(); f != nil {
			f.count = 0
		}
	}
	p.costs[h.links[0].kind].name.Store(&name)
	return h, fallen, nil
}

// bridge makes what the devices have in common.
func (h *Hop) bridge() {
	a, b := h.way.From.Accelerator(), h.way.To.Accelerator()
	var err error
	switch {
	case a != nil && b != nil:
		if h.sums, err = b.NewBridge(h.way.From, roomBytes(h.way.Largest)); err == nil {
			h.way.Bridge = h.sums
			return
		}
	case b != nil:
		h.sums, err = b.NewBridge(h.way.From, 0)
	case a != nil:
		h.sums, err = a.NewBridge(h.way.To, 0)
	}
	if err != nil { // links copy through memory that is not pinned
		h.sums = nil
	}
}

// Name is that of the link in use.
func (h *Hop) Name() string { return h.links[h.at].Name() }

// Waits reports whether Carry waits for the sender's work.
func (h *Hop) Waits() bool { return h.way.Bridge == nil }

// Carry is Link.Carry. Arrived says whether the rows were carried.
func (h *Hop) Carry(from, to device.Stream, src, dst []device.Mat) error {
	for h.at+1 < len(h.links) && h.links[h.at].kind < int(h.pair.worst.Load()) {
		h.at++
	}
	began := time.Now()
	h.add(0, from, src)
	if f := h.links[h.at].Flight(); f != nil {
		f.count++
		f.timed = f.count%timedEvery == 1
	}
	if err := h.links[h.at].Carry(from, to, src, dst); err != nil {
		return err
	}
	h.watch()
	h.add(1, to, dst)
	h.count(src, time.Since(began))
	return nil
}

// count adds a hop to the costs.
func (h *Hop) count(src []device.Mat, took time.Duration) {
	c, name := &h.pair.costs[h.links[h.at].kind], h.Name()
	if c.name.Load() == nil {
		c.name.Store(&name)
	}
	c.hops.Add(1)
	for _, m := range src {
		c.bytes.Add(uint64(m.Bytes()))
	}
	if h.Waits() {
		c.time.Add(uint64(took))
	}
}

// add makes one side add up the rows.
func (h *Hop) add(i int, s device.Stream, rows []device.Mat) {
	x := &h.sides[i]
	x.sum, x.used, x.device = 0, 0, h.sums != nil && s.Device().Accelerator() != nil
	if x.device {
		h.sums.Sum(s, 8*device.SumParts*i, rows)
		return
	}
	for part, m := range rows {
		if m.Buf.Host() != nil {
			x.sum += device.SumOf(part, host(m))
			continue
		}
		if x.used == len(x.copies) {
			x.copies = append(x.copies, nil)
		}
		b := &x.copies[x.used]
		if n := m.Bytes(); cap(*b) < n {
			*b = make([]byte, n)
		} else {
			*b = (*b)[:n]
		}
		s.CopyOut(*b, m)
		x.used++
	}
}

// total returns the sum of a side whose stream has been waited for.
func (h *Hop) total(i int) uint64 {
	x := &h.sides[i]
	sum := x.sum
	for part, b := range x.copies[:x.used] {
		sum += device.SumOf(part, b)
	}
	if x.device {
		for b := h.sums.Host()[8*device.SumParts*i:][:8*device.SumParts]; len(b) > 0; b = b[8:] {
			sum += binary.LittleEndian.Uint64(b)
		}
	}
	return sum
}

// Arrived compares the rows that the receiver has with the rows that were sent. Both streams have
// been waited for. After an error the hops of the pair take another kind of link, if there is one.
func (h *Hop) Arrived() error {
	late := h.unwatch()
	if late {
		return h.fault(ErrLate)
	}
	l := h.links[h.at]
	if f := l.Flight(); f != nil {
		h.pair.costs[l.kind].time.Add(uint64(timedEvery * f.took()))
	}
	if a, b := h.total(0), h.total(1); a != b {
		return h.fault(fmt.Errorf("%w: their sum is %016x instead of %016x", ErrChanged, b, a))
	}
	return nil
}

func (h *Hop) fault(err error) error {
	l := h.links[h.at]
	h.pair.costs[l.kind].faults.Add(1)
	if h.at+1 < len(h.links) {
		h.pair.worst.Store(max(h.pair.worst.Load(), int32(l.kind)+1))
	}
	return fmt.Errorf("link from %s to %s (%s): %w", h.way.From.Name(), h.way.To.Name(), l.Name(), err)
}

// Settled reports whether no copy of the hop is under way any more. One that hangs may write rows
// later on, so these must not be used.
func (h *Hop) Settled() bool {
	return !slices.ContainsFunc(h.links, func(l chosen) bool { return !l.Flight().settled() })
}

// Leave gives up the links whose copies hang, and reports whether there are others. What these copies
// write must be left to them.
func (h *Hop) Leave() bool {
	kept := slices.DeleteFunc(slices.Clone(h.links), func(l chosen) bool { return !l.Flight().settled() })
	if len(kept) == 0 {
		return false
	}
	for _, l := range h.links {
		if !l.Flight().settled() {
			h.left = append(h.left, l.Link)
		}
	}
	h.links, h.at = kept, 0
	return true
}

// Close frees the links. If copies hang, their memory and streams are left.
func (h *Hop) Close() {
	h.unwatch()
	all := true
	for _, l := range h.links {
		h.left = append(h.left, l.Link)
	}
	for _, l := range h.left {
		if l.Flight().settled() {
			l.Close()
		} else {
			all = false
		}
	}
	if h.sums != nil && all {
		h.sums.Close()
	}
}

// watch starts the time of a hop that nobody waits for.
func (h *Hop) watch() {
	f := h.links[h.at].Flight()
	if f == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent, h.ready, h.late, h.flying = f.sent, false, false, true
	if h.timer == nil {
		h.timer = time.AfterFunc(h.limit(), h.expire)
	} else {
		h.timer.Reset(h.limit())
	}
}

func (h *Hop) limit() time.Duration {
	if h.pair.Deadline > 0 {
		return h.pair.Deadline
	}
	return Deadline
}

// unwatch ends the time, and reports whether it had run out.
func (h *Hop) unwatch() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer != nil {
		h.timer.Stop()
	}
	h.flying = false
	return h.late
}

// expire runs when the time has run out. It lets the receiver go on if the sender was done when it
// ran before: the copies have had all of the time since then.
func (h *Hop) expire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.flying || h.way.Bridge.Passed() {
		return
	}
	if h.late = h.ready; h.late {
		h.way.Bridge.Force()
		return
	}
	h.ready = h.sent.Done()
	h.timer.Reset(h.limit())
}
