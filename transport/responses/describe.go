package responses

import (
	"krater/transport/api"
	"krater/transport/openapi"
)

// eventHead has the fields of all events of a stream; docs/websocket.md describes the others.
type eventHead struct {
	Type           string `json:"type"`
	SequenceNumber int    `json:"sequence_number"`
}

// deleted is the answer to DELETE.
type deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// InputTokens is the answer to POST /v1/responses/input_tokens.
type InputTokens struct {
	Object string `json:"object"` // response.input_tokens
	Tokens int    `json:"input_tokens"`
}

// Routes describes the door's routes for /openapi.json.
func Routes() []openapi.Route {
	query, items := []string{"stream", "starting_after", "include"}, []string{"after", "limit", "order", "include"}
	return []openapi.Route{
		{Method: "POST", Path: "/v1/responses", Summary: "a response", Request: body{}, Answer: Object{}, Events: eventHead{}, Hints: true},
		{Method: "POST", Path: "/v1/responses/input_tokens", Summary: "the length of the prompt of a response", Request: body{}, Answer: InputTokens{}, Hints: true},
		{Method: "GET", Path: "/v1/responses", Summary: "a WebSocket for responses, with an Upgrade header"},
		{Method: "GET", Path: "/v1/responses/{id}", Summary: "a stored response, or its events again", Answer: Object{}, Events: eventHead{}, Query: query},
		{Method: "GET", Path: "/v1/responses/{id}/input_items", Summary: "the items that a response was made of", Answer: api.List[InputItem]{}, Query: items},
		{Method: "DELETE", Path: "/v1/responses/{id}", Summary: "forgets a response", Answer: deleted{}},
		{Method: "POST", Path: "/v1/conversations", Summary: "makes a conversation", Request: conversationBody{}, Answer: Conversation{}},
		{Method: "GET", Path: "/v1/conversations/{id}", Summary: "a conversation", Answer: Conversation{}},
		{Method: "POST", Path: "/v1/conversations/{id}", Summary: "changes the metadata of a conversation", Request: conversationBody{}, Answer: Conversation{}},
		{Method: "DELETE", Path: "/v1/conversations/{id}", Summary: "forgets a conversation", Answer: deleted{}},
		{Method: "POST", Path: "/v1/conversations/{id}/items", Summary: "adds items to a conversation", Request: conversationBody{}, Answer: api.List[InputItem]{}, Query: []string{"include"}},
		{Method: "GET", Path: "/v1/conversations/{id}/items", Summary: "the items of a conversation", Answer: api.List[InputItem]{}, Query: items},
		{Method: "GET", Path: "/v1/conversations/{id}/items/{item}", Summary: "an item of a conversation", Answer: InputItem{}, Query: []string{"include"}},
		{Method: "DELETE", Path: "/v1/conversations/{id}/items/{item}", Summary: "removes an item of a conversation", Answer: Conversation{}},
		{Method: "POST", Path: "/v1/responses/{id}/cancel", Summary: "cancels a response", Answer: Object{}},
	}
}
