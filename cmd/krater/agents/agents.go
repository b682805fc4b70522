// Package agents knows the coding agents that krater launch starts: the program of each, and the
// arguments and variables that make it use a Krater server.
package agents

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Served describes a server to an agent.
type Served struct {
	URL     string // without a path: http://127.0.0.1:8080
	Key     string // the API key; "" if the server asks for none
	Model   string // the id of GET /v1/models
	Context int    // tokens of a prompt and its answer
}

// key returns what clients send that insist on a key.
func (s Served) key() string {
	if s.Key == "" {
		return "none"
	}
	return s.Key
}

// Agent is a program that talks with a model by its own choice of protocol.
type Agent struct {
	Name    string // as in krater launch NAME
	Program string // looked for in PATH
	Install string // a command line that installs it
	// Setup returns the arguments that come before the user's, and variables as NAME=VALUE.
	Setup func(s Served) (args, env []string)
}

// All lists the agents by name.
var All = []Agent{
	{"aider", "aider", "python3 -m pip install aider-install && aider-install", aider},
	{"claude", "claude", "npm install -g @anthropic-ai/claude-code", claude},
	{"codex", "codex", "npm install -g @openai/codex", codex},
	{"opencode", "opencode", "npm install -g opencode-ai", opencode},
}

// Find returns the agent of a name, or nil.
func Find(name string) *Agent {
	if i := slices.IndexFunc(All, func(a Agent) bool { return a.Name == name }); i >= 0 {
		return &All[i]
	}
	return nil
}

// aider speaks Chat Completions, through LiteLLM: openai/ is the prefix of its name for any such server.
func aider(s Served) (args, env []string) {
	return []string{"--model", "openai/" + s.Model, "--no-show-model-warnings"},
		[]string{"OPENAI_API_BASE=" + s.URL + "/v1", "OPENAI_API_KEY=" + s.key()}
}

// claude speaks Messages. It has a small model for titles and summaries, which is the same one here.
// It also reports usage and looks for updates elsewhere, which a local model is no reason for.
func claude(s Served) (args, env []string) {
	env = []string{"ANTHROPIC_BASE_URL=" + s.URL, "ANTHROPIC_AUTH_TOKEN=" + s.key(), "ANTHROPIC_API_KEY=", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"}
	for _, name := range []string{"ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"} {
		env = append(env, name+"="+s.Model)
	}
	return nil, env
}

// codex speaks Responses. Settings of its config file can be given as arguments, each value in TOML.
func codex(s Served) (args, env []string) {
	for _, setting := range []string{
		"model_provider=" + strconv.Quote("krater"),
		"model_providers.krater.name=" + strconv.Quote("Krater"),
		"model_providers.krater.base_url=" + strconv.Quote(s.URL+"/v1"),
		"model_providers.krater.env_key=" + strconv.Quote("KRATER_AGENT_KEY"),
		"model_providers.krater.wire_api=" + strconv.Quote("responses"),
		"model_context_window=" + strconv.Itoa(s.Context),
	} {
		args = append(args, "-c", setting)
	}
	return append(args, "-m", s.Model), []string{"KRATER_AGENT_KEY=" + s.key()}
}

// opencode speaks Chat Completions, through the AI SDK, and reads a config from a variable.
func opencode(s Served) (args, env []string) {
	limit := map[string]int{"context": s.Context, "output": s.Context / 4}
	config, err := json.Marshal(map[string]any{
		"model":       "krater/" + s.Model,
		"small_model": "krater/" + s.Model,
		"provider": map[string]any{"krater": map[string]any{
			"npm": "@ai-sdk/openai-compatible", "name": "Krater",
			"options": map[string]string{"baseURL": s.URL + "/v1", "apiKey": s.key()},
			"models":  map[string]any{s.Model: map[string]any{"name": s.Model, "limit": limit}},
		}},
	})
	if err != nil {
		panic(fmt.Sprint("agents: ", err)) // strings and numbers
	}
	return nil, []string{"OPENCODE_CONFIG_CONTENT=" + string(config)}
}
