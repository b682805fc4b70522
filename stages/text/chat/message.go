package chat

import (
	"fmt"
	"strconv"
	"strings"

	"krater/stages/text/chat/template"
)

// checker checks one conversation and builds the values that the template gets: strings marked as a
// client's, in the shape that the template handles.
type checker struct {
	t     *Template
	calls map[string]bool // ids of the tool calls so far
	// declared is the tools in TypeScript, where the template wants them so.
	declared string
	// hermes says that tools and calls get the Hermes form, block describes the tools in it.
	hermes bool
	block  string
}

// check returns the template's variables for a conversation.
func (t *Template) check(c Conversation) (map[string]template.Value, error) {
	if n := len(c.Messages) + len(c.Tools) + len(c.Kwargs); n > MaxInput {
		return nil, fail("messages", "the conversation has %d bytes, the limit is %d", n, MaxInput)
	}
	vars := make(map[string]template.Value, 16)
	for name, v := range t.fixed {
		vars[name] = v
	}
	vars["documents"] = template.None()
	if err := kwargs(c.Kwargs, vars); err != nil {
		return nil, err
	}
	k := &checker{t: t, calls: map[string]bool{}}
	tools, err := k.tools(c.Tools)
	if err != nil {
		return nil, err
	}
	vars["tools"] = tools
	if _, given := vars[declaration]; !given && k.declared != "" {
		vars[declaration] = template.NewString(template.MarkString(k.declared))
	}
	list, err := decode("messages", c.Messages)
	if err != nil {
		return nil, err
	}
	if !list.IsList() {
		return nil, wrong("messages", "an array")
	}
	if list.AsList().Len() == 0 {
		return nil, fail("messages", "'messages' must hold at least one message")
	}
	k.hermes = k.hermes || t.traits.noCalls && calls(list)
	messages, asked := make([]template.Value, list.AsList().Len()), make([]string, list.AsList().Len())
	for i, m := range list.AsList().Items {
		if messages[i], asked[i], err = k.message(fmt.Sprintf("messages[%d]", i), m); err != nil {
			return nil, err
		}
	}
	if k.hermes {
		messages = k.hermesConversation(messages, asked)
	}
	vars["messages"] = template.NewList(messages)
	return vars, nil
}

func decode(param string, data []byte) (template.Value, error) {
	v, err := template.Decode(data)
	if err != nil {
		return v, fail(param, "'%s' is not valid JSON: %v", param, err)
	}
	return v, nil
}

// absent reports whether an optional field is left out.
func absent(data []byte) bool {
	s := strings.TrimSpace(string(data))
	return s == "" || s == "null"
}

// kwargs adds a client's own template variables.
func kwargs(data []byte, vars map[string]template.Value) error {
	const param = "chat_template_kwargs"
	if absent(data) {
		return nil
	}
	v, err := decode(param, data)
	if err != nil {
		return err
	}
	if !v.IsDict() {
		return wrong(param, "an object")
	}
	for _, name := range v.AsDict().Keys {
		at := param + "." + name
		if !identifier(name) {
			return fail(param, "%s is not the name of a variable", strconv.Quote(name))
		}
		switch _, fixed := vars[name]; {
		case fixed && name != "documents", template.Reserved(name),
			name == "messages", name == "tools", name == "add_generation_prompt", name == "loop":
			return fail(at, "'%s' cannot be set", at)
		}
		vars[name] = template.Mark(v.AsDict().Data[name])
	}
	return nil
}

