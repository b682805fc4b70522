package responses

import (
	"encoding/json/jsontext"
	"strconv"

	"krater/actors/engine"
	"krater/scheduler/jsonlines"
	"krater/transport/api"
)

// kind is the type of a server event.
type kind uint8

const (
	created kind = iota
	queued
	inProgress
	prefilled
	itemAdded
	partAdded
	textDelta
	textDone
	partDone
	itemDone
	completed
	incomplete
	failed
)

var kindNames = [...]string{
	created: "response.created", queued: "response.queued", inProgress: "response.in_progress", prefilled: "response.prompt_progress",
	itemAdded: "response.output_item.added", partAdded: "response.content_part.added",
	textDelta: "response.output_text.delta", textDone: "response.output_text.done",
	partDone: "response.content_part.done", itemDone: "response.output_item.done",
	completed: "response.completed", incomplete: "response.incomplete", failed: "response.failed",
}

func (k kind) String() string { return kindNames[k] }

// final reports whether a response ends with k.
func (k kind) final() bool { return k >= completed }

// event is one step of a response that goes to a client. Its fields belong to the sender or are
// immutable.
type event struct {
	kind     kind
	sequence int
	item     item           // that it is about
	index    int            // of the item
	status   string         // the item's status in itemDone
	text     string         // the piece of textDelta, the whole text of the done events
	tokens   []engine.Token // the tokens of text, if asked for
	object   *Object        // of the events about the whole response
	position int            // of queued: requests that are to start before it
	progress *api.PromptProgress
}

// name returns the event's type on the wire.
func (e *event) name() string {
	k, i := e.kind, e.item.kind
	switch {
	case k == textDelta && i == reasoningItem:
		return "response.reasoning_text.delta"
	case k == textDone && i == reasoningItem:
		return "response.reasoning_text.done"
	case k == textDelta && i == callItem:
		return "response.function_call_arguments.delta"
	case k == textDone && i == callItem:
		return "response.function_call_arguments.done"
	}
	return k.String()
}

// The wire forms. stream_id is the stream of a WebSocket; it is absent over HTTP.
type (
	envelope struct {
		Type     string `json:"type"`
		Sequence int    `json:"sequence_number"`
		StreamID string `json:"stream_id,omitempty"`
	}
	lifeEvent struct {
		envelope `json:",embed"`
		Response *Object `json:"response"`
	}
	queuedEvent struct {
		lifeEvent `json:",embed"`
		Position  int `json:"queue_position"`
	}
	progressEvent struct {
		envelope   `json:",embed"`
		ResponseID string              `json:"response_id"`
		Progress   *api.PromptProgress `json:"prompt_progress"`
	}
	itemEvent struct {
		envelope    `json:",embed"`
		OutputIndex int  `json:"output_index"`
		Item        Item `json:"item"`
	}
	place struct {
		ItemID       string `json:"item_id"`
		OutputIndex  int    `json:"output_index"`
		ContentIndex *int   `json:"content_index,omitzero"` // not of a call
	}
	partEvent struct {
		envelope `json:",embed"`
		place    `json:",embed"`
		Part     Part `json:"part"`
	}
	deltaEvent struct {
		envelope `json:",embed"`
		place    `json:",embed"`
		Delta    string             `json:"delta"`
		Logprobs []api.TokenLogprob `json:"logprobs,omitzero"` // of a message
	}
	doneEvent struct {
		envelope `json:",embed"`
		place    `json:",embed"`
		Text     string             `json:"text"`
		Logprobs []api.TokenLogprob `json:"logprobs,omitzero"` // of a message
	}
	callDoneEvent struct {
		envelope  `json:",embed"`
		place     `json:",embed"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
)

// encode returns the event's JSON, the same over SSE and WebSocket.
func (e *event) encode(streamID string) []byte { return e.appendTo(nil, streamID) }

// appendDelta appends the JSON of a deltaEvent without log-probabilities. Almost all events are such,
// so it is written by hand.
func (e *event) appendDelta(b []byte, streamID string) []byte {
	b = append(b, `{"type":"`...)
	b = append(b, e.name()...)
	b = append(b, `","sequence_number":`...)
	b = strconv.AppendInt(b, int64(e.sequence), 10)
	if streamID != "" { // letters, digits and signs that need no escape
		b = append(b, `,"stream_id":"`...)
		b = append(b, streamID...)
		b = append(b, '"')
	}
	b = append(b, `,"item_id":"`...)
	b = append(b, e.item.id...)
	b = append(b, `","output_index":`...)
	b = strconv.AppendInt(b, int64(e.index), 10)
	if e.item.kind != callItem {
		b = append(b, `,"content_index":0`...)
	}
	b = append(b, `,"delta":`...)
	b, _ = jsontext.AppendQuote(b, e.text) // invalid UTF-8 becomes U+FFFD
	if e.item.kind == messageItem {
		b = append(b, `,"logprobs":[]`...)
	}
	return append(b, '}')
}

// appendTo appends the event's JSON to b, which is empty.
func (e *event) appendTo(b []byte, streamID string) []byte {
	if e.kind == textDelta && len(e.tokens) == 0 {
		return jsonlines.Escape(e.appendDelta(b, streamID))
	}
	env := envelope{Type: e.name(), Sequence: e.sequence, StreamID: streamID}
	at := place{ItemID: e.item.id, OutputIndex: e.index}
	if e.item.kind != callItem {
		at.ContentIndex = new(int)
	}
	var logprobs []api.TokenLogprob
	if e.item.kind == messageItem {
		logprobs = logprobsOf(e.tokens)
	}
	switch e.kind {
	case queued:
		return api.Marshal(queuedEvent{lifeEvent{env, e.object}, e.position})
	case prefilled:
		return api.Marshal(progressEvent{env, e.object.ID, e.progress})
	case itemAdded:
		return api.Marshal(itemEvent{env, e.index, e.item.wire(statusInProgress, "")})
	case itemDone:
		return api.Marshal(itemEvent{env, e.index, e.item.whole(e.status, e.text, e.tokens)})
	case partAdded:
		return api.Marshal(partEvent{env, at, e.item.part("", nil)})
	case partDone:
		return api.Marshal(partEvent{env, at, e.item.part(e.text, e.tokens)})
	case textDelta:
		return api.Marshal(deltaEvent{env, at, e.text, logprobs})
	case textDone:
		if e.item.kind == callItem {
			return api.Marshal(callDoneEvent{env, at, e.item.name, e.text})
		}
		return api.Marshal(doneEvent{env, at, e.text, logprobs})
	}
	return api.Marshal(lifeEvent{envelope: env, Response: e.object})
}
