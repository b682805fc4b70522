package server

import (
	"net/http"
	"path"
	"strings"

	"krater/transport/api"
)

// unserved are routes of the public API and of other servers that Krater lacks, by feature. They
// are patterns of path.Match; a slash at the end matches everything below. A route under /v1/ also
// matches without that prefix.
var unserved = []struct{ name, routes string }{
	{"embeddings", "/v1/embeddings /embed /embedding /api/embed /api/embeddings /v1/engines/"},
	{"reranking and scoring", "/v1/rerank /v2/rerank /v1/reranking /v1/score /v1/classify /v1/pooling"},
	{"moderations", "/v1/moderations"},
	{"audio", "/v1/audio/"},
	{"images", "/v1/images/"},
	{"videos", "/v1/videos/"},
	{"assistants", "/v1/assistants/"},
	{"threads", "/v1/threads/"},
	{"uploads in parts", "/v1/uploads/"},
	{"fine-tuning", "/v1/fine_tuning/ /v1/fine-tunes/"},
	{"vector stores", "/v1/vector_stores/"},
	{"the realtime API", "/v1/realtime/"},
	{"evals", "/v1/evals/"},
	{"containers", "/v1/containers/"},
	{"skills", "/v1/skills/"},
	{"edits", "/v1/edits"},
	{"administration", "/v1/organization/ /v1/projects/"},
	{"stored chat completions", "/v1/chat/completions/* /v1/chat/completions/*/messages"},
	{"compaction", "/v1/responses/compact"},
	{"batches of messages", "/v1/messages/batches/"},
	{"the Anthropic Text Completions API", "/v1/complete"},
	{"Ollama's management of models", "/api/pull /api/push /api/create /api/copy /api/delete /api/blobs/"},
	{"the Gemini API", "/v1beta/"},
	{"the native API of another server", "/generate /generate_stream /completion /infill /props /slots/ /get_model_info /get_server_info /server_info /info /invocations /v2/models/"},
	{"adapters", "/v1/load_lora_adapter /v1/unload_lora_adapter /lora-adapters"},
	{"another page about the API than /docs", "/redoc"},
}

// featureOf names the feature that a path belongs to, if it is one that is not served.
func featureOf(route string) (string, bool) {
	for _, u := range unserved {
		for pattern := range strings.FieldsSeq(u.routes) {
			for _, p := range []string{route, "/v1" + route} {
				if hit, _ := path.Match(pattern, p); hit || strings.HasSuffix(pattern, "/") && strings.HasPrefix(p+"/", pattern) {
					return u.name, true
				}
			}
		}
	}
	return "", false
}

// refuseUnserved answers a known route that is not served, and reports whether it is one.
func (s *Server) refuseUnserved(w http.ResponseWriter, r *http.Request) bool {
	name, known := featureOf(r.URL.Path)
	if known {
		s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			api.NotServed("Krater does not serve %s: %s", name, api.Clip(r.URL.Path)).Write(w)
		})).ServeHTTP(w, r)
	}
	return known
}

// unrouted answers a path that has no route.
func (s *Server) unrouted(w http.ResponseWriter, r *http.Request) {
	if !s.refuseUnserved(w, r) {
		(&api.Error{Status: http.StatusNotFound, Type: api.TypeNotFound, Code: "not_found", Message: "no such path"}).Write(w)
	}
}
