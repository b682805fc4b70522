package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// TestClaim: blocks that come free go to the sequence that claimed them and to earlier ones.
func TestClaim(t *testing.T) {
	cfg := roomy
	cfg.Blocks = 10
	c := newCore(t, cfg)
	mustAdd(t, c, Request{ID: 1, PromptLen: 1, MaxNew: 9}, Request{ID: 2, PromptLen: 1, MaxNew: 9}, Request{ID: 3, PromptLen: 1, MaxNew: 9})
	mustNext(t, c)
	c.claim(c.byID[2], 3)
	for id, want := range map[uint64]int{1: 7, 2: 7, 3: 4} {
		if got := c.room(c.byID[id]); got != want {
			t.Errorf("request %d may take %d blocks, want %d", id, got, want)
		}
	}
	mustAdd(t, c, Request{ID: 4, PromptLen: 1, MaxNew: 1})
	if c.fits(c.byID[4]) {
		t.Error("one is admitted while another waits for memory")
	}
	if c.claim(c.byID[3], 1); c.short != c.byID[2] {
		t.Error("a claim was taken over by one behind it")
	}
	if c.claim(c.byID[1], 1); c.short != c.byID[1] {
		t.Error("a claim stands before one of the first")
	}
	c.Cancel(1, Cancelled)
	if c.short != nil {
		t.Error("a claim is left")
	}
}

