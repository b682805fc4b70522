package api

// File is a file of the Files API.
type File struct {
	ID        string `json:"id"`
	Object    string `json:"object"` // file
	Bytes     int64  `json:"bytes"`
	CreatedAt int64  `json:"created_at"` // Unix seconds, as all times here
	ExpiresAt int64  `json:"expires_at"`
	Filename  string `json:"filename"`
	Purpose   string `json:"purpose"` // batch, batch_output
	Status    string `json:"status"`  // processed
}

// List is a page of files or batches.
type List[T any] struct {
	Object  string  `json:"object"` // list
	Data    []T     `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

// Deleted is the answer to a DELETE.
type Deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// BatchRequest is the body of POST /v1/batches.
type BatchRequest struct {
	InputFileID *string            `json:"input_file_id"`
	Endpoint    *string            `json:"endpoint"`
	Window      *string            `json:"completion_window"` // 24h, or another duration
	Metadata    *map[string]string `json:"metadata"`
	// OutputExpiresAfter is refused: all files are kept equally long.
	OutputExpiresAfter *struct {
		Anchor  string `json:"anchor"`
		Seconds int64  `json:"seconds"`
	} `json:"output_expires_after"`
}

// Batch is a batch of the Batch API. Times that did not come are null.
type Batch struct {
	ID            string             `json:"id"`
	Object        string             `json:"object"` // batch
	Endpoint      string             `json:"endpoint"`
	Model         string             `json:"model"`
	Errors        *BatchErrors       `json:"errors"` // why the input was refused
	InputFileID   string             `json:"input_file_id"`
	Window        string             `json:"completion_window"`
	Status        string             `json:"status"`
	OutputFileID  *string            `json:"output_file_id"`
	ErrorFileID   *string            `json:"error_file_id"`
	CreatedAt     int64              `json:"created_at"`
	InProgressAt  *int64             `json:"in_progress_at"`
	ExpiresAt     int64              `json:"expires_at"`
	FinalizingAt  *int64             `json:"finalizing_at"`
	CompletedAt   *int64             `json:"completed_at"`
	FailedAt      *int64             `json:"failed_at"`
	ExpiredAt     *int64             `json:"expired_at"`
	CancellingAt  *int64             `json:"cancelling_at"`
	CancelledAt   *int64             `json:"cancelled_at"`
	RequestCounts BatchCounts        `json:"request_counts"`
	Metadata      *map[string]string `json:"metadata"`
}

// BatchCounts counts the lines of a batch.
type BatchCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// BatchErrors lists the faults of an input file.
type BatchErrors struct {
	Object string       `json:"object"` // list
	Data   []BatchError `json:"data"`
}

// BatchError is one fault of an input file.
type BatchError struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int    `json:"line"` // from 1; null for the file as a whole
}

// Ended reports whether the batch can no longer change.
func (b *Batch) Ended() bool {
	switch b.Status {
	case "failed", "completed", "expired", "cancelled":
		return true
	}
	return false
}
