package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"krater/actors"
	"krater/actors/engine"
	"krater/actors/local"
	"krater/actors/local/config"
	"krater/cmd/krater/chat"
	"krater/cmd/krater/checks"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/models"
	"krater/scheduler/files"
	"krater/stages/source"
	"krater/stages/synth"
	"krater/transport/client"
)

type runCmd struct {
	source.Folder
	source.Synthetic
	config.Options
	chat.Sampling
	Question  string `arg:"" optional:"" help:"The question. Without one, it is read from --file or from standard input ('-', or input that is not a terminal); on a terminal a chat begins."`
	File      string `help:"Read the prompt from a file." type:"existingfile" placeholder:"FILE"`
	System    string `help:"System message before the question." placeholder:"TEXT"`
	Raw       bool   `help:"Use the text as it is, without the chat template. Special tokens in it are recognised; BOS is added if missing."`
	IDs       bool   `name:"ids" help:"Print the generated token ids as one JSON list instead of text."`
	IgnoreEOS bool   `name:"ignore-eos" help:"Continue to --max-tokens even if the model ends its answer."`
}

// Run implements the command. Only the answer goes to standard output. Without a question, a chat
// begins on a terminal.
func (c *runCmd) Run(e *console.Env) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Question == "" && c.File == "" && term.Is(e.In) && term.Is(e.Out) && !c.Raw && !c.IDs && !c.IgnoreEOS {
		return c.chat(e)
	}
	if c.meansModel(e) {
		if talks, err := c.modelMeant(e); talks || err != nil {
			return err
		}
	}
	text, err := c.prompt(e.In)
	if err != nil {
		return err
	}
	// One answer needs one sequence.
	c.MaxSeqs, c.MaxQueue = 1, 1
	src, err := c.SourceOr(c.Model)
	if err != nil {
		return err
	}
	if c.System != "" && src.Synth != nil {
		return errors.New("--system: a model with random weights has no chat template")
	}
	c.Raw = c.Raw || src.Synth != nil // random weights have no chat template
	g, err := local.Open(context.Background(), console.ForLoad(e, src, c.Options, config.Case{}))
	if err != nil {
		return err
	}
	defer g.Close()
	if end := checks.CheckEnd(src, g.Model.Config, g.Model.Gen); !end.OK && !c.IgnoreEOS {
		fmt.Fprintf(e.Err, "krater: there is no %s: %s\n", end.Recommended, end.Fix)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	req, err := c.request(text, g.Info())
	if err != nil {
		return err
	}
	return c.answer(ctx, e, g.Gateway, req)
}

func (c *runCmd) check() error {
	if c.System != "" && c.Raw {
		return errors.New("--system cannot be used with --raw, which uses the text as it is")
	}
	return c.Sampling.Check()
}

// chat talks with the model that the flags choose.
func (c *runCmd) chat(e *console.Env) error {
	return (&chatCmd{Folder: c.Folder, Synthetic: c.Synthetic, Options: c.Options, Sampling: c.Sampling, System: c.System, History: true}).Run(e)
}

// meansModel reports whether the question is one word that names a model, as other programs take
// it, and no flag names a model. A word after -- is always a question.
func (c *runCmd) meansModel(e *console.Env) bool {
	return c.Model == "" && c.Shape == "" && cmdline.NamesModel(c.Question) && !slices.Contains(e.Ctx.Args, "--")
}

// modelMeant asks on a terminal whether the word is a question. If not, and the model exists, a
// chat with it begins. Without a terminal it is an error, because another model's answer would be
// wrong.
func (c *runCmd) modelMeant(e *console.Env) (talked bool, err error) {
	word := c.Question
	path, err := source.Locate(word)
	there := err == nil
	how := fmt.Sprintf("with krater run --model %s", word)
	if !there {
		how = fmt.Sprintf("with --model DIR (%s)", err)
		if slices.Contains(synth.Shapes(), strings.ToLower(word)) {
			how = fmt.Sprintf("with --model DIR, or random weights with --shape %s", strings.ToLower(word))
		}
	}
	if word == models.Name {
		how = "by leaving the name away: it is built in"
	}
	if !term.Is(e.In) || !term.Is(e.Err) {
		e.Say(fmt.Sprintf("%q looks like a model, but krater run takes a question. Choose a model %s; krater run -- %s asks the question", word, how, word))
		return false, console.ExitError(2)
	}
	verb := "Is it a question"
	if there {
		verb = "Is it a question, and not a model to talk with"
	}
	fmt.Fprintf(e.Err, "%q looks like a model. %s? [y/N] ", word, verb)
	line, err := bufio.NewReader(io.LimitReader(e.In, answerMost)).ReadString('\n')
	switch answer := strings.ToLower(strings.TrimSpace(line)); {
	case answer == "y" || answer == "yes":
		return false, nil
	case err != nil && line == "": // Ctrl-D
		return false, console.ExitError(2)
	case there:
		c.Model, c.Question = path, ""
		return true, c.chat(e)
	}
	e.Say("Choose a model", how)
	return false, console.ExitError(2)
}

