package scheduler

// Request is one sequence to generate, as Add takes it.
type Request struct {
	ID        uint64 // chosen by the driver, unique among the live ones
	PromptLen int    // tokens, >= 1
	MaxNew    int    // tokens to generate at most, >= 1
	Priority  int    // higher first among requests of one key; a lower one waits as long as higher ones come, but see Config.Aging
	Deadline  int64  // ns on the driver's clock; 0: none

	// Prompt are the PromptLen token ids, which the driver leaves as they are until the request is
	// released. nil: unknown; such a request neither uses nor leaves cached blocks.
	Prompt []int32
	// Turns are positions of the prompt, in order, after which other requests are likely to go on in another way: ends of
	// messages. With Config.Snapshots states are kept there. It may be nil.
	Turns []int
	// Domain is a digest of everything besides the tokens that cached blocks depend on: model,
	// tokenizer, template, element type of the KV cache, salt or API key. A request uses only cached
	// blocks with the same Domain.
	Domain [32]byte
	// Group names siblings, requests with the same Prompt and Domain (n > 1). Those that wait start
	// when the first has its prompt computed, from its blocks. 0: none.
	Group uint64
	// Key identifies the client: keys that compete get equal shares of what is computed, and of slots
	// and memory, whatever their priorities. 0: no client in particular, which may fill the queue
	// alone.
	Key uint64
	// Scored asks for the logits of all rows of the prompt, so none of them come from the cache, and a
	// batch has no more of them than Config.LogitRows leaves.
	Scored bool
	// Background requests run in idle time: they start when no other waits, are preempted first, and
	// their prompts get at most PrefillChunk rows of a batch. Priority orders them among themselves.
	Background bool
}

// positions returns the number of KV positions the request can write: its last generated token is never
// fed back.
func (r *Request) positions() int { return r.PromptLen + r.MaxNew - 1 }

// Reason says why a request ended.
type Reason uint8

const (
	None      Reason = iota // goes on
	Stop                    // the driver found an end: EOS, a stop id, a stop string
	Length                  // MaxNew tokens are made
	Cancelled               // by the client
	Expired                 // its deadline passed
	Failed                  // its batch failed and was not, or no longer, retried
	Drained                 // it still waited when Drain was called
	reasons
)

var reasonNames = [reasons]string{"none", "stop", "length", "cancelled", "expired", "failed", "drained"}

func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "invalid"
}

// phase is how far a live sequence has come.
type phase uint8

const (
	waiting  phase = iota // in the queue: no slot, no blocks
	filling               // rows of known tokens have to be computed: prefill
	decoding              // only the newest token's row is missing
	phases
)

// seq is a request with its progress. Known tokens are the prompt and what was
// generated; computed ones have their keys and values in the cache.
type seq struct {
	req       Request
	arrival   uint64 // order of acceptance
	key       *account
	level     int    // its priority when it last entered or left the queue
	since     uint64 // number of batches when it entered the queue, or went idle in decode
	phase     phase
	ended     Reason // not None: it is kept only for batches in flight
	inFlight  int    // batches it is in: 2 with one ahead of the other, up to MicroBatches with Follow
	flying    int    // rows of its prompt in them
	recompute bool   // the batch ahead was lost: it is computed again when the one before is back
	started   bool
	resumed   bool   // it was preempted at least once
	yields    bool   // to be preempted when its batches are back
	slot      int    // index below MaxSeqs; -1 while waiting
	micro     int    // of the batch it is in, or of the stream
	streaming bool   // it counts for its micro-batch: its next row is a decode row, now or once its batch is back
	known     int    // tokens
	computed  int    // positions
	retries   int    // recomputations so far
	overShare bool   // it is doomed because its key has more than its share
	tier      int    // while it runs: see Core.rank
	borrowed  int    // blocks that others held when it began
	began     uint64 // number of batches, plus one, when it started or was resumed
	blocked   uint64 // number of batches, plus one, when it first was at the head and did not fit; 0: never
	dealAt    uint64 // number of batches at which reclaimShare looks at it again
	retryAt   uint64 // number of batches at which it is looked up again although it needs more than is free
	round     uint64 // the last round in which its turn came

	line     *line  // of the queue; nil in none
	runner   *seq   // while it is parked: whose blocks it waits for
	until    int    // how many
	siblings *group // its siblings

	blocks    []int32 // block table: what is computed and what is in flight
	windows   []int32 // block table of the layers with a window; empty: there are none
	passed    int     // entries of windows that it has given up
	reached   int     // blocks of its prompt that the cache had when it began, with or without their window blocks
	promised  int     // blocks that its known tokens still need
	empty     bool    // it holds no blocks, and begins with what the cache has
	reuses    bool    // its token ids are known, so that its blocks can be cached
	answer    []int32 // generated tokens, as far as their ids are known
	classIDs  []int32 // the prompt, with the complement of tokens whose rows have the class of generated ones; nil: none have
	link      uint64  // identity of its last block that has one, or its root
	root      uint64
	linked    int // blocks with an identity
	preloaded int // blocks that were loaded for it before it started
	stateAt   int // number of blocks at whose end its state was saved last, in decode; 0: none
}

// next returns the position of its next row: behind what is computed and what is in flight.
func (s *seq) next() int { return s.computed + s.flying }

func (s *seq) generated() int { return s.known - s.req.PromptLen }

// knownIDs returns the number of tokens whose ids are known.
func (s *seq) knownIDs() int { return s.req.PromptLen + len(s.answer) }

// outranks is the order in which running sequences keep their slots and blocks: those that are not
// in the background first, then those with less of their key before them, then arrival. With one
// key that is level, then arrival. It is total, and changes only when a sequence starts or stops
// running.
func outranks(a, b *seq) bool {
	switch {
	case a.req.Background != b.req.Background:
		return b.req.Background
	case a.tier != b.tier:
		return a.tier < b.tier
	}
	return a.arrival < b.arrival
}

// scored reports whether logits of more than the last row of a sequence's next span are wanted.
func (s *seq) scored() bool { return s.req.Scored && s.computed+1 < s.req.PromptLen }
