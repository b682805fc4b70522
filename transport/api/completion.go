package api

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"

	"krater/actors/engine"
)

// MaxPromptIDs bounds the token ids of one request's prompts together.
const MaxPromptIDs = 4 << 20

// Prompts is the "prompt" of a completion: a string, an array of strings, an array of token ids, or
// an array of such arrays; at most MaxChoices prompts.
type Prompts struct {
	Texts []string  // the first two forms
	IDs   [][]int32 // the last two
}

// Len returns the number of prompts.
func (p *Prompts) Len() int { return len(p.Texts) + len(p.IDs) }

const promptForms = "a string, an array of strings, an array of token ids or an array of such arrays"

// UnmarshalJSONFrom reads any of the four forms; null leaves p empty.
func (p *Prompts) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*p = Prompts{}
	switch d.PeekKind() {
	case 'n':
		return d.SkipValue()
	case '"':
		return p.addText(d)
	case '[':
	default:
		return wrongKind(d, promptForms)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	var err error
	switch d.PeekKind() {
	case ']':
		return &ValueError{Reason: "must not be empty"}
	case '"':
		err = p.elements(d, MaxChoices, func() error { return p.addText(d) })
	case '0':
		p.IDs = [][]int32{nil}
		err = p.elements(d, MaxPromptIDs, func() error { return p.addID(d) })
	case '[':
		err = p.elements(d, MaxChoices, func() error { return p.addIDs(d) })
	default:
		err = wrongKind(d, promptForms)
	}
	return err
}

