package responses

import (
	"encoding/json/jsontext"
	"fmt"
	"net/http"
	"strings"
	"time"

	"krater/actors/engine"
	"krater/transport/api"
)

// Limits of a request's fields.
const (
	maxTopLogprobs  = 20
	maxGrace        = 300 // seconds
	maxMetadata     = 16  // entries
	maxMetadataKey  = 64  // characters, as the public API has it
	maxMetadataText = 512
	maxIncludes     = 16
	maxClientBytes  = 64 << 10 // of client_metadata
)

// body is the request of POST /v1/responses and, besides its type, of a response.create frame. null
// is the same as absent.
type body struct {
	api.Sampling
	Model          *string        `json:"model"`
	Input          jsontext.Value `json:"input"`
	Instructions   *string        `json:"instructions"`
	PreviousID     *string        `json:"previous_response_id"`
	Conversation   jsontext.Value `json:"conversation"` // an id, or an object with one
	MaxTokens      *int           `json:"max_output_tokens"`
	TopLogprobs    *int           `json:"top_logprobs"`
	Include        jsontext.Value `json:"include"`
	Metadata       jsontext.Value `json:"metadata"`
	ClientMetadata jsontext.Value `json:"client_metadata"` // describes the client; no effect on the answer
	Text           jsontext.Value `json:"text"`
	Truncation     *string        `json:"truncation"`
	Tools          jsontext.Value `json:"tools"`
	ToolChoice     jsontext.Value `json:"tool_choice"`
	ParallelTools  *bool          `json:"parallel_tool_calls"`
	Reasoning      jsontext.Value `json:"reasoning"`
	Store          *bool          `json:"store"`
	Stream         *bool          `json:"stream"` // the WebSocket streams whatever it says
	StreamOptions  jsontext.Value `json:"stream_options"`
	Background     *bool          `json:"background"`
	ResumeGrace    *int           `json:"resume_grace_s"`  // seconds a lost connection's answer runs on
	Generate       *bool          `json:"generate"`        // false: only prepare
	ReturnProgress *bool          `json:"return_progress"` // events about the part of the prompt that is computed
	User           *string        `json:"user"`
	Safety         *string        `json:"safety_identifier"`
	ServiceTier    *string        `json:"service_tier"`
	PromptCacheKey *string        `json:"prompt_cache_key"`

	Extras jsontext.Value `json:",embed"` // without a field here: must be in the table of hints
}

// plan is a validated request.
type plan struct {
	req        *engine.Request // nil once the engine has it
	echo       Object          // what every form of the response repeats
	past       []byte          // messages of the responses before, joined by commas
	turns      []turn          // this request's own messages
	store      bool            // visible to GET, DELETE and other connections
	stream     bool
	background bool
	generate   bool
	truncate   bool // truncation: auto
	continues  bool // the answer continues the last message
	grace      time.Duration
	header     http.Header       // what client_metadata has of one
	spaces     map[string]spaced // functions of namespaces, by qualified name
}

