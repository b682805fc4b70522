package cluster

import (
	"errors"
	"sync"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
)

// lookTimeout bounds how long a worker may take to say what it has recorded.
const lookTimeout = time.Second

// errLook: a worker did not say in time what it has recorded.
var errLook = errors.New("it does not answer")

// look asks the worker what it has recorded.
func (m *member) look(x look) (*seen, error) {
	m.looking.Lock()
	defer m.looking.Unlock()
	m.looks++
	x.Number = m.looks
	if err := m.send(&message{Look: &x}); err != nil {
		m.lose(err)
		return nil, err
	}
	late := time.NewTimer(lookTimeout)
	defer late.Stop()
	for {
		select {
		case a := <-m.saw:
			if a.Number == x.Number { // else it is late
				return a, nil
			}
		case <-m.lost:
			return nil, &errLost{m.offer.Worker, m.cause}
		case <-late.C:
			return nil, errLook
		}
	}
}

// ahead returns how far the worker's clock is ahead of this one, how exactly that is known, and whether it is.
func (m *member) ahead() (ahead, within time.Duration, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.offset, m.rtt / 2, m.rtt > 0
}

// peer is a worker of one generation, as the pipeline shows it.
type peer struct {
	*member
	before *member // nil: the leader

	mu     sync.Mutex
	hop    engine.Link   // so far, with its time between two clocks
	took   time.Duration // its time on one
	within time.Duration // how exactly the clocks of its two ends were known when they were used least exactly
}

// peers describes the workers of a generation.
func peers(list []*member, drawn []engine.Topology) (all []*peer, told []Peer) {
	var before *member
	for i, m := range list {
		p := &peer{member: m, before: before}
		before = m
		all = append(all, p)
		told = append(told, Peer{Name: m.offer.Worker, Topology: drawn[i], Ask: p.ask, Hop: p.cost, Ahead: func() time.Duration {
			ahead, _, _ := m.ahead()
			return ahead
		}})
	}
	return all, told
}

// clocks returns how far the worker's clock and that of the member before are ahead of the leader's.
func (p *peer) clocks() (own, before time.Duration, known bool) {
	own, within, known := p.ahead()
	if p.before != nil {
		var more time.Duration
		var also bool
		before, more, also = p.before.ahead()
		within, known = within+more, known && also
	}
	p.mu.Lock()
	p.within = max(p.within, within)
	p.mu.Unlock()
	return own, before, known
}

// ask implements Peer.Ask.
func (p *peer) ask(from map[string]uint64, detail bool) (*trace.Told, error) {
	a, err := p.look(look{Events: true, From: from, Detail: detail})
	if err != nil {
		return nil, err
	}
	own, before, known := p.clocks()
	if !known || a.Told == nil {
		return nil, errors.New("nothing is known of its clock or of its part")
	}
	p.note(a.Hop)
	a.Told.Shift(int64(own), int64(before))
	return a.Told, nil
}

// note takes what the hop has cost. As clocks drift, each difference is put right by what is known of them at that time.
func (p *peer) note(now engine.Link) {
	own, before, known := p.clocks()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Hops < p.hop.Hops || !known {
		return
	}
	p.took += max(0, now.Time-p.hop.Time-time.Duration(now.Hops-p.hop.Hops)*(own-before))
	p.hop = now
}

// refresh asks what the hop has cost.
func (p *peer) refresh() {
	if a, err := p.look(look{}); err == nil {
		p.note(a.Hop)
	}
}

// cost implements Peer.Hop.
func (p *peer) cost() engine.Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.hop
	l.Time, l.Within = p.took, p.within
	return l
}
