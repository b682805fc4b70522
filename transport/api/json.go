package api

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"net/http"
	"strconv"

	"krater/scheduler/jsonlines"
)

// marshalOptions: model text that is not valid UTF-8 becomes U+FFFD instead of an error in the
// middle of an answer.
var marshalOptions = json.JoinOptions(jsontext.AllowInvalidUTF8(true), json.Deterministic(true))

// Marshal encodes a wire value: nil slices as [], no HTML escapes, and the characters that readers
// take for line ends escaped. The wire types hold nothing that cannot be encoded, so an error is a
// programmer's and gives an encoded internal error.
func Marshal(v any) []byte {
	data, err := json.Marshal(v, marshalOptions)
	if err != nil {
		data, _ = Internal().MarshalJSON()
	}
	return jsonlines.Escape(data)
}

// WriteJSON sends v as the whole answer.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	data := append(Marshal(v), '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client may be gone; nothing is left to tell it
}
