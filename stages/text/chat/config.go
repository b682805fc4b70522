package chat

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Bounds of a list of named templates.
const maxNamed = 16

// configFile is the part of tokenizer_config.json about chats.
type configFile struct {
	Template json.RawMessage `json:"chat_template"` // a string, or a list of named ones
	Added    map[string]struct {
		Content string `json:"content"`
		Special bool   `json:"special"`
	} `json:"added_tokens_decoder"`
}

// FromConfig compiles the template of a model folder: that of chat_template.jinja where there is
// such a file, else that of tokenizer_config.json (config). special are the texts of the tokens
// that only the template may yield: all added tokens of the tokenizer; nil protects all text of a
// client. Those of them that config does not call special may also come from an assistant message.
// Without a template the result is nil.
func FromConfig(config, jinja []byte, special []string) (*Template, error) {
	var c configFile
	tokens := map[string]json.RawMessage{}
	if len(config) > 0 {
		if err := json.Unmarshal(config, &c); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
		if err := json.Unmarshal(config, &tokens); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
	}
	o := Options{Tokens: map[string]string{}, SpecialTokens: special}
	for name, raw := range tokens {
		if !strings.HasSuffix(name, "_token") {
			continue
		}
		text, ok := tokenText(raw)
		switch {
		case !ok: // add_bos_token and its like, or null
		case name == "bos_token":
			o.BOS = text
		case name == "eos_token":
			o.EOS = text
		case identifier(name):
			o.Tokens[name] = text
		}
	}
	for _, a := range c.Added {
		if !a.Special {
			o.AssistantTokens = append(o.AssistantTokens, a.Content)
		}
	}
	source, toolUse, err := sources(c.Template)
	if err != nil {
		return nil, err
	}
	if len(jinja) > 0 {
		source, toolUse = string(jinja), ""
	}
	if source == "" {
		return nil, nil
	}
	o.ToolUse = toolUse
	return Compile(source, o)
}

// tokenText returns the text of a named token: a string, or an object with content.
func tokenText(raw json.RawMessage) (string, bool) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, string(raw) != "null"
	}
	var o struct {
		Content *string `json:"content"`
	}
	if json.Unmarshal(raw, &o) != nil || o.Content == nil {
		return "", false
	}
	return *o.Content, true
}

// sources returns the default template and the one for tools.
func sources(raw json.RawMessage) (source, toolUse string, err error) {
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &source) == nil {
		return source, "", nil
	}
	var named []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return "", "", fmt.Errorf("tokenizer_config.json: chat_template is neither a string nor a list of named templates")
	}
	if len(named) > maxNamed {
		return "", "", fmt.Errorf("tokenizer_config.json: %d chat templates, the limit is %d", len(named), maxNamed)
	}
	for _, n := range named {
		switch n.Name {
		case "default":
			source = n.Template
		case "tool_use":
			toolUse = n.Template
		}
	}
	if source == "" && len(named) > 0 {
		return "", "", fmt.Errorf("tokenizer_config.json: chat_template has no template named default")
	}
	return source, toolUse, nil
}