// TestWholePool: a prompt that needs every block is admitted when no sequence runs.
func TestWholePool(t *testing.T) {
	cfg := roomy
	cfg.Blocks = 300
	c := newCore(t, cfg)
	s := &telling{core: c}
	for id := range uint64(2) {
		mustAdd(t, c, Request{ID: id, PromptLen: 300 * 16, Prompt: make([]int32, 300*16), MaxNew: 1})
	}
	for range 100 {
		if !c.Idle() {
			if err := s.step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := c.Stats(); st.Ended[Length] != 2 || st.PrefixHits != 299*16 {
		t.Errorf("%+v", st)
	}
}

// TestParkedBehind: no request waits for the blocks of a later one.
func TestParkedBehind(t *testing.T) {
	for _, priority := range []int{0, 1} {
		cfg := roomy
		cfg.PrefillChunk, cfg.MaxBatchTokens, cfg.MaxSeqs = 16, 32, 8
		c := newCore(t, cfg)
		s := &stepper{core: c}
		mustAdd(t, c, Request{ID: 1, PromptLen: 100, Prompt: make([]int32, 100), MaxNew: 1})
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
		mustAdd(t, c, Request{ID: 2, PromptLen: 100, Prompt: make([]int32, 100), MaxNew: 1, Priority: priority})
		if b := mustNext(t, c); len(b.Spans) != 1+priority || c.parked.len() != 1-priority {
			t.Errorf("priority %d: batch %+v, %d are parked", priority, b, c.parked.len())
		}
	}
}

// TestReserve: four times as many answers at once as memory holds. Those preempted in the
// first wave go on when there is room for good: no request is admitted that would be preempted at once.
func TestReserve(t *testing.T) {
	cfg := roomy
	cfg.Blocks = 1000
	c := newCore(t, cfg)
	s := &telling{core: c}
	const n, prompt, answer = 128, 100, 400
	for id := range uint64(n) {
		ids := make([]int32, prompt)
		for i := range ids {
			ids[i] = int32(id)*1000 + int32(i)
		}
		mustAdd(t, c, Request{ID: id, PromptLen: prompt, Prompt: ids, MaxNew: answer})
	}
	for !c.Idle() {
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	st := c.Stats()
	again := int(st.PrefillRows+st.DecodeRows) - n*(prompt+answer-1)
	t.Logf("%d preemptions, %d batches, %d rows computed again of %d, %d found in the cache", st.Preemptions, st.Batches, again, n*(prompt+answer-1), st.PrefixHits)
	if st.Preemptions < n/4 || st.Preemptions > n || again > n*(prompt+answer)/3 {
		t.Errorf("%d preemptions, %d rows computed again", st.Preemptions, again)
	}
}

// TestKeyShares: a key with 300 requests leaves the half of the work to one that has a few.
func TestKeyShares(t *testing.T) {
	cfg := roomy
	cfg.MaxSeqs, cfg.MaxBatchTokens, cfg.PrefillChunk, cfg.PrefillShare = 4, 64, 64, 64
	c := newCore(t, cfg)
	s := &stepper{core: c}
	for id := range uint64(300) {
		mustAdd(t, c, Request{ID: id, PromptLen: 64, MaxNew: 1, Key: 1})
	}
	for range 20 {
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint64(20) {
		mustAdd(t, c, Request{ID: 1000 + id, PromptLen: 64, MaxNew: 1, Key: 2})
	}
	done := [2]int{}
	for range 40 {
		b := mustNext(t, c)
		for _, sp := range b.Spans {
			done[sp.ID/1000] += sp.Len
		}
		if err := s.done(b); err != nil {
			t.Fatal(err)
		}
	}
	if diff := done[0] - done[1]; diff < -2*64 || diff > 2*64 {
		t.Errorf("rows by key: %v", done)
	}
	// A key that was away gets no credit for it.
	if a, b := c.keys[payer{key: 1}].served, c.keys[payer{key: 2}].served; max(a, b)-min(a, b) > 2*64 {
		t.Errorf("sums are %d and %d", a, b)
	}
}

// TestAging: a request two levels below those that never cease starts when it has gained them.
func TestAging(t *testing.T) {
	for _, aging := range []int{0, 5, 20} {
		cfg := roomy
		cfg.MaxSeqs, cfg.MaxBatchTokens, cfg.PrefillChunk, cfg.Aging = 1, 16, 16, aging
		c := newCore(t, cfg)
		mustAdd(t, c, Request{ID: 1, PromptLen: 16, MaxNew: 1}, Request{ID: 2, PromptLen: 16, MaxNew: 1, Priority: 2, Background: true})
		started := 0
		s := &stepper{core: c}
		for i := 1; i <= 100; i++ {
			mustAdd(t, c, Request{ID: uint64(10 + i), PromptLen: 16, MaxNew: 1, Priority: 2})
			b := mustNext(t, c)
			switch b.Spans[0].ID {
			case 1:
				started = i
			case 2:
				t.Fatal("the background went before")
			}
			if err := s.done(b); err != nil {
				t.Fatal(err)
			}
		}
		if want := 2*aging + 1; aging > 0 && (started < want || started > want+1) || aging == 0 && started != 0 {
			t.Errorf("aging %d: started with batch %d, want %d", aging, started, want)
		}
	}
}

// TestBackgroundChunk: beside streams prompts in the background get a chunk a batch, whatever
// the budget, and none where a prompt in front takes it.
func TestBackgroundChunk(t *testing.T) {
	cfg := roomy
	cfg.PrefillChunk, cfg.PrefillShare = 16, 128
	c := newCore(t, cfg)
	s := &stepper{core: c}
	mustAdd(t, c, Request{ID: 1, PromptLen: 1, MaxNew: 500})
	for id := uint64(2); id < 20; id++ {
		mustAdd(t, c, Request{ID: id, PromptLen: 100, MaxNew: 5, Background: true})
	}
	for i := range 60 {
		if i == 30 {
			mustAdd(t, c, Request{ID: 100, PromptLen: 16 * 8, MaxNew: 5})
		}
		b := mustNext(t, c)
		behind, front := 0, 0
		for _, sp := range b.Spans {
			switch {
			case sp.Decode || sp.ID == 1:
			case sp.ID == 100:
				front += sp.Len
			default:
				behind += sp.Len
			}
		}
		if behind > 16 || i >= 30 && i < 38 && front != 16 {
			t.Fatalf("batch %d: %d rows in the background, %d in front", i, behind, front)
		}
		if err := s.done(b); err != nil {
			t.Fatal(err)
		}
	}
	if st := c.Stats(); st.Ended[Length] < 3 {
		t.Errorf("the background does not go on: %+v", st)
	}
}

// TestTogether: prompts that wait go into one batch as far as the budget reaches.
func TestTogether(t *testing.T) {
	cfg := roomy
	cfg.MaxBatchTokens, cfg.PrefillChunk = 512, 256
	c := newCore(t, cfg)
	for id := range uint64(6) {
		mustAdd(t, c, Request{ID: id, PromptLen: 90, MaxNew: 5})
	}
	if b := mustNext(t, c); b.Rows != 512 || len(b.Spans) != 6 || b.Wanted != 5 {
		t.Errorf("%d rows of %d prompts, %d whole", b.Rows, len(b.Spans), b.Wanted)
	}
}

// TestSameAnswer is the same prompt again, longer and longer: a hit never changes which rows'
// contexts there are (TestReuse), only how many are computed.
func TestSameAnswer(t *testing.T) {
	for _, chunk := range []int{1, 7, 32, 1000} {
		cfg := roomy
		cfg.PrefillChunk = chunk
		c := newCore(t, cfg)
		s := &telling{core: c}
		prompt := make([]int32, 100)
		for i := range prompt {
			prompt[i] = int32(i)
		}
		for id, want := range []int{100, 1, 1} {
			was := c.Stats().PrefillRows
			mustAdd(t, c, Request{ID: uint64(id), PromptLen: 96, Prompt: prompt[:96], MaxNew: 3})
			for !c.Idle() {
				if err := s.step(); err != nil {
					t.Fatal(err)
				}
			}
			if got := int(c.Stats().PrefillRows - was); got != min(want, 96) {
				t.Errorf("chunks of %d, request %d: %d rows of the prompt are computed, want %d", chunk, id, got, min(want, 96))
			}
		}
	}
}

// TestFailedLeavesNothing: what was computed for a sequence that failed by itself is of no use to
// others, nor what a batch ahead brings back of one that has ended: it may not have been computed. One that
// stops leaves a block, and the part of its last one.
func TestFailedLeavesNothing(t *testing.T) {
	for _, why := range []Reason{Stop, Failed} {
		cfg := further()
		cfg.BlockTokens = 4
		c := newCore(t, cfg)
		mustAdd(t, c, Request{ID: 1, PromptLen: 7, Prompt: make([]int32, 7), MaxNew: 9})
		first := mustNext(t, c)
		ahead := mustNext(t, c)
		if err := c.Done(first.ID, []Outcome{{ID: 1, NewTokens: 1, Tokens: []int32{5}, End: why}}); err != nil {
			t.Fatal(err)
		}
		if err := c.Done(ahead.ID, []Outcome{{ID: 1, NewTokens: 1, Tokens: []int32{6}}}); err != nil {
			t.Fatal(err)
		}
		if got, want := c.Stats().BlocksCached, map[Reason]int{Stop: 2}[why]; got != want || !c.Idle() {
			t.Errorf("%v: %d blocks are cached, want %d", why, got, want)
		}
	}
}

// TestForms: with two forms of rows an answer is of no use to a prompt that goes on from it,
// and of use to its own sequence after a preemption.
func TestForms(t *testing.T) {
	for forms, want := range map[bool]int{false: 20, true: 8} {
		cfg := roomy
		cfg.BlockTokens, cfg.Classes = 4, forms
		c := newCore(t, cfg)
		s := &telling{core: c}
		all := func(r Request) {
			mustAdd(t, c, r)
			for !c.Idle() {
				if err := s.step(); err != nil {
					t.Fatal(err)
				}
			}
		}
		all(Request{ID: 1, PromptLen: 10, Prompt: make([]int32, 10), MaxNew: 11})
		if got := c.Stats().BlocksCached; got != 5 {
			t.Errorf("forms %v: %d blocks are cached, want 5", forms, got)
		}
		text := slices.Concat(make([]int32, 10), slices.Repeat([]int32{1}, 11), []int32{7})
		all(Request{ID: 2, PromptLen: len(text), Prompt: text, MaxNew: 1})
		if got := int(c.Stats().PrefixHits); got != want {
			t.Errorf("forms %v: %d tokens found, want %d", forms, got, want)
		}
	}
}

// TestReuseAnswers: the next turn takes what an answer has left, and when it is preempted and all
// of that is gone, computes it again in the forms that it found.
func TestReuseAnswers(t *testing.T) {
	cfg := roomy
	cfg.BlockTokens, cfg.Classes, cfg.ReuseAnswers = 4, true, true
	c := newCore(t, cfg)
	s := &telling{core: c}
	mustAdd(t, c, Request{ID: 1, PromptLen: 10, Prompt: make([]int32, 10), MaxNew: 11})
	for !c.Idle() {
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	text := slices.Concat(make([]int32, 10), slices.Repeat([]int32{1}, 11), []int32{7, 8, 9})
	mustAdd(t, c, Request{ID: 2, PromptLen: len(text), Prompt: text, MaxNew: 9})
	for range 3 {
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.Stats().PrefixHits; got != 20 {
		t.Errorf("%d tokens found, want 20", got)
	}
	lost := mustNext(t, c)
	if err := errors.Join(c.Fail(lost.ID, nil, true), c.Gone(lost.ID)); err != nil {
		t.Fatal(err)
	}
	c.pool.Clear() // so that nothing is found and all is computed again
	var got []string
	for range 5 {
		b := mustNext(t, c)
		sp := b.Spans[0]
		got = append(got, fmt.Sprintf("%d+%d again %v", sp.Pos, sp.Len, sp.Recomputed))
		if err := c.Done(b.ID, []Outcome{{ID: 2, NewTokens: 1, Tokens: []int32{2}}}[:b.Wanted]); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"0+10 again false", "10+10 again true", "20+4 again false", "24+3 again true", "27+1 again false"}
	if !slices.Equal(got, want) {
		t.Errorf("computed again: %v, want %v", got, want)
	}
}

// TestCachedAllocatesNothing: steps of streams whose blocks are entered into the table and
// evicted again, once all buffers have grown.
func TestCachedAllocatesNothing(t *testing.T) {
	cfg := roomy
	cfg.Blocks, cfg.RAMBlocks = 640, 64
	c := newCore(t, cfg)
	s := &telling{core: c}
	id := uint64(0)
	work := func() {
		for st := c.Stats(); st.Running()+st.Waiting < 8; st = c.Stats() {
			id++
			if err := c.Add(Request{ID: id, PromptLen: 100, Prompt: make([]int32, 100), MaxNew: 1000}, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	for range 5000 {
		work()
	}
	if n := testing.AllocsPerRun(500, work); n > 0 {
		t.Errorf("%v allocations a step", n)
	}
	if st := c.Stats(); st.Moves[Save] < 1000 || st.PrefixHits == 0 {
		t.Errorf("%+v", st)
	}
}

// TestPosition: a waiting request knows about when its turn comes.
func TestPosition(t *testing.T) {
	cfg := roomy
	cfg.MaxSeqs = 1
	c := newCore(t, cfg)
	mustAdd(t, c, Request{ID: 1, PromptLen: 1, MaxNew: 100})
	mustNext(t, c)
	for id := uint64(2); id < 6; id++ {
		mustAdd(t, c, Request{ID: id, PromptLen: 1, MaxNew: 1})
	}
	mustAdd(t, c, Request{ID: 6, PromptLen: 1, MaxNew: 1, Key: 7}, Request{ID: 7, PromptLen: 1, MaxNew: 1, Priority: 1},
		Request{ID: 8, PromptLen: 1, MaxNew: 1, Background: true})
	var got string
	for id := range uint64(10) {
		if n, ok := c.Position(id); ok {
			got += fmt.Sprintf(" %d:%d", id, n)
		}
	}
	if want := " 2:2 3:3 4:4 5:5 6:0 7:1 8:6"; got != want {
		t.Errorf("places are%s, want%s", got, want)
	}
}
