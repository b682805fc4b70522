// Package engine defines the interface between the pipeline and the servers in front of it: requests
// (chat, text or token ids) go in, events come out. It holds types and one interface and imports only
// the standard library. Apart from the trace types it is the only part of actors/ that transport imports.
package engine

import (
	"context"
	"time"
)

// Engine is the running model. All methods are safe for concurrent use.
type Engine interface {
	// Info describes the model. It does not change once the engine is ready.
	Info() Info
	// Ready returns nil while requests are served, else an *Error of kind Unavailable (loading,
	// draining).
	Ready() error
	// Submit validates, tokenizes and enqueues a request. If the request is refused, Submit returns an
	// *Error; no prefill has begun. The caller must read the returned Stream to its end or close it.
	// Cancelling ctx cancels the request.
	Submit(ctx context.Context, req *Request) (Stream, error)
	// Tokenize returns the ids that Submit would use for the prompt. If there are more than most, it
	// returns an *Error of kind ContextLength. It stops when ctx ends.
	Tokenize(ctx context.Context, p Prompt, most int) ([]int32, error)
	// Detokenize joins ids to text; skipSpecial leaves control tokens out.
	Detokenize(ids []int32, skipSpecial bool) (string, error)
	// Render applies the chat template to c and returns the text. It stops when ctx ends.
	Render(ctx context.Context, c *Chat) (string, error)
	// Stats returns a snapshot of the counters and gauges.
	Stats() Stats
	// Prefixes returns the prefixes of prompts that need not be computed for an owner's requests; see Request.Owner.
	Prefixes(ctx context.Context, owner string) (Prefixes, error)
}

// Prefixes lists the cached prefixes of whole KV blocks.
type Prefixes struct {
	BlockTokens int
	// Digests has a digest of each prefix, in no order: FNV-1a, 64 bits, over the ids of all its tokens, each as four
	// bytes, the lowest first. The list may have prefixes whose beginning was evicted; these cannot be reused.
	Digests []uint64
}

// Info describes the served model.
type Info struct {
	ID      string // what clients put in "model"
	Created time.Time
	Context int // max_model_len: prompt and answer together
	Vocab   int
	// Defaults are the sampling values that apply if a request does not set them
	// (generation_config.json, else temperature 1, top_p 1).
	Defaults Sampling
	// Infill says that the model can fill in the middle of a text (Prompt.Suffix).
	Infill bool
	// Reasons says that the chat template separates reasoning from the answer.
	Reasons   bool
	Tokenizer TokenizerInfo
}

// TokenizerInfo describes the tokenizer to clients that tokenize through this server.
type TokenizerInfo struct {
	BOS, EOS string // texts of the begin and the end token; "" if there is none
	AddBOS   bool   // text begins with BOS
	Template string // the chat template's source; "" if there is none
}

// Prompt is a request's input; exactly one field is set.
type Prompt struct {
	Chat *Chat
	Text *string // raw text: BOS is added if the tokenizer config says so, unless the text begins with it
	IDs  []int32 // taken as they are
	// ParseSpecial reads special-token text in Text as tokens; NoBOS adds no BOS token. Both are
	// for Text only.
	ParseSpecial, NoBOS bool
	// Suffix is the text that follows the answer, which fills in the middle after Text. nil: none.
	Suffix *string
}

// Chat is a conversation as JSON, in the order the client sent it: the order of object keys decides
// the prompt's text.
type Chat struct {
	Messages             []byte // JSON array of messages in the chat-completions shape
	Tools                []byte // JSON array or nil
	Kwargs               []byte // JSON object of extra template variables or nil
	NoGenerationPrompt   bool   // add_generation_prompt: false
	ContinueFinalMessage bool
}

