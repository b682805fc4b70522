package scheduler

// Request is one sequence to generate, as Add takes it.
type Request struct {
	ID        uint64 // chosen by the driver, unique among the live ones
	PromptLen int    // tokens, >= 1
	MaxNew    int    // tokens to generate at most, >= 1
	Priority  int    // higher first; a lower one waits as long as higher ones come, but see Config.Aging
	Deadline  int64  // ns on the driver's clock; 0: none

	// Prompt are the PromptLen token ids, which the driver leaves as they are until the
	// request is released. nil: unknown; such a request neither uses nor leaves cached blocks.
	Prompt []int32
	// Domain is whatever must be equal, beside the tokens, for cached blocks to be of
	// use: model, tokenizer, template, element type of the KV cache, salt or API key.
	Domain [32]byte
	// Group names siblings, requests with the same Prompt and Domain (n > 1): those
	// that wait start when the first has its prompt computed, from its blocks. 0: none.
	Group uint64
	// Key is who asks: keys that compete get equal shares of what is computed. 0: all others.
	Key uint64
	// Scored asks for the logits of all rows of the prompt, so none of them come from the
	// cache, and a batch has no more of them than Config.LogitRows leaves.
	Scored bool
	// Background requests run in gaps: they start when no other waits, are preempted
	// first, and their prompts get at most PrefillChunk rows of a batch. Priority
	// orders them among themselves.
	Background bool
}

// positions is the number of KV positions the request can write: its last
// generated token is never fed back.
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

// phase is where a live sequence stands.
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
	req      Request
	arrival  uint64 // order of acceptance
	phase    phase
	ended    Reason  // not None: only batches in flight keep it alive
	flying   int     // batches it is in: 2 with one ahead of the other
	anew     bool    // the batch ahead was lost: retried when the one before is back
	shared   bool    // an abandoned batch may still show its block table to a late reader
	slot     int     // index below MaxSeqs; -1 while waiting
	lane     int     // of the batch it is in, or of the stream
	stream   bool    // a row of its lane: its next one is a decode row, now or once its batch is back
	known    int     // tokens
	computed int     // positions
	retries  int     // recomputations so far
	since    uint64  // batches made when it went idle in decode
	blocks   []int32 // block table, complete and constant from admission to release
}

func (s *seq) generated() int { return s.known - s.req.PromptLen }

// before is the order of the queue and of prefill: priority, then arrival.
func before(a, b *seq) bool {
	if a.req.Priority != b.req.Priority {
		return a.req.Priority > b.req.Priority
	}
	return a.arrival < b.arrival
}
