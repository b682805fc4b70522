package chat

import (
	"errors"
	"testing"
)

func TestContinueFinalMessage(t *testing.T) {
	const head = `{% for m in messages %}<{{ m.role }}>`
	keep, strip := head+`{{ m.content }}</end>{% endfor %}{% if add_generation_prompt %}<gen>{% endif %}`, head+`{{ m.content | trim }}</end>{% endfor %}`
	parts := head + `{% for p in m.content %}{{ p.text }};{% endfor %}</end>{% endfor %}`
	for _, test := range []struct{ name, source, content, want string }{
		{"as it is", keep, `"I am a"`, "<user>u</end><assistant>I am a"},
		{"spaces kept", keep, `" I am \n"`, "<user>u</end><assistant> I am \n"},
		{"spaces stripped", strip, `" I am \n"`, "<user>u</end><assistant>I am"},
		{"empty", keep, `""`, "<user>u</end><assistant>"},
		{"repeated words", keep, `"u"`, "<user>u</end><assistant>u"},
		{"the last part", parts, `[{"type":"text","text":"a"},{"type":"text","text":"b"}]`, "<user>u;</end><assistant>a;b"},
	} {
		c, err := Compile(test.source, Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Render(Conversation{
			Messages:            []byte(`[` + userMessage + `,{"role":"assistant","content":` + test.content + `}]`),
			AddGenerationPrompt: true, ContinueFinalMessage: true,
		})
		if err != nil || r.Text != test.want {
			t.Errorf("%s: %q, %v, want %q", test.name, r.Text, err, test.want)
		}
		for _, p := range r.Protected {
			if p.End > len(r.Text) {
				t.Errorf("%s: protected %v of %d bytes", test.name, p, len(r.Text))
			}
		}
	}
	lost, err := Compile(`{% for m in messages %}{{ m.content.split('_')[0] }}{% endfor %}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, messages := range map[string]string{
		"last message not the assistant's": `[` + userMessage + `]`,
		"content not shown":                `[` + userMessage + `,{"role":"assistant","content":"a"}]`,
	} {
		_, err := lost.Render(Conversation{Messages: []byte(messages), ContinueFinalMessage: true})
		var e *Error
		if !errors.As(err, &e) || e.Param != "continue_final_message" {
			t.Errorf("%s: %+v", name, err)
		}
	}
}
