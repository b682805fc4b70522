package server

import (
	"net/http"
	"strings"

	"krater/actors/engine"
	"krater/transport/api"
)

func (s *Server) completions(w http.ResponseWriter, r *http.Request) {
	var req api.CompletionRequest
	info, done := s.decode(w, r, &req, func() *string { return req.Model })
	if done == nil {
		return
	}
	s.generate(w, r, &req, info, done, "cmpl-", func(r *run) (format, error) {
		echo, err := s.echo(r.plan) // of prompts that are known to fit
		return newTextFormat(r, info.ID, echo), err
	})
}

// echo returns the text that each choice starts with: its prompt, or nothing.
func (s *Server) echo(plan *api.Plan) ([]string, error) {
	texts := make([]string, len(plan.Requests))
	if !plan.Echo {
		return texts, nil
	}
	for i, req := range plan.Requests {
		if i%plan.Candidates > 0 { // the same prompt
			texts[i] = texts[i-1]
			continue
		}
		if req.Prompt.Text != nil {
			texts[i] = *req.Prompt.Text
			continue
		}
		text, err := s.engine.Detokenize(req.Prompt.IDs, !req.KeepSpecial)
		if err != nil {
			return nil, err
		}
		texts[i] = text
	}
	return texts, nil
}

// textFormat shapes text_completion objects; a stream's events have the same form.
type textFormat struct {
	eventWire
	run     *run
	model   string
	echo    []string // by choice, until it is sent
	answers []textAnswer
}

type textAnswer struct {
	text    strings.Builder
	tokens  []engine.Token
	offsets api.TextOffsets
	finish  engine.FinishReason
}

func newTextFormat(r *run, model string, echo []string) *textFormat {
	f := &textFormat{run: r, model: model, echo: echo, answers: make([]textAnswer, len(r.streams))}
	if r.plan.EchoLogprobs {
		for i := range f.answers {
			f.answers[i].offsets = api.OffsetsOf(echo[i])
		}
	}
	return f
}

func (f *textFormat) chunks(it item) []any {
	scored := it.event.Kind == engine.Scored && f.run.plan.EchoLogprobs
	if it.event.Kind != engine.Tokens && it.event.Kind != engine.Done && !scored {
		return nil
	}
	var prompt, answer []engine.Token
	if answer = it.event.Tokens; scored {
		prompt, answer = answer, nil
	}
	var out []any
	if text := f.prefix(it.choice) + it.event.Text; text != "" || len(it.event.Tokens) > 0 {
		out = append(out, f.event(api.TextChoice{
			Index: it.choice, Text: text, Logprobs: api.NewTextLogprobs(&f.answers[it.choice].offsets, prompt, answer),
		}))
	}
	if it.event.Kind == engine.Done {
		reason := api.FinishReason(it.event.Finish, false)
		out = append(out, f.event(api.TextChoice{Index: it.choice, FinishReason: &reason}))
	}
	return out
}

// prefix returns the echo of a choice the first time it is asked.
func (f *textFormat) prefix(choice int) string {
	text := f.echo[choice]
	f.echo[choice] = ""
	return text
}

func (f *textFormat) event(choices ...api.TextChoice) *api.TextCompletion {
	return &api.TextCompletion{
		ID: f.run.id, Object: "text_completion", Created: f.run.created, Model: f.model, Choices: choices,
		Usage: f.run.soFar(),
	}
}

func (f *textFormat) usage(u engine.Usage) any {
	event, usage := f.event(), api.NewUsage(u)
	event.Usage.Value = &usage
	return event
}

func (f *textFormat) collect(it item) {
	if it.event.Kind == engine.Scored {
		return // the run has them
	}
	a := &f.answers[it.choice]
	a.text.WriteString(f.prefix(it.choice))
	a.text.WriteString(it.event.Text)
	a.tokens = append(a.tokens, it.event.Tokens...)
	a.finish = it.event.Finish
}

func (f *textFormat) whole(u engine.Usage) any {
	out, usage := f.event(), api.NewUsage(u)
	for i, from := range f.run.given() {
		a := &f.answers[from]
		reason := api.FinishReason(a.finish, false)
		out.Choices = append(out.Choices, api.TextChoice{
			Index: i, Text: a.text.String(), Logprobs: api.NewTextLogprobs(&a.offsets, f.run.echoed(from), a.tokens),
			FinishReason: &reason, PromptLogprobs: f.run.prompt(from),
		})
	}
	out.Usage = api.Nullable[api.Usage]{Set: true, Value: &usage}
	return out
}