// Request is one generation.
type Request struct {
	ID       string // for logs and traces; chosen by the door
	Prompt   Prompt
	Sampling Sampling
	// MaxTokens is the largest number of tokens of the answer; 0 = up to the context. The engine limits
	// it to the tokens that the prompt leaves of the context; such an answer ends with FinishLength.
	MaxTokens int
	MinTokens int
	// PromptOnly asks for no answer: the prompt is computed, and Done follows with FinishLength and
	// no token.
	PromptOnly bool
	// Stop strings end the answer; they are withheld unless IncludeStop.
	Stop        []string
	StopIDs     []int32
	IncludeStop bool
	IgnoreEOS   bool
	// KeepSpecial leaves control tokens in the text (skip_special_tokens: false).
	KeepSpecial bool
	// Logprobs is the number of alternatives per token; 0: the chosen token only, -1: no log-probabilities.
	Logprobs int
	// Progress asks for an event for each part of the prompt that is computed.
	Progress bool
	// Parts asks for a chat's answer in the parts that the model's chat template has. nil: the whole
	// answer is text.
	Parts *Parts
	// Format describes the text of the answer; nil: any text.
	Format *Format
	// PromptLogprobs, if set, asks for the log-probabilities of the prompt's own tokens. The value
	// is the number of alternatives. The whole prompt is then computed, even if it is cached.
	PromptLogprobs *int
	Deadline       time.Time // zero: none
	Priority       int       // higher first; 0 is the default
	// Background says that the request runs only when no other request waits.
	Background bool
	// Owner identifies the sender of the request: the hash of an API key, "" if no keys are required.
	// Owners get equal shares of the pipeline, and find each other's prefixes in the KV cache only if
	// the server allows it.
	Owner string
	// Group is the same number in the requests for all choices of one prompt, which is computed once; 0: none.
	Group uint64
	// Caller is the client's span that the request is a part of.
	Caller Caller
}

// Parts asks for an answer with reasoning and tool calls separated from the text.
type Parts struct {
	// Tools are the tools that the model may call, a JSON array in the chat-completions shape. nil:
	// none; text that looks like a call stays text.
	Tools []byte
	// Single ends the answer before a second call.
	Single bool
	// Budget is the largest number of tokens of reasoning, after which it is ended; 0: no limit of its own.
	Budget int
	// Call demands calls of these tools and no text. One name, "", stands for any of Tools. nil: the
	// model decides.
	Call []string
}

// FormatKind is a language in which a Format is written.
type FormatKind uint8

const (
	AnyObject  FormatKind = iota // a JSON object
	JSONSchema                   // Source is a JSON schema, of which the answer is a value
	Regexp                       // Source is a regular expression, which all of the answer matches
	Choice                       // the answer is one of Choices
	GBNF                         // Source is a grammar in llama.cpp's language
)

// Format is a description that the text of an answer must follow. It does not apply to reasoning and tool calls.
type Format struct {
	Kind    FormatKind
	Source  []byte
	Choices []string
	Param   string // the field of the request that errors name
	// Closed, for JSON, forbids members that a schema does not name, unless the schema allows them.
	Closed bool
	// Space, for JSON, is a regular expression for the text between two tokens. nil: at most one blank.
	Space *string
}

// Caller is a span of the client's trace, as W3C Trace Context defines it. The zero value means "none".
type Caller struct {
	Trace [16]byte
	Span  [8]byte
	Flags byte   // 1: sampled
	State string // tracestate: for readers of the spans
}

// Sampling holds the values of one request's token choice, defaults applied by the door through
// Info.Defaults.
type Sampling struct {
	Temperature       float64 // 0 = greedy
	TopP              float64 // 1 = off
	TopK              int     // 0 = off
	MinP              float64 // 0 = off
	RepetitionPenalty float64 // 1 = off
	PresencePenalty   float64
	FrequencyPenalty  float64
	LogitBias         map[int32]float32
	Seed              *uint64 // nil: a random one
}

// Stream delivers one request's events in order. A slow reader never delays the pipeline: events that
// it has not read are joined.
type Stream interface {
	// Next blocks for the next event. After a Done or Failed event, or after Close, it returns
	// io.EOF. A cancelled ctx only ends this wait.
	Next(ctx context.Context) (Event, error)
	// Close cancels the request if it still runs; safe to call twice and together with Next.
	Close()
	// PromptTokens returns the number of tokens of the prompt. It may be called at any time.
	PromptTokens() int
}

// EventKind selects which fields of an Event are set.
type EventKind uint8

const (
	Queued   EventKind = iota // waiting for a place in the batch
	Started                   // prefill begins
	Progress                  // Position tokens of the prompt are computed or were cached; Usage has their total number
	Scored                    // Tokens are the next ones of the prompt, with log-probabilities
	Tokens                    // Text and, with logprobs, Tokens
	Done                      // Finish and Usage; Text may hold the last piece
	Failed                    // Err and Usage
)

// Part is the part of an answer that a text belongs to.
type Part uint8