// newPlan validates b for the model. The conversation before it and the engine's own checks come
// later.
func newPlan(b *body, info engine.Info) (*plan, *api.Error) {
	if err := b.refuse(); err != nil {
		return nil, err
	}
	if err := api.CheckModel(b.Model, info); err != nil {
		return nil, err
	}
	p := &plan{
		req: &engine.Request{Logprobs: -1}, store: isNotFalse(b.Store), stream: isTrue(b.Stream),
		background: isTrue(b.Background), generate: isNotFalse(b.Generate),
	}
	for _, step := range []func(*body, *plan, engine.Info) *api.Error{
		planInput, planSampling, planLogprobs, planTools, planText, planLife, planEcho, planHeader,
	} {
		if err := step(b, p, info); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// refuse returns an error for the first field that would change the answer and is not supported.
func (b *body) refuse() *api.Error {
	if err := api.CheckHints("", b.Extras); err != nil {
		return err
	}
	if !api.Absent(b.StreamOptions) && b.StreamOptions.Kind() != '{' {
		return api.BadRequest(api.CodeInvalidType, "stream_options", "'stream_options' must be an object")
	}
	return api.CheckHints("stream_options", b.StreamOptions)
}

func planInput(b *body, p *plan, _ engine.Info) *api.Error {
	turns, err := readInput(b.Input)
	if err != nil {
		return err
	}
	p.turns = turns
	switch {
	case len(turns) > 0 || b.PreviousID != nil || !p.generate:
		return nil
	case api.Absent(b.Input):
		return api.BadRequest(api.CodeMissing, "input", "'input' is missing")
	}
	return api.Invalid("input", "'input' is empty and there is no 'previous_response_id'")
}

func planSampling(b *body, p *plan, info engine.Info) *api.Error {
	var err *api.Error
	if p.req.MaxTokens, err = api.MaxTokens("max_output_tokens", b.MaxTokens); err != nil {
		return err
	}
	if err := b.Sampling.Apply(p.req, info); err != nil {
		return err
	}
	p.req.Prompt.Chat = &engine.Chat{}
	if err := b.reason(p); err != nil {
		return err
	}
	if err := b.Sampling.ApplyChat(p.req.Prompt.Chat); err != nil {
		return err
	}
	p.continues = p.req.Prompt.Chat.ContinueFinalMessage
	p.req.Progress = isTrue(b.ReturnProgress)
	return nil
}

// reason reads the field reasoning. A summary is accepted without effect: the reasoning itself is
// given.
func (b *body) reason(p *plan) *api.Error {
	if api.Absent(b.Reasoning) {
		p.echo.Reasoning.Effort = b.ReasoningEffort
		return nil
	}
	var r struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
		Old     *string `json:"generate_summary"`
	}
	if err := api.DecodeAt("reasoning", b.Reasoning, &r); err != nil {
		return err
	}
	for _, s := range []*string{r.Summary, r.Old} {
		if s != nil && *s != "auto" && *s != "concise" && *s != "detailed" {
			return api.Invalid("reasoning.summary", "'reasoning.summary' must be auto, concise or detailed, not '%s'", api.Clip(*s))
		}
	}
	switch {
	case r.Effort == nil:
	case b.ReasoningEffort != nil:
		return api.Invalid("reasoning.effort", "'reasoning.effort' and 'reasoning_effort' are both given; give one")
	default:
		b.ReasoningEffort = r.Effort
	}
	p.echo.Reasoning.Effort = b.ReasoningEffort
	return nil
}

// includes are the values of include that the public API knows. All but the last are about items
// that an answer here never has.
var includes = map[string]bool{
	"file_search_call.results": true, "web_search_call.results": true,
	"web_search_call.action.sources": true, "message.input_image.image_url": true,
	"computer_call_output.output.image_url": true, "code_interpreter_call.outputs": true,
	"reasoning.encrypted_content": true, includeLogprobs: true,
}

const includeLogprobs = "message.output_text.logprobs"

func planLogprobs(b *body, p *plan, _ engine.Info) *api.Error {
	top, wanted := 0, false
	if b.TopLogprobs != nil {
		if top = *b.TopLogprobs; top < 0 || top > maxTopLogprobs {
			return api.Invalid("top_logprobs", "'top_logprobs' must be between 0 and %d, not %d", maxTopLogprobs, top)
		}
		wanted = top > 0
	}
	values, err := elements("include", b.Include, maxIncludes)
	if err != nil {
		return err
	}
	for i, raw := range values {
		var name string
		param := fmt.Sprintf("include[%d]", i)
		if err := api.DecodeAt(param, raw, &name); err != nil {
			return err
		}
		if !includes[name] {
			return api.Invalid(param, "'%s' is not a known value of 'include'", param)
		}
		wanted = wanted || name == includeLogprobs
	}
	if wanted {
		p.req.Logprobs = top
	}
	p.echo.TopLogprobs = top
	return nil
}

// planTools puts the tools into the prompt and has the answer taken apart. Tools other than functions
// are left out if none may be called.
func planTools(b *body, p *plan, _ engine.Info) *api.Error {
	p.echo.Tools, p.echo.ToolChoice = jsontext.Value("[]"), jsontext.Value(`"auto"`)
	p.echo.ParallelToolCalls = isNotFalse(b.ParallelTools)
	choice, err := api.ReadToolChoice(b.ToolChoice)
	if err != nil {
		return err
	}
	if !api.Absent(b.ToolChoice) {
		p.echo.ToolChoice = b.ToolChoice
	}
	tools, spaces, err := readTools(b.Tools, choice.Mode != "none" && p.generate)
	if err != nil {
		return err
	}
	if _, err := api.CheckTools("tools", tools); err != nil {
		return flat(err)
	}
	if !api.Absent(b.Tools) {
		p.echo.Tools = b.Tools
	}
	p.spaces = spaces
	p.req.Prompt.Chat.Tools = tools
	p.req.Parts = &engine.Parts{Single: !p.echo.ParallelToolCalls, Budget: b.Budget()}
	if !p.generate {
		choice.Mode = "auto"
	}
	return choice.Apply(p.req.Parts, tools)
}

// flat names a field of a tool as this door has it, without the object around it.
func flat(err *api.Error) *api.Error {
	e := *err
	e.Param = strings.Replace(e.Param, ".function", "", 1)
	e.Message = strings.Replace(e.Message, ".function", "", 1)
	return &e
}

func planText(b *body, p *plan, _ engine.Info) *api.Error {
	p.echo.Text = TextConfig{Format: jsontext.Value(`{"type":"text"}`), Verbosity: "medium"}
	if api.Absent(b.Text) {
		return nil
	}
	var text struct {
		Format    jsontext.Value `json:"format"`
		Verbosity *string        `json:"verbosity"`
	}
	if err := api.DecodeAt("text", b.Text, &text); err != nil {
		return err
	}
	if text.Verbosity != nil && *text.Verbosity != "medium" {
		return api.Unsupported("text.verbosity", "'text.verbosity' is not supported")
	}
	if api.Absent(text.Format) {
		return nil
	}
	format, err := api.TextFormat("text.format", text.Format)
	if err != nil {
		return err
	}
	if format != nil {
		p.echo.Text.Format = text.Format
	}
	return api.SetFormat(p.req, format)
}

// planLife reads what happens to the answer while no client listens, and afterwards.
func planLife(b *body, p *plan, _ engine.Info) *api.Error {
	if b.Truncation != nil {
		if *b.Truncation != "auto" && *b.Truncation != "disabled" {
			return api.Invalid("truncation", "'truncation' must be 'auto' or 'disabled'")
		}
		p.truncate = *b.Truncation == "auto"
	}
	if b.ResumeGrace != nil {
		if *b.ResumeGrace < 0 || *b.ResumeGrace > maxGrace {
			return api.Invalid("resume_grace_s", "'resume_grace_s' must be between 0 and %d, not %d", maxGrace, *b.ResumeGrace)
		}
		p.grace = time.Duration(*b.ResumeGrace) * time.Second
	}
	if p.background && !p.store {
		return api.Invalid("background", "'background' needs 'store': its answer is fetched later")
	}
	return nil
}

func planEcho(b *body, p *plan, info engine.Info) *api.Error {
	e := &p.echo
	e.Model, e.Background, e.Store, e.ServiceTier = info.ID, p.background, p.store, "default"
	e.Instructions, e.MaxOutputTokens, e.PreviousID = b.Instructions, b.MaxTokens, b.PreviousID
	e.PromptCacheKey, e.SafetyIdentifier, e.User = b.PromptCacheKey, b.Safety, b.User
	e.Temperature, e.TopP = p.req.Sampling.Temperature, p.req.Sampling.TopP
	e.Truncation = "disabled"
	if p.truncate {
		e.Truncation = "auto"
	}
	var err *api.Error
	e.Metadata, err = readMetadata(b.Metadata)
	return err
}

func readMetadata(raw jsontext.Value) (out map[string]string, err *api.Error) {
	if api.Absent(raw) {
		return nil, nil
	}
	if err := api.DecodeAt("metadata", raw, &out); err != nil {
		return nil, err
	}
	if len(out) > maxMetadata {
		return nil, api.Invalid("metadata", "'metadata' has more than %d entries", maxMetadata)
	}
	for key, value := range out {
		if len(key) > 4*maxMetadataKey || len(value) > 4*maxMetadataText ||
			len([]rune(key)) > maxMetadataKey || len([]rune(value)) > maxMetadataText {
			return nil, api.Invalid("metadata", "'metadata' keys have at most %d characters, values at most %d", maxMetadataKey, maxMetadataText)
		}
	}
	return out, nil
}

// headerPrefix begins the keys of client_metadata that stand for a header of this request, because
// a connection has only one set of headers. The Codex clients send traceparent and tracestate this
// way.
const headerPrefix = "ws_request_header_"

func planHeader(b *body, p *plan, _ engine.Info) *api.Error {
	if api.Absent(b.ClientMetadata) {
		return nil
	}
	if len(b.ClientMetadata) > maxClientBytes {
		return api.Invalid("client_metadata", "'client_metadata' is longer than %d bytes", maxClientBytes)
	}
	var fields map[string]string
	if err := api.DecodeAt("client_metadata", b.ClientMetadata, &fields); err != nil {
		return err
	}
	for _, name := range []string{"traceparent", "tracestate"} {
		if value, ok := fields[headerPrefix+name]; ok {
			if p.header == nil {
				p.header = http.Header{}
			}
			p.header.Set(name, value)
		}
	}
	return nil
}

func isTrue(b *bool) bool     { return b != nil && *b }
func isNotFalse(b *bool) bool { return b == nil || *b }
