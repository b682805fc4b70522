package upgrade

import (
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
)

// The subprotocols that carry an API key, since browsers let a page set no other header of a
// WebSocket.
const (
	encodedKey = "krater-key."              // and the key in base64url without padding: it may have any characters
	plainKey   = "openai-insecure-api-key." // and the key as it is, as pages for OpenAI's Realtime API offer it
)

// Key returns the API key that an opening handshake offers as a subprotocol. offered says that it
// offers one; a key that cannot be read is "".
func Key(r *http.Request) (key string, offered bool) {
	if !websocket.IsWebSocketUpgrade(r) {
		return "", false
	}
	for _, name := range websocket.Subprotocols(r) {
		if text, ok := strings.CutPrefix(name, encodedKey); ok {
			data, _ := base64.RawURLEncoding.DecodeString(text)
			return string(data), true
		}
		if text, ok := strings.CutPrefix(name, plainKey); ok {
			return text, true
		}
	}
	return "", false
}

// Subprotocol returns the first subprotocol offered that holds no secret, "" for none: browsers refuse
// a server that agrees to none of theirs. Secrets, of other servers too, are never sent back.
func Subprotocol(r *http.Request) string {
	for _, name := range websocket.Subprotocols(r) {
		if !secret(name) {
			return name
		}
	}
	return ""
}

func secret(name string) bool {
	for _, word := range []string{"key", "token", "bearer", "authorization"} {
		if strings.Contains(strings.ToLower(name), word) {
			return true
		}
	}
	return name == ""
}
