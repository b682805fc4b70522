package placement

import (
	"math"
	"slices"
	"time"
)

// Served holds averages over recent steps of generated rows with a strategy that learns.
type Served struct {
	Tokens  int64         // generated rows since the start
	Rows    float64       // rows of a step
	Step    time.Duration // from the beginning of a step to that of the next
	HitRate float64       // share of the experts used that were on the device
	Places  float64       // share of the model's experts that have a slot
}

const (
	// servedHalf is the number of steps after which a step counts half as much.
	servedHalf = 64
	// idleTimes bounds a step, in times of the shortest of the last ones: a longer one is a time without
	// requests.
	idleTimes = 4
)

// served adds up steps of generated rows. Older ones count less.
type served struct {
	tokens                          int64
	steps, rows, seconds, hits, all float64
	began                           time.Duration // of the step in flight; 0: none
	width                           int           // its rows
	before                          Stats         // when it began
}

// pause notes that other work comes.
func (s *served) pause() { s.began = 0 }

// serve notes that a step of generated rows begins, by which the one before has ended. p.mu is held.
func (p *Placement) serve(rows int) {
	s, now, stats := &p.pool.served, p.pool.budget.now(), p.decodeStats()
	steps := p.pool.budget.steps
	if took := now - s.began; s.began > 0 && took > 0 && (len(steps) == 0 || took < idleTimes*slices.Min(steps)) {
		x, keep := stats.Since(s.before), math.Exp2(-1./servedHalf)
		s.tokens += int64(s.width)
		for sum, v := range map[*float64]float64{&s.steps: 1, &s.rows: float64(s.width), &s.seconds: took.Seconds(), &s.hits: float64(x.Hits), &s.all: float64(x.Hits + x.Misses + x.Host)} {
			*sum = keep**sum + v
		}
	}
	s.began, s.width, s.before = max(1, now), rows, stats
}

// Served returns averages of decode, and false if no strategy learns or no tokens were generated.
func (p *Placement) Served() (v Served, ok bool) {
	if p.pool == nil {
		return v, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.pool.served
	if s.steps == 0 || s.all == 0 {
		return v, false
	}
	all := float64(len(p.setup.Layers) * p.setup.Experts)
	return Served{s.tokens, s.rows / s.steps, time.Duration(s.seconds / s.steps * 1e9), s.hits / s.all, float64(p.pool.last-p.pool.first-int32(p.exchange.taken)) / all}, true
}
