package chat

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestShortRequestsHaveShortTexts: what a template makes of a request is bounded by the request's
// own length, or a few megabytes would become gigabytes.
func TestShortRequestsHaveShortTexts(t *testing.T) {
	c, err := Compile("{{ tools | tojson(indent=4) }}{% for m in messages %}{{ m.content }}{% endfor %}", Options{})
	if err != nil {
		t.Fatal(err)
	}
	// Deep lists of short ones, each on a line of its own.
	deep := strings.Repeat("[", 50) + strings.TrimSuffix(strings.Repeat("1,", 100_000), ",") + strings.Repeat("]", 50)
	messages, tools := `[`+userMessage+`]`, `[{"type":"function","function":{"name":"f","parameters":{"enum":`+deep+`}}}]`
	r, err := c.Render(Conversation{Messages: []byte(messages), Tools: []byte(tools)})
	if bad, ok := errors.AsType[*Error](err); !ok || !strings.Contains(bad.Message, "too much text") {
		t.Errorf("%d bytes became %d, %v", len(messages)+len(tools), len(r.Text), err)
	}
	// What people write is far below the bound, also where a template indents it.
	tools = `[` + strings.TrimSuffix(strings.Repeat(`{"type":"function","function":{"name":"weather","description":"What the weather is like somewhere.","parameters":{"type":"object","properties":{"city":{"type":"string","description":"A city's name"},"days":{"type":"array","items":{"type":"integer"}}},"required":["city"]}}},`, 500), ",") + `]`
	if r, err := c.Render(Conversation{Messages: []byte(messages), Tools: []byte(tools)}); err != nil {
		t.Errorf("%d bytes of tools became %d, %v", len(tools), len(r.Text), err)
	}
}

// TestRenderEndsWithItsContext: the error is the context's, not a fault of the conversation.
func TestRenderEndsWithItsContext(t *testing.T) {
	c, err := Compile("{% for m in messages %}{{ m.content }}{% endfor %}", Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if _, err := c.RenderContext(ctx, Conversation{Messages: []byte(`[` + userMessage + `]`)}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
