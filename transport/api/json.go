package api

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"net/http"
	"strconv"

	"krater/scheduler/jsonlines"
)

// marshalOptions replaces invalid UTF-8 in a model's text by U+FFFD, so that an answer does not
// fail in the middle.
var marshalOptions = json.JoinOptions(jsontext.AllowInvalidUTF8(true), json.Deterministic(true))

// Marshal encodes a wire value: nil slices as [], no HTML escapes, and characters that readers take
// for line ends escaped. Wire types can always be encoded, so an error is a programming error and
// yields an encoded internal error.
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
	_, _ = w.Write(data) // if this fails, the client is gone
}
