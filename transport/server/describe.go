package server

import (
	_ "embed"
	"net/http"
	"slices"
	"strings"
	"sync"

	"krater/transport/anthropic"
	"krater/transport/api"
	"krater/transport/ollama"
	"krater/transport/openapi"
)

// described are the server's own routes, as /openapi.json shows them.
var described = []openapi.Route{
	{Method: "POST", Path: "/v1/chat/completions", Summary: "a chat answer", Request: api.ChatRequest{}, Answer: api.ChatCompletion{}, Events: api.ChatChunk{}, Hints: true},
	{Method: "POST", Path: "/v1/completions", Summary: "a text answer", Request: api.CompletionRequest{}, Answer: api.TextCompletion{}, Events: api.TextCompletion{}, Hints: true},
	{Method: "POST", Path: "/v1/messages", Summary: "an answer of the Anthropic Messages API", Request: anthropic.Request{}, Answer: anthropic.Message{}, Events: anthropic.Event{}, Hints: true},
	{Method: "POST", Path: "/v1/messages/count_tokens", Summary: "the length of a prompt of the Anthropic Messages API", Request: anthropic.Request{}, Answer: anthropic.Count{}},
	{Method: "GET", Path: "/v1/models", Summary: "the served model", Answer: api.ModelList{}},
	{Method: "GET", Path: "/v1/models/{id...}", Summary: "the served model", Answer: api.Model{}},
	{Method: "POST", Path: "/tokenize", Summary: "token ids of a prompt or conversation", Request: api.TokenizeRequest{}, Answer: api.TokenizeAnswer{}, Hints: true},
	{Method: "POST", Path: "/detokenize", Summary: "text of token ids", Request: api.DetokenizeRequest{}, Answer: api.PromptAnswer{}},
	{Method: "POST", Path: "/apply-template", Summary: "the text of a conversation after the chat template", Request: api.TemplateRequest{}, Answer: api.PromptAnswer{}},
	{Method: "GET", Path: "/tokenizer_info", Summary: "the tokenizer's settings", Answer: api.Tokenizer{}},
	{Method: "GET", Path: "/v1/prefixes", Summary: "digests of the prefixes of prompts that are in the KV cache", Answer: api.PrefixDigest{}},
	{Method: "POST", Path: "/api/chat", Summary: "a chat answer of the Ollama API", Request: ollama.ChatRequest{}, Answer: ollama.Line{}, Events: ollama.Line{}, EventsType: "application/x-ndjson"},
	{Method: "POST", Path: "/api/generate", Summary: "an answer of the Ollama API", Request: ollama.GenerateRequest{}, Answer: ollama.Line{}, Events: ollama.Line{}, EventsType: "application/x-ndjson"},
	{Method: "POST", Path: "/api/show", Summary: "the served model, in the Ollama API", Request: ollama.ShowRequest{}, Answer: ollama.Show{}},
	{Method: "GET", Path: "/api/tags", Summary: "the served model, in the Ollama API", Answer: ollama.Models{}},
	{Method: "GET", Path: "/api/ps", Summary: "the served model as one in memory, in the Ollama API", Answer: ollama.Models{}},
	{Method: "GET", Path: "/api/version", Summary: "the version of Ollama whose API this is", Answer: ollama.VersionAnswer{}},
	{Method: "GET", Path: "/health", Summary: "200 while the process lives", Answer: api.Status{}},
	{Method: "GET", Path: "/ready", Summary: "200 while requests are served", Answer: api.Status{}},
	{Method: "GET", Path: "/metrics", Summary: "metrics for Prometheus"},
	{Method: "GET", Path: "/version", Summary: "the program's version", Answer: api.Version{}},
}

// Describe adds routes of another door to /openapi.json. Call it before Serve.
func (s *Server) Describe(routes ...openapi.Route) { s.described = append(s.described, routes...) }

//go:embed docs.html
var docsPage []byte

func (s *Server) describeRoutes() {
	document := sync.OnceValue(func() []byte {
		return api.Marshal(openapi.Document(s.opt.Version, slices.Concat(described, s.described)))
	})
	s.Open("GET /openapi.json", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document()) // if this fails, the client is gone
	}))
	s.Open("GET /docs", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", strings.Join([]string{"default-src 'none'", "script-src 'unsafe-inline'", "style-src 'unsafe-inline'", "connect-src 'self'", "frame-ancestors 'none'"}, "; "))
		_, _ = w.Write(docsPage)
	}))
}