const (
	TextPart      Part = iota // the answer itself
	ReasoningPart             // the model's reasoning before it
	CallPart                  // a tool call begins: Event.Name, and Event.CallID if the model gave one
	ArgumentsPart             // a piece of the call's arguments, which join to a JSON object
)

// Event is one step of an answer.
type Event struct {
	Kind EventKind
	// Position, with Queued, is the number of requests that start before this one.
	Position int
	Text     string // whole valid UTF-8; stop strings withheld
	Part     Part   // with Tokens: the part that Text belongs to; TextPart unless Request.Parts is set
	// Name is the tool of a CallPart, CallID the model's own id of the call, if it has one.
	Name, CallID string
	Tokens       []Token
	Finish       FinishReason
	// StopMatched is the stop string that ended the answer, if one did.
	StopMatched string
	// StopToken is the end token (EOS or one of StopIDs) that ended the answer, if one did. Usage counts
	// it. Only with IncludeStop its text is in the answer and it is among the Tokens.
	StopToken *int32
	Usage     Usage
	Err       *Error
}

// Token is one token with its log-probability, if the request asks for it.
type Token struct {
	ID      int32
	Text    []byte      // the token's own bytes, not always whole characters
	Logprob float32     // NaN for the first one of a prompt
	Rank    int         // of a prompt's token: 1 is the most likely; 0: not known
	Hidden  bool        // its text is left out of the answer's, or of the prompt's: a control token
	Top     []TokenProb // the most likely, best first
}

// TokenProb is one alternative.
type TokenProb struct {
	ID      int32
	Text    []byte
	Logprob float32
}

// Usage counts tokens.
type Usage struct {
	Prompt, Completion, Cached, Reasoning int
}

// FinishReason says why an answer ended.
type FinishReason uint8

const (
	FinishNone      FinishReason = iota
	FinishStop                   // EOS, a stop id or a stop string
	FinishLength                 // max_tokens or the context's end
	FinishCancelled              // by the client, a lost connection or Close
)

// Stats is a snapshot for /metrics; all counters since start.
type Stats struct {
	Running, Waiting              int
	KVBlocksUsed, KVBlocksTotal   int    // used: by requests
	KVBlocksCached                int    // used by no request, and kept for requests with the same prefix
	KVHostUsed, KVHostTotal       int    // blocks in host memory that were evicted from the device
	StepGraphs                    int    // steps that the device keeps as graphs
	RanksLost                     uint64 // devices and workers
	Replays                       uint64 // requests that went on elsewhere after a rank was lost
	Preemptions                   uint64 // requests that lost their blocks to others and were computed again
	PrefixQueries, PrefixHits     uint64 // tokens of prompts that were looked for in the KV cache, and found
	PromptTokens, GeneratedTokens uint64
	Finished                      map[string]uint64 // by finished_reason: stop, length, abort, error
	Steps                         uint64
	StepsAhead                    uint64 // steps made before the tokens that they start from were known
	StepTokens                    Histogram
	QueueTime, TTFT, ITL, E2E     Histogram      // seconds
	ActorQueue                    map[string]int // actor -> messages waiting
	ActorWait                     map[string]time.Duration
	Links                         []Link            // between layer groups, each kind once
	ExpertsComputed               map[string]uint64 // device -> expert evaluations
	ExpertCaches                  []ExpertCache     // of ranks that do not have all experts at hand; each strategy once
}

// Link counts the rows that went from one layer group to the next over links of one kind.
type Link struct {
	Kind        string // "direct", "peer", "bounce"; between processes the ranks: "rank0 to rank1"
	Hops, Bytes uint64
	Faults      uint64        // hops after which other rows had arrived than were sent, or none in time
	Time        time.Duration // of the copies; estimated from some hops if the host does not wait for them
	Within      time.Duration // between processes: Time of a hop is known this exactly, as their clocks are, or better; 0: there is one clock
}

// ExpertCache counts, for one strategy on one rank, where the experts were when their layer needed them.
type ExpertCache struct {
	Strategy, Rank string
	Hits, Misses   uint64 // experts that were on the device when their layer began, and that had to be copied for it
	Host           uint64 // experts that were missing and that the host computed
	Copies         uint64 // experts copied: for a layer, or moved between steps
	CopiedBytes    uint64
}

// Histogram is a cumulative histogram: Counts[i] counts values <= Bounds[i].
type Histogram struct {
	Bounds []float64
	Counts []uint64
	Count  uint64
	Sum    float64
}
