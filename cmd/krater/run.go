package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"krater/actors"
	"krater/actors/engine"
	"krater/cmd/krater/term"
)

type runCmd struct {
	modelFlag
	synthFlags
	engineFlags
	samplingFlags
	Question  string `arg:"" optional:"" help:"The question; or --file, or standard input: with '-', and where no question is given and nobody types."`
	File      string `help:"Read the prompt from a file." type:"existingfile" placeholder:"FILE"`
	System    string `help:"A system text before the question." placeholder:"TEXT"`
	Raw       bool   `help:"Take the text as it is, without the chat template. Special tokens in it are read; BOS is added unless it is there."`
	IDs       bool   `name:"ids" help:"Print the generated ids as one JSON list instead of the text."`
	IgnoreEOS bool   `name:"ignore-eos" help:"Go on to --max-tokens whatever the model says."`
}

// Run implements the command: only the answer goes to standard output.
func (c *runCmd) Run(e *env) error {
	text, err := c.prompt(e.in)
	if err != nil {
		return err
	}
	// One answer needs one sequence.
	c.MaxSeqs, c.MaxQueue = 1, 1
	src, err := c.sourceOr(c.Model)
	if err != nil {
		return err
	}
	c.Raw = c.Raw || src.synth != nil // which has no chat template
	s, err := newSourceSession(e, src, &c.engineFlags, limits{})
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := s.pipeline(&c.engineFlags, zerolog.New(e.err).Level(zerolog.WarnLevel))
	if err != nil {
		return err
	}
	defer p.Close()
	g, err := s.gateway(&c.engineFlags, p, "")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	req, err := c.request(text, g.Info())
	if err != nil {
		return err
	}
	return c.answer(ctx, e, g, req)
}

func (c *runCmd) prompt(in io.Reader) (string, error) {
	switch {
	case c.File != "" && c.Question != "":
		return "", errors.New("give a question or --file, not both")
	case c.File != "":
		f, err := os.Open(c.File)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	case c.Question != "" && c.Question != "-":
		return c.Question, nil
	case c.Question == "" && term.Is(in): // who types does not know that he is waited for
		return "", errNoQuestion
	}
	data, err := io.ReadAll(io.LimitReader(in, fileMaxBytes))
	if c.Question == "" && c.File == "" && len(data) == 0 {
		return "", errNoQuestion
	}
	return string(data), err
}

var errNoQuestion = errors.New(`there is no question: krater run "What is a lighthouse?"`)

// request turns flags into a request.
func (c *runCmd) request(text string, info engine.Info) (*engine.Request, error) {
	r := &engine.Request{ID: "run", Sampling: info.Defaults, MaxTokens: c.MaxTokens, Logprobs: -1, IgnoreEOS: c.IgnoreEOS}
	if c.IDs {
		r.Logprobs = 0 // the ids travel with the log-probabilities
	}
	if c.Temperature != nil {
		r.Sampling.Temperature = *c.Temperature
	}
	if c.MaxTokens < 0 {
		return nil, fmt.Errorf("--max-tokens %d: want 0 or more", c.MaxTokens)
	}
	if c.TopP != nil {
		r.Sampling.TopP = *c.TopP
	}
	if c.TopK != nil {
		r.Sampling.TopK = *c.TopK
	}
	r.Sampling.Seed = c.Seed
	if c.Raw {
		r.Prompt.Text, r.Prompt.ParseSpecial = &text, true
		return r, nil
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var messages []message
	if c.System != "" {
		messages = append(messages, message{"system", c.System})
	}
	data, err := json.Marshal(append(messages, message{"user", text}))
	if err != nil {
		return nil, err
	}
	r.Prompt.Chat = &engine.Chat{Messages: data}
	return r, nil
}

// answer prints one answer as it comes.
func (c *runCmd) answer(ctx context.Context, e *env, g *actors.Gateway, req *engine.Request) error {
	start := time.Now()
	stream, err := g.Submit(ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	ids := []int32{}
	var first time.Duration
	for {
		ev, err := stream.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, t := range ev.Tokens {
			ids = append(ids, t.ID)
		}
		if first == 0 && ev.Kind == engine.Tokens {
			first = time.Since(start)
		}
		if !c.IDs && ev.Text != "" {
			if _, err := io.WriteString(e.out, ev.Text); err != nil {
				return err
			}
		}
		switch ev.Kind {
		case engine.Failed:
			return ev.Err
		case engine.Done:
			if ev.StopToken != nil { // the model made it too
				ids = append(ids, *ev.StopToken)
			}
			return c.summary(e, ev, ids, first, time.Since(start))
		}
	}
}

func (c *runCmd) summary(e *env, ev engine.Event, ids []int32, first, total time.Duration) error {
	if c.IDs {
		data, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.out, "%s", data)
	}
	fmt.Fprintln(e.out)
	rate := float64(ev.Usage.Completion-1) / max(1e-9, (total-first).Seconds())
	fmt.Fprintf(e.err, "%s\n", strings.Join([]string{
		fmt.Sprintf("%d prompt tokens", ev.Usage.Prompt), fmt.Sprintf("%d answer tokens", ev.Usage.Completion),
		fmt.Sprintf("first after %.1f ms", first.Seconds()*1e3), fmt.Sprintf("then %.0f tokens/s", rate),
	}, ", "))
	if ev.Finish == engine.FinishCancelled {
		return exitError(130)
	}
	return nil
}