// identifier reports whether s can be a variable of a template.
func identifier(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// roles are the roles of a conversation.
var roles = []string{"system", "developer", "user", "assistant", "tool", "function"}

// known says which roles may have a field. Fields about prompt caching never reach the template.
// The third group comes from clients that send an answer back, and has no meaning.
func known(role, field string) bool {
	switch field {
	case "role", "content", "name", "cache_control":
		return true
	case "tool_calls", "reasoning_content", "reasoning", "thinking", "refusal":
		return role == "assistant"
	case "annotations", "audio", "function_call":
		return role == "assistant"
	case "tool_call_id":
		return role == "tool"
	}
	return false
}

// message checks one message, and also returns its role.
func (k *checker) message(param string, v template.Value) (template.Value, string, error) {
	if !v.IsDict() {
		return v, "", wrong(param, "an object")
	}
	in := v.AsDict()
	role, err := k.role(param, in)
	if err != nil {
		return v, "", err
	}
	shown := role // in the prompt
	if k.hermes && role == "tool" {
		shown = "user"
	}
	out := template.NewDict()
	d := out.AsDict()
	for _, field := range in.Keys {
		at, value := param+"."+field, in.Data[field]
		if !known(role, field) {
			return v, "", fail(at, "'%s' is not a field of a message with role %q", at, role)
		}
		var err error
		switch field {
		case "role":
			d.Set(field, template.NewString(k.t.traits.called(shown)))
		case "content":
			if value, err = k.content(at, shown, value); err == nil {
				d.Set(field, value)
			}
		case "tool_calls":
			err = k.toolCalls(at, value, d)
		case "name", "tool_call_id":
			if value.IsNone() {
				continue
			}
			if err = text(at, value); err == nil {
				d.Set(field, template.Mark(value))
			}
		case "audio", "function_call":
			if !value.IsNone() {
				err = fail(at, "'%s' is not supported", at)
			}
		case "reasoning_content", "reasoning", "thinking", "refusal":
			if !value.IsNone() && !value.IsString() {
				err = wrong(at, "a string")
			}
		}
		if err != nil {
			return v, "", err
		}
	}
	if role == "assistant" {
		k.reasoning(in, d)
	}
	if err := k.complete(param, role, in, d); err != nil {
		return v, "", err
	}
	if k.hermes {
		k.hermesMessage(role, d)
	}
	return out, role, nil
}

// role checks the role of a message, and that the template has a place for it.
func (k *checker) role(param string, in *template.Dict) (string, error) {
	at := param + ".role"
	v, ok := in.Get("role")
	if !ok {
		return "", missing(at)
	}
	if !v.IsString() {
		return "", wrong(at, "a string")
	}
	role := v.AsString()
	for _, r := range roles {
		if r == role {
			if k.t.traits.dropped[k.t.traits.called(role)] && (role != "tool" || !k.hermes) {
				return "", fail(at, "the model's chat template has no place for messages with role %q", role)
			}
			return role, nil
		}
	}
	return "", fail(at, "'%s' must be system, developer, user, assistant, tool or function", at)
}

// text checks a field that must be a string with something in it.
func text(param string, v template.Value) error {
	if !v.IsString() || v.AsString() == "" {
		return wrong(param, "a string that is not empty")
	}
	return nil
}

// complete checks what a message must have.
func (k *checker) complete(param, role string, in, out *template.Dict) error {
	content, has := out.Get("content")
	switch {
	case role == "assistant" && (!has || content.IsNone()):
		// An answer may be empty: tool calls, or reasoning that ran out of tokens.
		empty := template.NewString("")
		if refusal, ok := in.Get("refusal"); ok && refusal.IsString() {
			empty = k.answer(refusal.AsString())
		} else if k.t.traits.none {
			empty = template.None()
		}
		out.Set("content", k.shape(role, empty))
	case !has || content.IsNone():
		return missing(param + ".content")
	}
	if name, ok := in.Get("name"); role == "function" && (!ok || name.IsNone()) {
		return missing(param + ".name")
	}
	if role == "tool" {
		at := param + ".tool_call_id"
		id, ok := in.Get("tool_call_id")
		if !ok || id.IsNone() {
			return missing(at)
		}
		if !k.calls[id.AsString()] {
			return fail(at, "'%s' answers no tool call of an earlier message", at)
		}
	}
	return nil
}

// reasoning hands on an assistant's reasoning under the names by which the template asks for it;
// clients use three.
func (k *checker) reasoning(in, out *template.Dict) {
	if content, _ := out.Get("content"); k.t.traits.apart && !empty(content) && out.Data["tool_calls"].IsList() {
		return // the template takes one of the two
	}
	for _, field := range []string{"reasoning_content", "reasoning", "thinking"} {
		v, ok := in.Get(field)
		if !ok || !v.IsString() {
			continue
		}
		for _, name := range []string{"reasoning_content", "reasoning", "thinking"} {
			if k.t.main.Mentions(name) || k.t.tools.Mentions(name) {
				out.Set(name, k.answer(v.AsString()))
			}
		}
		return
	}
}

// empty reports whether content is none or an empty string.
func empty(v template.Value) bool { return v.IsNone() || v.IsString() && v.AsString() == "" }

// answer marks an assistant's words: some tokens are its own to write.
func (k *checker) answer(s string) template.Value {
	return template.NewString(template.MarkString(s, k.t.exempt.spans(s)...))
}
