package engine

import "time"

// Kind sorts errors by what the client can do about them.
type Kind uint8

const (
	Internal      Kind = iota // 500
	BadRequest                // 400
	ContextLength             // 400 context_length_exceeded; Message holds the prompt's length and the limit
	Overloaded                // 429 with Retry-After
	Unavailable               // 503: loading, draining
	Cancelled                 // ended by the client
	Timeout                   // the request's deadline passed
)

// Error is the only error type that crosses the Engine interface. Message is fit for the client;
// inner detail is logged where it arose.
type Error struct {
	Kind       Kind
	Param      string // the request field at fault, if one is
	Message    string
	RetryAfter time.Duration // for Overloaded
	Lasting    bool          // for Unavailable: it does not go away while the process runs
	Loading    *Loading      // for Unavailable while the model is loading; else nil
}

// Loading is the progress of a load.
type Loading struct {
	Phase string         // what is being done: "load weights"
	Share float64        // of the phase, 0 to 1; 0 if unknown
	Rate  string         // for people: "1.2 GB/s"; "" where it is not known
	Left  *time.Duration // of the phase; nil where it is not known
}

func (e *Error) Error() string { return e.Message }
