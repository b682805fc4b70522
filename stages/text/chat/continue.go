package chat

import (
	"strings"
	"unicode"

	"krater/stages/text/chat/template"
)

// finalTag is appended to the content of the last message to find, in the rendered text, where the
// model continues. The space shows whether the template strips the content.
const finalTag = "CONTINUE_FINAL_MESSAGE_TAG "

// openFinal appends the tag to the content of the last message, in a list of messages made for this
// render, and returns the tag.
func openFinal(messages template.Value) (string, error) {
	const param = "continue_final_message"
	list := messages.AsList().Items
	last := list[len(list)-1].AsDict()
	if role := last.Data["role"]; role.AsString() != "assistant" {
		return "", fail(param, "'%s' needs a last message of the assistant, not of %q", param, role.AsString())
	}
	content := last.Data["content"]
	switch {
	case content.IsString():
		last.Set("content", template.NewString(content.AsString()+finalTag))
		return finalTag, nil
	case content.IsList() && content.AsList().Len() > 0:
		parts := content.AsList().Items
		part := parts[len(parts)-1].AsDict()
		part.Set("text", template.NewString(part.Data["text"].AsString()+finalTag))
		return finalTag, nil
	}
	return "", fail(param, "'%s' needs text in the last message", param)
}

// cutFinal ends the text at the tag, as transformers does: if the template stripped the content,
// white space before the tag is removed too.
func cutFinal(text, tag string) (string, error) {
	bare := strings.TrimSpace(tag)
	i := strings.LastIndex(text, bare)
	if i < 0 {
		return "", fail("continue_final_message",
			"the model's chat template changes the last message, so it cannot be continued")
	}
	if strings.HasPrefix(text[i:], tag) {
		return text[:i], nil
	}
	return strings.TrimRightFunc(text[:i], unicode.IsSpace), nil
}
