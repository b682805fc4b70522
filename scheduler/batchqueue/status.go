package batchqueue

import (
	"fmt"
	"time"
)

// Status is the status of a batch.
//
//	validating ──> in_progress ──> finalizing ──> completed
//	    │ │ │         │     └────────> │ ────────> expired
//	    │ │ └──> failed                ^
//	    │ └──────────────(due)─────────┘
//	    └──> cancelling <─┘ ─────────────────────> cancelled
type Status string

// The statuses of the Batch API.
const (
	Validating Status = "validating"
	Failed     Status = "failed" // the file was refused
	InProgress Status = "in_progress"
	Finalizing Status = "finalizing" // no line is started any more; the output is being made
	Completed  Status = "completed"
	Expired    Status = "expired"
	Cancelling Status = "cancelling" // lines in flight end, then the output is made
	Cancelled  Status = "cancelled"
)

// Statuses lists all statuses in the order of a batch's life.
var Statuses = []Status{Validating, Failed, InProgress, Finalizing, Completed, Expired, Cancelling, Cancelled}

// Ended reports whether the status is final.
func (s Status) Ended() bool {
	return s == Failed || s == Completed || s == Expired || s == Cancelled
}

// Counts counts the lines of a batch. Total is 0 before its file was validated.
type Counts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"` // answered with status 200
	Failed    int `json:"failed"`    // refused, failed, cancelled or expired
}

// Open returns the number of lines that are not settled.
func (c Counts) Open() int { return c.Total - c.Completed - c.Failed }

// Batch is one batch as the store keeps it. A value of it is a copy.
type Batch struct {
	ID       string            `json:"id"`
	Owner    string            `json:"owner,omitzero"`
	Model    string            `json:"model"`    // the served model it was made for
	Endpoint string            `json:"endpoint"` // of all its lines: /v1/chat/completions
	Input    string            `json:"input"`    // id of the input file
	Window   string            `json:"window"`   // as the client wrote it: 24h
	Metadata map[string]string `json:"metadata,omitzero"`

	Status Status `json:"status"`
	// End is the status that follows once all lines are settled, while Ending.
	End    Status  `json:"end,omitzero"`
	Counts Counts  `json:"counts"`
	Faults []Fault `json:"faults,omitzero"` // why the file was refused; FaultsMax at most
	Output string  `json:"output,omitzero"` // id of the file of answers, "" if there is none
	Errors string  `json:"errors,omitzero"` // id of the file of lines that failed

	// LogBytes is how much of the .answers file counts.
	LogBytes int64 `json:"log_bytes,omitzero"`

	Created      time.Time `json:"created"`
	Expires      time.Time `json:"expires"`
	InProgressAt time.Time `json:"in_progress_at,omitzero"`
	FinalizingAt time.Time `json:"finalizing_at,omitzero"`
	CancellingAt time.Time `json:"cancelling_at,omitzero"`
	EndedAt      time.Time `json:"ended_at,omitzero"`
}

// Runs reports whether open lines may be started.
func (b *Batch) Runs() bool { return b.Status == InProgress }

// Ending reports whether the output is written as soon as no line is in flight.
func (b *Batch) Ending() bool { return b.Status == Finalizing || b.Status == Cancelling }

// Due reports whether the batch's time is over and it is not ending yet.
func (b *Batch) Due(now time.Time) bool {
	return (b.Status == Validating || b.Status == InProgress) && !now.Before(b.Expires)
}

// EventKind says what happened to a batch.
type EventKind string

// The events of a batch.
const (
	Accept EventKind = "accept" // its file is fine: Counts has the total and the faulty lines
	Reject EventKind = "reject" // its file is not: Faults
	Answer EventKind = "answer" // lines were settled: Counts has how many
	Cancel EventKind = "cancel"
	Expire EventKind = "expire"
	Finish EventKind = "finish" // its output is there: Counts, Output, Errors
)

// Event is one step of a batch's life.
type Event struct {
	Kind           EventKind
	Counts         Counts
	Faults         []Fault
	Output, Errors string
}

// Step carries a batch over one event. An event that its status does not allow is
// ErrState and changes nothing; cancelling twice is allowed and the same as once.
func (b *Batch) Step(e Event, now time.Time) error {
	refused := fmt.Errorf("%w: %s while %s", ErrState, e.Kind, b.Status)
	switch e.Kind {
	case Accept:
		if b.Status != Validating || e.Counts.Open() < 0 || e.Counts.Total == 0 {
			return refused
		}
		b.Status, b.Counts, b.InProgressAt = InProgress, e.Counts, now
		b.settled(now)
	case Reject:
		if b.Status != Validating {
			return refused
		}
		b.Status, b.Faults, b.EndedAt = Failed, e.Faults, now
	case Answer:
		c := b.Counts
		c.Completed += e.Counts.Completed
		c.Failed += e.Counts.Failed
		if !b.Runs() && !b.Ending() || c.Open() < 0 || e.Counts.Completed < 0 || e.Counts.Failed < 0 {
			return refused
		}
		b.Counts = c
		b.settled(now)
	case Cancel:
		if b.Status == Cancelling {
			return nil
		}
		if b.Status != Validating && b.Status != InProgress {
			return refused
		}
		b.Status, b.End, b.CancellingAt = Cancelling, Cancelled, now
	case Expire:
		if !b.Due(now) {
			return refused
		}
		b.Status, b.End, b.FinalizingAt = Finalizing, Expired, now
	case Finish:
		if !b.Ending() || b.Counts.Open() != 0 || e.Counts.Total != b.Counts.Total || e.Counts.Open() != 0 {
			return refused
		}
		b.Status, b.End, b.EndedAt = b.End, "", now
		b.Counts, b.Output, b.Errors = e.Counts, e.Output, e.Errors
	default:
		return refused
	}
	return nil
}

// settled begins the end of a batch that has no open line left.
func (b *Batch) settled(now time.Time) {
	if b.Status == InProgress && b.Counts.Open() == 0 {
		b.Status, b.End, b.FinalizingAt = Finalizing, Completed, now
	}
}
