package tokenizer

import "context"

// scratch is the state and working memory of one Encode. It is reused, never shared.
type scratch struct {
	ids   []int32  // the symbols of a piece
	pairs []uint64 // pairs[i] is the value of the pair (symbol i, the next one)
	next  []int32  // linked list of the symbols still there, long pieces only
	prev  []int32
	heap  []uint64 // rank << 32 | position of the left symbol
	regex regexBudget

	out   []int32 // the ids of the text so far
	limit int     // of them
	ctx   context.Context
	since int   // bytes that were encoded since ctx was looked at
	err   error // why the encoding ends early

	// steps[i] hands a piece to pre-tokenizer i, the last one to the model. begun[i] says that the
	// first piece has passed; first that it begins the text.
	steps []func(piece string) error
	begun []bool
	first bool
}

const (
	// lookEvery is after how many bytes, or merges, the context is looked at.
	lookEvery = 16 << 10
	// scratchKeep is up to how many symbols the memory of an Encode is kept for the next one. One
	// huge text must not hold its memory for ever.
	scratchKeep = 1 << 16
)

func (t *Tokenizer) getScratch() *scratch {
	if sc, ok := t.scratch.Get().(*scratch); ok {
		return sc
	}
	sc := &scratch{begun: make([]bool, len(t.splitters))}
	for i, p := range t.splitters {
		sc.steps = append(sc.steps, func(piece string) error {
			start := sc.first && !sc.begun[i]
			sc.begun[i] = true
			return p.split(piece, start, &sc.regex, sc.steps[i+1])
		})
	}
	sc.steps = append(sc.steps, func(piece string) error {
		sc.out = t.model.appendPiece(sc.out, piece, sc)
		sc.spend(len(piece), len(sc.out))
		return sc.err
	})
	return sc
}

func (t *Tokenizer) putScratch(sc *scratch) {
	if cap(sc.ids) > scratchKeep || cap(sc.heap) > scratchKeep {
		return
	}
	sc.regex, sc.ctx, sc.since, sc.err = regexBudget{}, nil, 0, nil
	t.scratch.Put(sc)
}

// preTokenize runs the pre-tokenizers over text and appends the ids of the pieces. start is true
// for the beginning of the whole text.
func (sc *scratch) preTokenize(text string, start bool) error {
	clear(sc.begun)
	sc.first = start
	return sc.steps[0](text)
}

// spend notes how many more bytes are encoded and how many ids there are; it returns false if the
// encoding must end.
func (sc *scratch) spend(bytes, ids int) bool {
	if sc.since += bytes + 1; sc.since >= lookEvery {
		sc.since = 0
		sc.look()
	}
	if ids > sc.limit && sc.limit > 0 && sc.err == nil {
		sc.err = &LimitError{Limit: sc.limit, AtLeast: ids}
	}
	return sc.err == nil
}

// look notes the end of the context; false if the encoding is to end.
func (sc *scratch) look() bool {
	if sc.err == nil && sc.ctx != nil {
		sc.err = sc.ctx.Err()
	}
	return sc.err == nil
}

// room returns buf with room for n elements, the old ones lost if it is a new one. A large one has
// no room to spare.
func room[T any](buf []T, n int) []T {
	switch {
	case cap(buf) >= n:
		return buf
	case n <= scratchKeep/2:
		return make([]T, n+n/2+shortPiece)
	}
	return make([]T, n)
}
