package api

import (
	"encoding/json/jsontext"

	"krater/actors/engine"
)

// TokenizeRequest is the body of POST /tokenize: a prompt or a conversation.
type TokenizeRequest struct {
	Model            *string `json:"model"`
	Prompt           *string `json:"prompt"`
	AddSpecialTokens *bool   `json:"add_special_tokens"` // prompt: true unless said; chat: never
	ParseSpecial     *bool   `json:"parse_special"`      // read special-token text in prompt as tokens
	ReturnTokenStrs  *bool   `json:"return_token_strs"`
	ChatInput
}

// TokenizeAnswer is its answer.
type TokenizeAnswer struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int32  `json:"tokens"`
	TokenStrs   []string `json:"token_strs,omitzero"`
}

// Input validates the request and returns the text to tokenize.
func (r *TokenizeRequest) Input() (engine.Prompt, *Error) {
	if Absent(r.Messages) {
		return r.text()
	}
	switch {
	case r.Prompt != nil:
		return engine.Prompt{}, Invalid("prompt", "give 'prompt' or 'messages', not both")
	case isTrue(r.AddSpecialTokens):
		return engine.Prompt{}, Unsupported("add_special_tokens", "'add_special_tokens' goes with 'prompt'; in a chat the template adds special tokens")
	case isTrue(r.ParseSpecial):
		return engine.Prompt{}, Unsupported("parse_special", "'parse_special' goes with 'prompt'; the text of a chat stays text")
	}
	c, err := r.Chat()
	return engine.Prompt{Chat: c}, err
}

func (r *TokenizeRequest) text() (engine.Prompt, *Error) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"tools", !Absent(r.Tools)}, {"add_generation_prompt", isTrue(r.AddGenerationPrompt)},
		{"continue_final_message", isTrue(r.ContinueFinal)}, {"chat_template_kwargs", !Absent(r.TemplateKwargs)},
		{"enable_thinking", isTrue(r.EnableThinking)}, {"thinking", !Absent(r.Thinking)},
		{"reasoning_effort", r.ReasoningEffort != nil},
	} {
		if f.set {
			return engine.Prompt{}, Invalid(f.name, "'%s' needs 'messages'", f.name)
		}
	}
	if err := CheckHints("", r.Extras); err != nil {
		return engine.Prompt{}, err
	}
	if r.Prompt == nil {
		return engine.Prompt{}, BadRequest(CodeMissing, "prompt", "'prompt' or 'messages' is required")
	}
	return engine.Prompt{
		Text: r.Prompt, NoBOS: isFalse(r.AddSpecialTokens), ParseSpecial: isTrue(r.ParseSpecial),
	}, nil
}

// ChatInput are the fields that decide a conversation's text.
type ChatInput struct {
	Messages jsontext.Value `json:"messages"`
	Tools    jsontext.Value `json:"tools"`
	TemplateFields
	Extras jsontext.Value `json:",embed"`
}

// Chat validates them.
func (i *ChatInput) Chat() (*engine.Chat, *Error) {
	if err := CheckHints("", i.Extras); err != nil {
		return nil, err
	}
	if err := CheckMessages("messages", i.Messages); err != nil {
		return nil, err
	}
	c := &engine.Chat{Messages: i.Messages}
	count, err := CheckTools("tools", i.Tools)
	if err != nil {
		return nil, err
	}
	if count > 0 {
		c.Tools = i.Tools
	}
	if err := i.ApplyChat(c); err != nil {
		return nil, err
	}
	return c, nil
}

// TemplateRequest is the body of POST /apply-template.
type TemplateRequest struct {
	Model *string `json:"model"`
	ChatInput
}

// PromptAnswer is the answer of POST /apply-template and POST /detokenize.
type PromptAnswer struct {
	Prompt string `json:"prompt"`
}

// DetokenizeRequest is the body of POST /detokenize.
type DetokenizeRequest struct {
	Model             *string        `json:"model"`
	Tokens            jsontext.Value `json:"tokens"`
	SkipSpecialTokens *bool          `json:"skip_special_tokens"` // false unless said
	Extras            jsontext.Value `json:",embed"`
}

// IDs validates the request and returns the tokens.
func (r *DetokenizeRequest) IDs(info engine.Info) ([]int32, *Error) {
	if err := CheckHints("", r.Extras); err != nil {
		return nil, err
	}
	if Absent(r.Tokens) {
		return nil, BadRequest(CodeMissing, "tokens", "'tokens' is required")
	}
	var ids idList
	if err := DecodeAt("tokens", r.Tokens, &ids); err != nil {
		return nil, err
	}
	return ids, CheckIDs("tokens", ids, info)
}

// Skip reports whether special tokens are left out.
func (r *DetokenizeRequest) Skip() bool { return isTrue(r.SkipSpecialTokens) }

// idList is an array of token ids, at most MaxPromptIDs.
type idList []int32

// UnmarshalJSONFrom reads the array.
func (l *idList) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() != '[' {
		return wrongKind(d, "an array of token ids")
	}
	*l = idList{}
	return eachElement(d, MaxPromptIDs, func() error {
		id, err := readID(d)
		if err != nil {
			return err
		}
		*l = append(*l, id)
		return nil
	})
}

// Tokenizer is the answer of GET /tokenizer_info: fields of a tokenizer_config.json.
type Tokenizer struct {
	Class    string  `json:"tokenizer_class"` // krater
	BOS      *string `json:"bos_token"`
	EOS      *string `json:"eos_token"`
	Pad      *string `json:"pad_token"` // null: nothing is padded
	AddBOS   bool    `json:"add_bos_token"`
	Template *string `json:"chat_template"`
	MaxLen   int     `json:"model_max_length"`
}

// NewTokenizer describes the tokenizer of the served model.
func NewTokenizer(info engine.Info) Tokenizer {
	t := Tokenizer{Class: "krater", AddBOS: info.Tokenizer.AddBOS, MaxLen: info.Context}
	for _, f := range []struct {
		field **string
		text  string
	}{{&t.BOS, info.Tokenizer.BOS}, {&t.EOS, info.Tokenizer.EOS}, {&t.Template, info.Tokenizer.Template}} {
		if f.text != "" {
			*f.field = &f.text
		}
	}
	return t
}

// TokensMost returns the number of tokens that routes which count tokens give or take: more than fit
// into the context, since clients measure texts with them, but not any number.
func TokensMost(info engine.Info) int { return max(4*info.Context, 256<<10) }
