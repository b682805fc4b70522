package batchqueue

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"

	"krater/scheduler/jsonlines"
)

// Output is a line of an output or error file.
type Output struct {
	ID       string       `json:"id"`
	CustomID *string      `json:"custom_id"` // null where it could not be read
	Response *Response    `json:"response"`  // null for a line that was not run
	Error    *OutputError `json:"error"`     // why it was not
}

// Response is the answer of the endpoint.
type Response struct {
	StatusCode int            `json:"status_code"`
	RequestID  string         `json:"request_id"`
	Body       jsontext.Value `json:"body"`
}

// OutputError says why a line has no response.
type OutputError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Line    int    `json:"line,omitzero"` // of the input file, for a line that is faulty
}

// Settled is the end of one line.
type Settled struct {
	Batch string // id
	Index int    // of the line
	OK    bool   // it goes into the output file, else into the error file
	Text  []byte // an Output as JSON with a line feed at its end
}

// requestID names a line of a batch for good: the same line has the same id whenever
// it is computed.
func requestID(batch string, index int) string {
	return fmt.Sprintf("batch_req_%s_%d", batch[len(batchPrefix):], index)
}

// Answered returns the end of a line that the endpoint answered. body must be one JSON value.
func Answered(batch string, index int, customID string, r Response) (Settled, error) {
	s := Settled{Batch: batch, Index: index, OK: r.StatusCode == 200}
	text, err := (&Output{ID: requestID(batch, index), CustomID: &customID, Response: &r}).encode()
	s.Text = text
	return s, err
}

// Refused returns the end of a line that is faulty.
func Refused(batch string, index int, customID string, fault *Fault) (Settled, error) {
	return unanswered(batch, index, customID, OutputError{Code: fault.Code, Message: fault.Message, Line: fault.Line})
}

// unanswered returns the end of a line that was not run.
func unanswered(batch string, index int, customID string, cause OutputError) (Settled, error) {
	o := &Output{ID: requestID(batch, index), Error: &cause}
	if customID != "" {
		o.CustomID = &customID
	}
	text, err := o.encode()
	return Settled{Batch: batch, Index: index, Text: text}, err
}

// encode returns a line; bodies are made compact, so that it is one line.
func (o *Output) encode() ([]byte, error) {
	if o.Response != nil {
		if err := o.Response.Body.Compact(); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(o, jsontext.AllowInvalidUTF8(true), json.Deterministic(true))
	return append(jsonlines.Escape(text), '\n'), err
}