// answerMost bounds the reply to a question on the terminal, in bytes.
const answerMost = 1 << 10

func (c *runCmd) prompt(in io.Reader) (string, error) {
	switch {
	case c.File != "" && c.Question != "":
		return "", errors.New("a question and --file: use one of them")
	case c.File != "":
		data, err := files.Read(c.File, source.FileMaxBytes)
		return string(data), err
	case c.Question != "" && c.Question != "-":
		return c.Question, nil
	case c.Question == "" && term.Is(in): // tell the user that input is expected
		return "", errNoQuestion
	}
	data, err := io.ReadAll(io.LimitReader(in, source.FileMaxBytes))
	if c.Question == "" && len(data) == 0 {
		return "", errNoQuestion
	}
	return string(data), err
}

var errNoQuestion = errors.New(`no question given; try: krater run "What is a lighthouse?"`)

// request turns flags into a request.
func (c *runCmd) request(text string, info engine.Info) (*engine.Request, error) {
	r := c.Sampling.Request("run", info)
	r.IgnoreEOS = c.IgnoreEOS
	if c.IDs {
		r.Logprobs = 0 // token ids are part of the log-probabilities
	}
	if c.Raw {
		r.Prompt.Text, r.Prompt.ParseSpecial = &text, true
		return r, nil
	}
	var messages []client.Message
	if c.System != "" {
		messages = append(messages, client.Message{Role: "system", Content: c.System})
	}
	data, err := json.Marshal(append(messages, client.Message{Role: "user", Content: text}))
	if err != nil {
		return nil, err
	}
	r.Prompt.Chat = &engine.Chat{Messages: data}
	return r, nil
}

// answer prints an answer as it arrives.
func (c *runCmd) answer(ctx context.Context, e *console.Env, g *actors.Gateway, req *engine.Request) error {
	start := time.Now()
	stream, err := g.Submit(ctx, req)
	if err != nil {
		return err
	}
	defer stream.Close()
	ids, out := []int32{}, term.Safe(e.Out)
	var first time.Duration
	done, err := chat.Follow(stream, func(ev *engine.Event) error {
		for _, t := range ev.Tokens {
			ids = append(ids, t.ID)
		}
		if first == 0 && ev.Kind == engine.Tokens {
			first = time.Since(start)
		}
		if c.IDs || ev.Text == "" {
			return nil
		}
		_, err := io.WriteString(out, ev.Text)
		return err
	})
	if err != nil {
		return err
	}
	if done.StopToken != nil { // the stop token was generated too
		ids = append(ids, *done.StopToken)
	}
	return c.summary(e, done, ids, first, time.Since(start))
}

func (c *runCmd) summary(e *console.Env, ev engine.Event, ids []int32, first, total time.Duration) error {
	if c.IDs {
		data, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.Out, "%s", data)
	}
	fmt.Fprintln(e.Out)
	rate := float64(ev.Usage.Completion-1) / max(1e-9, (total-first).Seconds())
	fmt.Fprintf(e.Err, "%s\n", strings.Join([]string{
		fmt.Sprintf("%d prompt tokens", ev.Usage.Prompt), fmt.Sprintf("%d answer tokens", ev.Usage.Completion),
		fmt.Sprintf("first after %.1f ms", first.Seconds()*1e3), fmt.Sprintf("then %.0f tokens/s", rate),
	}, ", "))
	if ev.Finish == engine.FinishCancelled {
		return console.ExitError(130)
	}
	return nil
}
