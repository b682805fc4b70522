package chat

import (
	"strings"

	"krater/stages/text/chat/template"
	"krater/stages/text/toolcall"
)

// The Hermes form (NousResearch's Hermes models, Qwen2.5, Qwen3) stands in where a template has no
// place for tools: they are described in a system message, calls are text of the assistant, and
// results are messages of the user.

const (
	toolsIntro = "You can call functions. Their signatures are within <tools></tools>, one JSON object per line:\n<tools>\n"
	toolsOutro = "</tools>\n\nTo call functions, write for each call a JSON object with the function's name and its arguments within " +
		"<tool_call></tool_call>:\n<tool_call>\n{\"name\": \"function-name\", \"arguments\": {\"parameter\": \"value\"}}\n</tool_call>\n" +
		"You then get each result within <tool_response></tool_response>."
	callOpen, callClose         = "<tool_call>\n", "\n</tool_call>"
	responseOpen, responseClose = "<tool_response>\n", "\n</tool_response>"
)

// describe returns the text that tells a model about tools.
func describe(list template.Value) (string, error) {
	var b strings.Builder
	b.WriteString(toolsIntro)
	for _, tool := range list.AsList().Items {
		s, err := template.ToJSON(tool)
		if err != nil {
			return "", fail("tools", "%v", err)
		}
		b.WriteString(template.MarkString(s) + "\n")
	}
	b.WriteString(toolsOutro)
	return b.String(), nil
}

// calls reports whether a message of a conversation has tool calls.
func calls(list template.Value) bool {
	if !list.IsList() {
		return false
	}
	for _, m := range list.AsList().Items {
		if !m.IsDict() {
			continue
		}
		if v, ok := m.AsDict().Get("tool_calls"); ok && v.IsList() && v.AsList().Len() > 0 {
			return true
		}
	}
	return false
}

// hermesMessage turns the calls of an assistant's message, and a result, into text.
func (k *checker) hermesMessage(role string, m *template.Dict) {
	switch role {
	case "assistant":
		list, ok := m.Get("tool_calls")
		if !ok {
			return
		}
		var b strings.Builder
		for i, call := range list.AsList().Items {
			fn := call.AsDict().Data["function"].AsDict()
			if i > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(callOpen + `{"name": "` + fn.Data["name"].AsString() + `", "arguments": ` + fn.Data["arguments"].AsString() + "}" + callClose)
		}
		remove(m, "tool_calls")
		if m.Data["content"].IsNone() {
			m.Set("content", k.shape(role, template.NewString("")))
		}
		text := b.String()
		if c := m.Data["content"]; c.IsString() && c.AsString() != "" || c.IsList() && c.AsList().Items[0].AsDict().Data["text"].AsString() != "" {
			text = "\n" + text
		}
		m.Set("content", appended(m.Data["content"], text))
	case "tool":
		remove(m, "tool_call_id")
		remove(m, "name")
		m.Set("content", appended(prepended(responseOpen, m.Data["content"]), responseClose))
	}
}

func remove(d *template.Dict, name string) {
	if _, ok := d.Data[name]; !ok {
		return
	}
	delete(d.Data, name)
	for i, key := range d.Keys {
		if key == name {
			d.Keys = append(d.Keys[:i:i], d.Keys[i+1:]...)
			return
		}
	}
}

// appended returns content, a string or parts made for this render, with text behind it.
func appended(content template.Value, text string) template.Value {
	if content.IsString() {
		return template.NewString(content.AsString() + text)
	}
	parts := content.AsList().Items
	last := parts[len(parts)-1].AsDict()
	last.Set("text", template.NewString(last.Data["text"].AsString()+text))
	return content
}

// prepended is appended with the text before it.
func prepended(text string, content template.Value) template.Value {
	if content.IsString() {
		return template.NewString(text + content.AsString())
	}
	first := content.AsList().Items[0].AsDict()
	first.Set("text", template.NewString(text+first.Data["text"].AsString()))
	return content
}

// hermesConversation joins the results that follow one another, and puts the description of the
// tools into the first message: the system's, a new one, or, if the template has no place for it,
// the first of the user. asked are the messages' own roles.
func (k *checker) hermesConversation(messages []template.Value, asked []string) []template.Value {
	out := messages[:0:0]
	for i, m := range messages {
		if i > 0 && asked[i] == "tool" && asked[i-1] == "tool" {
			last := out[len(out)-1].AsDict()
			last.Set("content", joined(last.Data["content"], m.AsDict().Data["content"]))
			continue
		}
		out = append(out, m)
	}
	if k.block == "" {
		return out
	}
	switch {
	case asked[0] == "system" || asked[0] == "developer":
		first := out[0].AsDict()
		first.Set("content", appended(first.Data["content"], "\n\n"+k.block))
		return out
	case !k.t.traits.noSystem:
		m := template.NewDict()
		m.AsDict().Set("role", template.NewString("system"))
		m.AsDict().Set("content", k.shape("system", template.NewString(k.block)))
		return append([]template.Value{m}, out...)
	}
	for i, m := range out {
		if asked[i] == "user" {
			m.AsDict().Set("content", prepended(k.block+"\n\n", m.AsDict().Data["content"]))
			break
		}
	}
	return out
}

// joined returns two contents of one form as one.
func joined(a, b template.Value) template.Value {
	if a.IsString() && b.IsString() {
		return template.NewString(a.AsString() + "\n" + b.AsString())
	}
	if a.IsString() {
		a = template.NewList([]template.Value{textPart(a)})
	}
	if b.IsString() {
		b = template.NewList([]template.Value{textPart(b)})
	}
	return template.NewList(append(a.AsList().Items, prepended("\n", b).AsList().Items...))
}

// Parser takes an answer apart in the form that the template shows. It returns nil where an answer
// is text alone.
func (t *Template) Parser(o toolcall.Options) *toolcall.Parser {
	if o.Tools == nil && !t.format.Reasons() {
		return nil
	}
	o.Hermes = t.traits.noTools
	return t.format.New(o)
}

// Format returns the form of answers that the template shows.
func (t *Template) Format() toolcall.Format { return t.format }

// Speech returns the form in which a model of the template is told to write calls: as Format, or the Hermes
// form, where the template has no place for tools and the prompt describes it.
func (t *Template) Speech() toolcall.Format {
	if t.traits.noTools {
		return t.format.Hermes()
	}
	return t.format
}
