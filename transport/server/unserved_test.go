package server

import (
	"strings"
	"testing"

	"krater/transport/api"
)

// TestNotServed: a known route that is not served is a 400 that names the feature, which no client
// tries again and no gateway takes for a sick server.
func TestNotServed(t *testing.T) {
	f := start(t, Options{})
	f.Route("GET /v1/responses/{id}", f.metrics()) // as the Responses door has it
	for _, c := range []struct{ method, path, name string }{
		{"POST", "/v1/embeddings", "embeddings"},
		{"POST", "/embeddings", "embeddings"},
		{"POST", "/v1/moderations", "moderations"},
		{"POST", "/v1/audio/transcriptions", "audio"},
		{"POST", "/v1/audio/speech", "audio"},
		{"POST", "/v1/images/generations", "images"},
		{"GET", "/v1/assistants", "assistants"},
		{"GET", "/v1/assistants/asst_1", "assistants"},
		{"POST", "/v1/threads/t/runs", "threads"},
		{"POST", "/v1/uploads", "uploads"},
		{"GET", "/v1/fine_tuning/jobs", "fine-tuning"},
		{"DELETE", "/v1/vector_stores/vs_1", "vector stores"},
		{"POST", "/v1/complete", "Anthropic"},
		{"POST", "/v1/rerank", "reranking"},
		{"POST", "/rerank", "reranking"},
		{"POST", "/v2/rerank", "reranking"},
		{"POST", "/score", "scoring"},
		{"POST", "/v1/responses/compact", "compaction"},
		{"GET", "/v1/chat/completions/chatcmpl-1", "stored chat completions"},
		{"GET", "/redoc", "/docs"},
		{"POST", "/generate", "another server"},
		{"POST", "/completion", "another server"},
		{"POST", "/v1beta/models/m:generateContent", "Gemini"},
		{"POST", "/v1/audio/" + strings.Repeat("x", 2000), "audio"},
	} {
		body := wantError(t, f.send(t, c.method, c.path, "{}"), 400, api.TypeInvalidRequest, "not_served")
		if !strings.Contains(body.Message, c.name) || len(body.Message) > 300 {
			t.Errorf("%s: %q does not name %s", c.path, body.Message, c.name)
		}
	}
	if res := f.send(t, "POST", "/api/pull", "{}"); res.StatusCode != 400 || !strings.Contains(readAll(t, res.Body), "Ollama's management") {
		t.Errorf("/api/pull: %d", res.StatusCode)
	}
	wantError(t, f.send(t, "GET", "/v1/nothing", ""), 404, api.TypeNotFound, "not_found")
	wantError(t, f.send(t, "POST", "/v1/responses/resp_1", "{}"), 405, api.TypeInvalidRequest, "method_not_allowed")

	locked := start(t, Options{Keys: []KeyHash{HashKey("k")}})
	wantError(t, locked.send(t, "POST", "/v1/embeddings", "{}"), 401, api.TypeAuthentication, "invalid_api_key")
	wantError(t, locked.send(t, "POST", "/v1/embeddings", "{}", "X-Api-Key", "k"), 400, api.TypeInvalidRequest, "not_served")
}
