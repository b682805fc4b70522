// Package chat is a conversation on a terminal, with an engine in this process or with a running
// server.
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
	// Ask shows the answer as it arrives. An answer that ctx cancels is not an error.
	Ask(ctx context.Context, messages []client.Message, show func(text string) error) (End, error)
}

// End says how an answer ended.
type End struct {
	prompt, cached, tokens int  // tokens, as far as they are known
	cut                    bool // by --max-tokens or the end of the context
	cancelled              bool
}

// Conversation is a chat on a terminal.
type Conversation struct {
	Talker
	Lines interface {
		Read(prompt string) (line string, pasted bool, err error)
	}
	Out      io.Writer
	Name     string // name of the model
	Context  int    // tokens; 0: unknown
	Most     int    // maximum tokens of an answer; 0: up to the context
	System   string
	messages []client.Message // without system
	last     End
	signals  chan os.Signal // interrupts that arrive while no line is typed
}

// messageMost bounds a message that is typed or pasted, in bytes.
const messageMost = 4 << 20

// fullFrom is the share of the context from which its use is shown after every answer.
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
	// Signals are caught all the time: an answer may end just before Ctrl-C is typed.
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
			c.note("Press Ctrl-C again, press Ctrl-D or type /exit to leave.")
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

// note writes a line that is not part of the conversation.
func (c *Conversation) note(format string, args ...any) {
	line := term.Shown(fmt.Sprintf(format, args...))
	if term.Colours(c.Out) {
		line = "\x1b[" + string(term.Dim) + "m" + line + "\x1b[0m"
	}
	fmt.Fprintln(c.Out, line)
}

// read reads a message of one or several lines, or a command.
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
			c.note("A message may have at most %d MiB.", messageMost>>20)
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

// cutEnd removes the end of a block from a line. more reports that the block continues.
func cutEnd(line string) (text string, more bool) {
	text, ended := strings.CutSuffix(strings.TrimRight(line, " "), `"""`)
	if !ended {
		return line, true
	}
	return text, false
}

// command runs a command of the chat. It reports whether the chat is over.
func (c *Conversation) command(text string) (over bool) {
	name, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	rest = strings.TrimSpace(rest)
	switch name {
	case "exit", "quit", "bye":
		return true
	case "help", "?", "":
		_, _ = io.WriteString(c.Out, chatHelp) // if this fails the terminal is gone, and the next read reports it
	case "reset", "clear":
		c.messages, c.last = nil, End{}
		c.note("Started a new conversation.")
	case "undo":
		if n := len(c.messages); n > 0 {
			c.messages = c.messages[:n-2]
		}
		c.note("%d messages remain.", len(c.messages))
	case "system":
		switch rest {
		case "":
		case "none":
			c.System = ""
		default:
			c.System = rest
		}
		if c.System == "" {
			c.note("There is no system message.")
		} else {
			c.note("System message: %s", c.System)
		}
	case "context":
		c.note("%s, %d of the last prompt from the cache.", c.used(), c.last.cached)
	case "save":
		if err := c.save(rest); err != nil {
			c.note("%v", err)
		} else {
			c.note("Wrote %s.", rest)
		}
	default:
		c.note("Unknown command /%s; /help lists the commands.", name)
	}
	return false
}

// used prints how much of the context the last answer took.
func (c *Conversation) used() string {
	n := c.last.prompt + c.last.tokens
	if c.Context == 0 {
		return fmt.Sprintf("context: %d tokens", n)
	}
	return fmt.Sprintf("context: %d of %d tokens, %d %%", n, c.Context, 100*n/c.Context)
}

// save writes the conversation into a new file, as the messages of a request.
func (c *Conversation) save(path string) error {
	if path == "" {
		return errors.New("name a file: /save FILE")
	}
	data, err := json.MarshalIndent(map[string]any{"messages": c.with()}, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists already; choose another name", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Close())
}

// with returns the conversation with the system message, and further messages.
func (c *Conversation) with(more ...client.Message) []client.Message {
	list := []client.Message{}
	if c.System != "" {
		list = append(list, client.Message{Role: "system", Content: c.System})
	}
	return append(append(list, c.messages...), more...)
}

// interruptible returns a context that the next interrupt ends.
func (c *Conversation) interruptible() (context.Context, context.CancelFunc) {
	select {
	case <-c.signals: // the interrupt was for the previous answer
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

// ask sends a message and shows the answer. An error ends the chat.
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
	if answer.Len() == 0 && r.cancelled { // forget the question
		return nil
	}
	c.messages = append(c.messages, question, client.Message{Role: "assistant", Content: answer.String()})
	full := c.Context > 0 && r.prompt+r.tokens >= c.Context
	switch {
	case full:
		c.note("The answer was cut because the context is full (%d tokens). /undo removes the last question and answer; /reset starts a new conversation.", c.Context)
	case r.cut && c.Most > 0:
		c.note("The answer was cut after %d tokens (--max-tokens).", c.Most)
	}
	if !full && c.Context > 0 && float64(r.prompt+r.tokens) >= fullFrom*float64(c.Context) {
		c.note("%s.", c.used())
	}
	return nil
}

// refused reports why there is no answer, and removes the question from the conversation.
func (c *Conversation) refused(err error) {
	own, isOwn := errors.AsType[*engine.Error](err)
	other, isOther := errors.AsType[*api.Error](err)
	if isOwn && own.Kind == engine.ContextLength || isOther && other.Code == api.CodeContextLength {
		c.note("The conversation no longer fits: %v. /undo removes the last question and answer; /reset starts a new conversation.", err)
		return
	}
	c.note("No answer: %v.", err)
}
