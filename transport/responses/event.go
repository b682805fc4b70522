package responses

import (
	"krater/actors/engine"
	"krater/transport/api"
)

// kind is the type of a server event.
type kind uint8

const (
	created kind = iota
	queued
	inProgress
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
	created: "response.created", queued: "response.queued", inProgress: "response.in_progress",
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
	item     string         // the message's id
	status   string         // the message's status in itemDone
	text     string         // the piece of textDelta, the whole text of the done events
	tokens   []engine.Token // the tokens of text, if asked for
	object   *Object        // of the events about the whole response
	position int            // of queued: requests that are to start before it
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
	itemEvent struct {
		envelope    `json:",embed"`
		OutputIndex int     `json:"output_index"`
		Item        Message `json:"item"`
	}
	place struct {
		ItemID       string `json:"item_id"`
		OutputIndex  int    `json:"output_index"`
		ContentIndex int    `json:"content_index"`
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
		Logprobs []api.TokenLogprob `json:"logprobs"`
	}
	doneEvent struct {
		envelope `json:",embed"`
		place    `json:",embed"`
		Text     string             `json:"text"`
		Logprobs []api.TokenLogprob `json:"logprobs"`
	}
)

// encode returns the event's JSON, the same over SSE and WebSocket.
func (e *event) encode(streamID string) []byte {
	env := envelope{Type: e.kind.String(), Sequence: e.sequence, StreamID: streamID}
	at := place{ItemID: e.item}
	switch e.kind {
	case queued:
		return api.Marshal(queuedEvent{lifeEvent{env, e.object}, e.position})
	case itemAdded:
		return api.Marshal(itemEvent{envelope: env, Item: newMessage(e.item, statusInProgress)})
	case itemDone:
		return api.Marshal(itemEvent{envelope: env, Item: newMessage(e.item, e.status, newPart(e.text, e.tokens))})
	case partAdded:
		return api.Marshal(partEvent{envelope: env, place: at, Part: newPart("", nil)})
	case partDone:
		return api.Marshal(partEvent{envelope: env, place: at, Part: newPart(e.text, e.tokens)})
	case textDelta:
		return api.Marshal(deltaEvent{envelope: env, place: at, Delta: e.text, Logprobs: logprobsOf(e.tokens)})
	case textDone:
		return api.Marshal(doneEvent{envelope: env, place: at, Text: e.text, Logprobs: logprobsOf(e.tokens)})
	}
	return api.Marshal(lifeEvent{envelope: env, Response: e.object})
}

func newMessage(id, status string, parts ...Part) Message {
	return Message{ID: id, Type: "message", Status: status, Role: "assistant", Content: parts}
}
