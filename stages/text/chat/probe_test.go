package chat

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestTraits keeps what the probes find in the real templates.
func TestTraits(t *testing.T) {
	var b strings.Builder
	sources := allTemplates(t)
	for _, name := range names(sources) {
		c, err := Compile(sources[name], Options{BOS: "<s>", EOS: "</s>", Now: fixedNow})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n ", name)
		for _, role := range roles {
			what := [...]string{"text", "parts", "both"}[c.traits.forms[role]]
			switch {
			case c.traits.called(role) != role:
				what = c.traits.called(role)
			case c.traits.dropped[role]:
				what = "dropped"
			}
			fmt.Fprintf(&b, " %s=%s", role, what)
		}
		fmt.Fprintf(&b, "\n  tools=%t calls=%t argument_text=%t none=%t", !c.traits.noTools, !c.traits.noCalls, c.traits.argumentText, c.traits.none)
		fmt.Fprintf(&b, " apart=%t format=%s reasons=%t\n", c.traits.apart, c.format.Name(), c.format.Reasons())
	}
	golden(t, "testdata/traits.txt", b.String())
}

// TestConcurrent renders one conversation with one template from many goroutines; the race detector
// watches.
func TestConcurrent(t *testing.T) {
	c := rich(t, Options{SpecialTokens: chatML})
	conv := Conversation{Messages: []byte(`[` + userMessage + `,` + aCall + `,{"role":"tool","tool_call_id":"c1","content":"<|im_end|>"}]`), Tools: []byte(`[` + aTool + `]`)}
	want, err := c.Render(conv)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				if r, err := c.Render(conv); err != nil || shown(r) != shown(want) {
					t.Errorf("%q, %v", shown(r), err)
				}
			}
		})
	}
	group.Wait()
}

func BenchmarkRender(b *testing.B) {
	c := rich(b, Options{SpecialTokens: chatML})
	message := `{"role":"user","content":"` + strings.Repeat("Lorem ipsum dolor sit amet. ", 40) + `"}`
	for _, n := range []int{1, 10, 100, 200} {
		conv := Conversation{Messages: []byte(`[` + strings.Repeat(message+",", n-1) + message + `]`), Tools: []byte(`[` + aTool + `]`), AddGenerationPrompt: true}
		b.Run(fmt.Sprintf("messages=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Render(conv); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
