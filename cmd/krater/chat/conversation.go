// Package chat is a conversation on a terminal, with an engine in this process or with a running server.
package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"krater/actors/engine"
	"krater/cmd/krater/term"
	"krater/transport/api"
	"krater/transport/client"
)

// Talker answers conversations.
type Talker interface {
	// Ask shows the answer as it comes. One that ctx has ended is no error.
	Ask(ctx context.Context, messages []client.Message, show func(text string) error) (End, error)
}

// End is how an answer ended.
type End struct {
	prompt, cached, tokens int  // tokens, as far as they are known
	cut                    bool // by --max-tokens or the context's end
	cancelled              bool
}

// Conversation is a chat on a terminal.
type Conversation struct {
	Talker
	Lines interface {
		Read(prompt string) (line string, pasted bool, err error)
	}
	Out      io.Writer
	Name     string // of the model
	Context  int    // tokens; 0: unknown
	Most     int    // tokens of an answer; 0: up to the context
	System   string
	messages []client.Message // without system
	last     End
	signals  chan os.Signal // interrupts while no line is typed
}

// messageMost bounds a message that is typed or pasted, in bytes.
const messageMost = 4 << 20

// fullFrom is the part of the context from which on its use is shown after every answer.
const fullFrom = 0.75

const chatHelp = `  /system TEXT   set the system text; without TEXT show it; /system none takes it away
  /reset         begin a new conversation; the system text stays
  /undo          take the last question and its answer back
  /context       how much of the context is used
  /save FILE     write the conversation as JSON
  /exit          leave, as Ctrl-D does
A line that ends with \ goes on in the next one. """ begins a text of several lines, """ ends it. What is pasted
stays together until Enter is typed. // at the beginning stands for a / that is no command.
Ctrl-C cancels an answer, gives up a line, and leaves when typed twice at an empty prompt.
`

// Run talks until the user leaves.
func (c *Conversation) Run() error {
	about := c.Name
	if c.Context > 0 {
		about = fmt.Sprintf("%s, %d tokens of context", c.Name, c.Context)
	}
	c.note("%s. /help lists the commands, Ctrl-D leaves.", about)
	// All the time: an answer may end just before Ctrl-C is typed.
	c.signals = make(chan os.Signal, 1)
	signal.Notify(c.signals, os.Interrupt)
	defer signal.Stop(c.signals)
	interrupts := 0
	for {
		text, command, err := c.read()
		if !errors.Is(err, term.ErrInterrupted) {
			interrupts = 0
		}
		switch {
		case errors.Is(err, term.ErrInterrupted):
			if interrupts++; interrupts == 2 {
				return nil
			}
			c.note("Ctrl-C once more, Ctrl-D or /exit leaves.")
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, term.ErrDropped), err == nil && strings.TrimSpace(text) == "":
		case err != nil:
			return err
		case command:
			if c.command(text) {
				return nil
			}
		default:
			if err := c.ask(text); err != nil {
				return err
			}
		}
	}
}

// note writes a line of Krater's own.
func (c *Conversation) note(format string, args ...any) {
	line := term.Shown(fmt.Sprintf(format, args...))
	if term.Colours(c.Out) {
		line = "\x1b[" + string(term.Dim) + "m" + line + "\x1b[0m"
	}
	fmt.Fprintln(c.Out, line)
}

