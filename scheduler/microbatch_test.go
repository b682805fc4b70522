package scheduler

import "testing"

// divided is roomy with the given number of micro-batches.
func divided(micros int, ahead bool) Config {
	cfg := roomy
	cfg.MicroBatches, cfg.PrefillBatches, cfg.Ahead = micros, micros, ahead
	return cfg
}

// even checks that the batches in flight have the rows of all streams, and that no
// batch has more than its share.
func (r *relay) even(t *testing.T, streams int) {
	t.Helper()
	r.fill()
	cfg := r.core.cfg
	rows, most, micros := 0, 0, map[int]int{}
	for _, b := range r.flying {
		rows += b.Rows
		most = max(most, b.Rows)
		micros[b.MicroBatch]++
	}
	each := cfg.Depth() / cfg.MicroBatches
	if rows != streams*each || most > share(streams, cfg.MicroBatches) || len(r.flying) != each*min(streams, cfg.MicroBatches) {
		t.Errorf("%d micro-batches, ahead %v, %d streams: %d rows in %d batches, the largest has %d", cfg.MicroBatches, cfg.Ahead, streams, rows, len(r.flying), most)
	}
	for micro, n := range micros {
		if n != each {
			t.Errorf("%d micro-batches, ahead %v, %d streams: micro-batch %d has %d batches in flight", cfg.MicroBatches, cfg.Ahead, streams, micro, n)
		}
	}
}

// TestBalance: in steady decode no batch in flight is more than one row larger
// than another, whatever number of streams came in one by one, and again after all
// streams of one micro-batch have gone.
func TestBalance(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		for micros := 1; micros <= 4; micros++ {
			for streams := 1; streams <= 17; streams++ {
				c := newCore(t, divided(micros, ahead))
				r := &relay{stepper: stepper{core: c}}
				for n := range streams {
					mustAdd(t, c, Request{ID: uint64(n), PromptLen: 3, MaxNew: 1000})
					r.steps(t, 3)
				}
				r.steps(t, 6*micros)
				r.even(t, streams)
				left := streams
				for _, sp := range r.flying[0].Spans {
					c.Cancel(sp.ID, Cancelled)
					left--
				}
				if left == 0 {
					continue
				}
				r.steps(t, 10*micros)
				r.even(t, left)
			}
		}
	}
}

// TestOneStream: the other micro-batches have nothing in flight, whatever they had before.
func TestOneStream(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		c := newCore(t, divided(3, ahead))
		r := &relay{stepper: stepper{core: c}}
		for id := range uint64(5) {
			mustAdd(t, c, Request{ID: id, PromptLen: 3, MaxNew: 20})
			for !c.Idle() {
				r.fill()
				for _, b := range r.flying {
					if b.MicroBatch != 0 {
						t.Fatalf("request %d, ahead %v: batch %d is in micro-batch %d", id, ahead, b.ID, b.MicroBatch)
					}
				}
				r.steps(t, 1)
			}
		}
	}
}

// TestPassedByStreamMovesOn: a stream that waits for a micro-batch whose batch does not come
// back travels with another micro-batch.
func TestPassedByStreamMovesOn(t *testing.T) {
	c := newCore(t, divided(2, false))
	s := &stepper{core: c}
	for id := range uint64(6) {
		mustAdd(t, c, Request{ID: id, PromptLen: 1, MaxNew: 9})
	}
	one, slow := mustNext(t, c), mustNext(t, c)
	if one.Rows != 3 || slow.Rows != 3 {
		t.Fatalf("%d and %d rows", one.Rows, slow.Rows)
	}
	// Two of the slow ones end: the first micro-batch gives one stream away.
	c.Cancel(slow.Spans[0].ID, Cancelled)
	c.Cancel(slow.Spans[1].ID, Cancelled)
	for i, want := range []int{2, 3, 2, 3} {
		if err := s.done(one); err != nil {
			t.Fatal(err)
		}
		if one = mustNext(t, c); one.MicroBatch != 0 || one.Rows != want {
			t.Fatalf("batch %d of micro-batch %d has %d rows, want %d", i, one.MicroBatch, one.Rows, want)
		}
	}
}

// TestPromptsTogether: with one batch for prompts all of them travel in it, beside the
// decode rows of its micro-batch, and the streams are divided afterwards.
func TestPromptsTogether(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		cfg := divided(2, ahead)
		cfg.PrefillBatches = 1
		c := newCore(t, cfg)
		r := &relay{stepper: stepper{core: c}}
		for id := range uint64(4) {
			mustAdd(t, c, Request{ID: id, PromptLen: 3, MaxNew: 1000})
		}
		r.fill()
		if b := r.flying[0]; b.Rows != 12 || b.Wanted != 4 {
			t.Fatalf("ahead %v: the first batch is %+v", ahead, b)
		}
		for _, b := range r.flying[1:] {
			if b.Rows > b.Decode {
				t.Fatalf("ahead %v: prompts in two batches: %+v", ahead, b)
			}
		}
		r.steps(t, 8)
		r.even(t, 4)
		mustAdd(t, c, Request{ID: 10, PromptLen: 300, MaxNew: 1000}, Request{ID: 11, PromptLen: 20, MaxNew: 1000})
		for c.Stats().Waiting+c.Stats().Prefilling > 0 {
			r.fill()
			prompts := 0
			for _, b := range r.flying {
				if b.Rows > b.Decode {
					prompts++
				}
			}
			if prompts > 1 {
				t.Fatalf("ahead %v: %d batches have prompts", ahead, prompts)
			}
			r.steps(t, 1)
		}
		r.steps(t, 20)
		r.even(t, 6)
	}
}

// TestLanesArrival: while a prompt gets into one micro-batch the other keeps two batches in
// flight.
func TestLanesArrival(t *testing.T) {
	c := newCore(t, divided(2, true))
	r := &relay{stepper: stepper{core: c}}
	for id := range uint64(6) {
		mustAdd(t, c, Request{ID: id, PromptLen: 3, MaxNew: 1000})
	}
	r.steps(t, 20)
	r.even(t, 6)
	mustAdd(t, c, Request{ID: 100, PromptLen: 600, MaxNew: 50})
	for range 40 {
		r.fill()
		chains := map[int]int{}
		for _, b := range r.flying {
			chains[b.MicroBatch]++
		}
		if n := max(chains[0], chains[1]); n < 2 {
			t.Fatalf("in flight: %v, %+v", chains, c.Stats())
		}
		r.steps(t, 1)
	}
	r.even(t, 7)
}