// elements reads up to the end of an array whose bracket is already read.
func (p *Prompts) elements(d *jsontext.Decoder, limit int, read func() error) error {
	for n := 0; d.PeekKind() != ']'; n++ {
		if n == limit {
			return &ValueError{Reason: fmt.Sprintf("has more than %d elements", limit)}
		}
		if err := read(); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

func (p *Prompts) addText(d *jsontext.Decoder) error {
	if d.PeekKind() != '"' {
		return wrongKind(d, promptForms)
	}
	var text string
	if err := json.UnmarshalDecode(d, &text); err != nil {
		return err
	}
	p.Texts = append(p.Texts, text)
	return nil
}

func (p *Prompts) addIDs(d *jsontext.Decoder) error {
	if d.PeekKind() != '[' {
		return wrongKind(d, promptForms)
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	if d.PeekKind() == ']' {
		return &ValueError{Reason: "holds an empty list of token ids"}
	}
	p.IDs = append(p.IDs, nil)
	return p.elements(d, MaxPromptIDs, func() error { return p.addID(d) })
}

func (p *Prompts) addID(d *jsontext.Decoder) error {
	id, err := readID(d)
	last := len(p.IDs) - 1
	p.IDs[last] = append(p.IDs[last], id)
	return err
}

// check refuses ids outside the vocabulary.
func (p *Prompts) check(param string, info engine.Info) *Error {
	if p.Len() == 0 {
		return BadRequest(CodeMissing, param, "'%s' is required", param)
	}
	for _, ids := range p.IDs {
		if err := CheckIDs(param, ids, info); err != nil {
			return err
		}
	}
	return nil
}

// CheckIDs refuses token ids outside the vocabulary.
func CheckIDs(param string, ids []int32, info engine.Info) *Error {
	for _, id := range ids {
		if int(id) >= info.Vocab {
			return Invalid(param, "'%s' names token %d, the vocabulary has %d", param, id, info.Vocab)
		}
	}
	return nil
}

// CompletionRequest is the body of POST /v1/completions.
type CompletionRequest struct {
	Sampling
	Ignored
	Model         *string        `json:"model"`
	Prompt        Prompts        `json:"prompt"`
	Stream        *bool          `json:"stream"`
	StreamOptions *StreamOptions `json:"stream_options"`
	MaxTokens     *int           `json:"max_tokens"`
	N             *int           `json:"n"`
	BestOf        *int           `json:"best_of"`
	Logprobs      *int           `json:"logprobs"`
	PromptScores  *int           `json:"prompt_logprobs"`
	Echo          *bool          `json:"echo"`
	// Suffix is text that follows the answer, for models with tokens for that (fill in the middle).
	Suffix *string `json:"suffix"`
	// AddSpecialTokens adds the begin token to text that lacks it, and ParseSpecial recognises
	// special tokens in text. Both default to true, and neither affects token ids.
	AddSpecialTokens *bool `json:"add_special_tokens"`
	ParseSpecial     *bool `json:"parse_special"`
}

// Plan validates the request. The model is checked by CheckModel before it.
func (r *CompletionRequest) Plan(info engine.Info) (*Plan, *Error) {
	plan := &Plan{Echo: isTrue(r.Echo), Stream: isTrue(r.Stream)}
	var err *Error
	if err = r.StreamOptions.apply(plan); err != nil {
		return nil, err
	}
	if err := r.Ignored.check(); err != nil {
		return nil, err
	}
	if err := r.Prompt.check("prompt", info); err != nil {
		return nil, err
	}
	if plan.Choices, err = choices("n", r.N, r.Prompt.Len()); err != nil {
		return nil, err
	}
	if err := r.refuse(plan, info); err != nil {
		return nil, err
	}
	if plan.Candidates, err = r.candidates(plan); err != nil {
		return nil, err
	}
	base := &engine.Request{Logprobs: -1}
	if base.PromptOnly = r.scoresOnly(); !base.PromptOnly {
		if base.MaxTokens, err = MaxTokens("max_tokens", r.MaxTokens); err != nil {
			return nil, err
		}
	} else if r.MinTokens != nil && *r.MinTokens > 0 {
		return nil, Invalid("min_tokens", "'min_tokens' (%d) is above 'max_tokens' (0)", *r.MinTokens)
	}
	if r.Logprobs != nil {
		if *r.Logprobs < 0 || *r.Logprobs > MaxTopLogprobs {
			return nil, Invalid("logprobs", "'logprobs' must be between 0 and %d, not %d", MaxTopLogprobs, *r.Logprobs)
		}
		base.Logprobs = *r.Logprobs
	}
	if err := r.Apply(base, info); err != nil {
		return nil, err
	}
	// Raw text has no template, so its template fields are only checked.
	if err := r.ApplyChat(&engine.Chat{}); err != nil {
		return nil, err
	}
	for i := range r.Prompt.Len() {
		one := *base
		one.Prompt = r.prompt(i)
		plan.Requests = append(plan.Requests, repeat(&one, plan.Candidates)...)
	}
	if plan.Echo && base.Logprobs >= 0 {
		plan.EchoLogprobs = true
		plan.score(base.Logprobs)
	}
	return plan, plan.scorePrompts(r.PromptScores)
}

// scoresOnly reports whether no answer is wanted: the prompt is repeated or scored.
func (r *CompletionRequest) scoresOnly() bool {
	return r.MaxTokens != nil && *r.MaxTokens == 0 && (isTrue(r.Echo) || r.PromptScores != nil)
}

// prompt returns the i-th prompt for the engine.
func (r *CompletionRequest) prompt(i int) engine.Prompt {
	if i >= len(r.Prompt.Texts) {
		return engine.Prompt{IDs: r.Prompt.IDs[i]}
	}
	p := engine.Prompt{
		Text: &r.Prompt.Texts[i], NoBOS: isFalse(r.AddSpecialTokens), ParseSpecial: !isFalse(r.ParseSpecial),
	}
	if r.fills() {
		p.Suffix = r.Suffix
	}
	return p
}

// fills reports whether the answer fills in the middle of a text.
func (r *CompletionRequest) fills() bool { return r.Suffix != nil && *r.Suffix != "" }

func (r *CompletionRequest) refuse(plan *Plan, info engine.Info) *Error {
	if r.fills() {
		switch {
		case !info.Infill:
			return Unsupported("suffix", "'suffix' is not supported: the model has no tokens for filling in the middle of a text")
		case len(r.Prompt.IDs) > 0:
			return Invalid("suffix", "'suffix' goes with a prompt of text, not with token ids")
		case plan.Echo || r.PromptScores != nil:
			return Unsupported("suffix", "'suffix' is not supported together with 'echo' or 'prompt_logprobs'")
		}
	}
	if plan.Echo && r.Logprobs != nil && plan.Stream && plan.Choices > 1 {
		return Unsupported("echo", "'echo' with 'logprobs' and 'n' above 1 cannot be streamed")
	}
	return nil
}

// candidates returns the number of answers a prompt gets, of which the best are given.
func (r *CompletionRequest) candidates(plan *Plan) (int, *Error) {
	if r.BestOf == nil {
		return plan.Choices, nil
	}
	n, err := choices("best_of", r.BestOf, r.Prompt.Len())
	switch {
	case err != nil:
		return 0, err
	case n < plan.Choices:
		return 0, Invalid("best_of", "'best_of' (%d) must not be less than 'n' (%d)", n, plan.Choices)
	case n > plan.Choices && plan.Stream:
		return 0, Unsupported("best_of", "'best_of' greater than 'n' cannot be streamed: which answers are best is known at the end")
	}
	return n, nil
}

// MarshalJSONTo writes the form with the least nesting, for clients.
func (p Prompts) MarshalJSONTo(e *jsontext.Encoder) error {
	switch {
	case len(p.Texts) == 1:
		return json.MarshalEncode(e, p.Texts[0])
	case len(p.Texts) > 1:
		return json.MarshalEncode(e, p.Texts)
	case len(p.IDs) == 1:
		return json.MarshalEncode(e, p.IDs[0])
	}
	return json.MarshalEncode(e, p.IDs)
}