// read reads a message of one line or several, or a command.
func (c *Conversation) read() (text string, command bool, err error) {
	line, pasted, err := c.Lines.Read(">>> ")
	if err != nil {
		return "", false, err
	}
	if rest, ok := strings.CutPrefix(line, "/"); ok && !pasted && !strings.HasPrefix(rest, "/") {
		return rest, true, nil
	} else if ok && strings.HasPrefix(rest, "/") {
		line = rest
	}
	var b strings.Builder
	block, begun := false, false
	for {
		more := pasted
		if rest, ok := strings.CutPrefix(line, `"""`); ok && !begun && !pasted {
			block, line = true, rest
		}
		begun = true
		if block {
			line, block = cutEnd(line)
			more = block
		} else if rest, ok := strings.CutSuffix(line, `\`); ok && !pasted {
			line, more = rest, true
		}
		b.WriteString(line)
		if !more {
			return b.String(), false, nil
		}
		b.WriteByte('\n')
		if b.Len() > messageMost {
			c.note("A message may have %d MiB.", messageMost>>20)
			return "", false, term.ErrDropped
		}
		switch line, pasted, err = c.Lines.Read("... "); {
		case errors.Is(err, io.EOF):
			return b.String(), false, nil
		case errors.Is(err, term.ErrInterrupted):
			return "", false, term.ErrDropped
		case err != nil:
			return "", false, err
		}
	}
}

// cutEnd takes the end of a block from a line; more tells that there is none.
func cutEnd(line string) (text string, more bool) {
	text, ended := strings.CutSuffix(strings.TrimRight(line, " "), `"""`)
	if !ended {
		return line, true
	}
	return text, false
}

// command does what a command is for; it tells whether the chat is over.
func (c *Conversation) command(text string) (over bool) {
	name, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	rest = strings.TrimSpace(rest)
	switch name {
	case "exit", "quit", "bye":
		return true
	case "help", "?", "":
		_, _ = io.WriteString(c.Out, chatHelp) // the terminal is gone if this fails, and the next read says so
	case "reset", "clear":
		c.messages, c.last = nil, End{}
		c.note("A new conversation.")
	case "undo":
		if n := len(c.messages); n > 0 {
			c.messages = c.messages[:n-2]
		}
		c.note("%d messages are left.", len(c.messages))
	case "system":
		switch rest {
		case "":
		case "none":
			c.System = ""
		default:
			c.System = rest
		}
		if c.System == "" {
			c.note("There is no system text.")
		} else {
			c.note("System text: %s", c.System)
		}
	case "context":
		c.note("%s, %d of the last prompt from the cache.", c.used(), c.last.cached)
	case "save":
		if err := c.save(rest); err != nil {
			c.note("%v", err)
		} else {
			c.note("%s is written.", rest)
		}
	default:
		c.note("There is no /%s; /help lists the commands.", name)
	}
	return false
}

// used is how much of the context the last answer took.
func (c *Conversation) used() string {
	n := c.last.prompt + c.last.tokens
	if c.Context == 0 {
		return fmt.Sprintf("context: %d tokens", n)
	}
	return fmt.Sprintf("context: %d of %d tokens, %d %%", n, c.Context, 100*n/c.Context)
}

// save writes the conversation as the messages of a request, into a new file.
func (c *Conversation) save(path string) error {
	if path == "" {
		return errors.New("say where: /save FILE")
	}
	data, err := json.MarshalIndent(map[string]any{"messages": c.with()}, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s is there already: choose another name", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Close())
}

// with is the conversation with the system text, and more messages.
func (c *Conversation) with(more ...client.Message) []client.Message {
	list := []client.Message{}
	if c.System != "" {
		list = append(list, client.Message{Role: "system", Content: c.System})
	}
	return append(append(list, c.messages...), more...)
}

// interruptible is a context that the next interrupt ends.
func (c *Conversation) interruptible() (context.Context, context.CancelFunc) {
	select {
	case <-c.signals: // it was for the answer before
	default:
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-c.signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// ask sends a message and shows the answer. Its error ends the chat.
func (c *Conversation) ask(text string) error {
	ctx, stop := c.interruptible()
	defer stop()
	question := client.Message{Role: "user", Content: text}
	var answer strings.Builder
	out := term.Safe(c.Out)
	r, err := c.Ask(ctx, c.with(question), func(text string) error {
		answer.WriteString(text)
		_, err := io.WriteString(out, text)
		return err
	})
	if answer.Len() > 0 || err == nil {
		fmt.Fprintln(c.Out)
	}
	if err != nil {
		c.refused(err)
		return nil
	}
	if r.prompt > 0 {
		c.last = r
	}
	if r.cancelled {
		c.note("Cancelled.")
	}
	if answer.Len() == 0 && r.cancelled { // as if it had not been asked
		return nil
	}
	c.messages = append(c.messages, question, client.Message{Role: "assistant", Content: answer.String()})
	full := c.Context > 0 && r.prompt+r.tokens >= c.Context
	switch {
	case full:
		c.note("The answer was cut, the context is full (%d tokens). /undo takes it back, /reset begins a new conversation.", c.Context)
	case r.cut && c.Most > 0:
		c.note("The answer was cut after %d tokens (--max-tokens).", c.Most)
	}
	if !full && c.Context > 0 && float64(r.prompt+r.tokens) >= fullFrom*float64(c.Context) {
		c.note("%s.", c.used())
	}
	return nil
}

// refused says why there is no answer. The question is not part of the conversation.
func (c *Conversation) refused(err error) {
	own, isOwn := errors.AsType[*engine.Error](err)
	other, isOther := errors.AsType[*api.Error](err)
	if isOwn && own.Kind == engine.ContextLength || isOther && other.Code == api.CodeContextLength {
		c.note("The conversation no longer fits: %v. /undo takes the last question back, /reset begins a new conversation.", err)
		return
	}
	c.note("No answer: %v.", err)
}
