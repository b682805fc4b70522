package term

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// Errors for Ctrl-C at an empty prompt, and after some input.
var (
	ErrInterrupted = errors.New("interrupted")
	ErrDropped     = errors.New("the line was given up")
)

// Lines reads lines from a terminal, with an editor and a history. Between two reads the terminal
// is in its normal mode, in which Ctrl-C is a signal. It is not safe for concurrent use.
type Lines struct {
	in      *os.File
	keys    *keys
	history *History
	editor  *term.Terminal
}

// NewLines reads from in and shows on out; both are terminals. history may be nil.
func NewLines(in, out *os.File, history *History) *Lines {
	l := &Lines{in: in, history: history, keys: &keys{Reader: in, Writer: out}}
	l.begin()
	return l
}

// begin creates a new editor, because an interrupted one still holds its line.
func (l *Lines) begin() {
	l.editor = term.NewTerminal(l.keys, "")
	if l.history != nil {
		l.editor.History = l.history
	}
}

// keys is the terminal, and the last input from it.
type keys struct {
	io.Reader
	io.Writer
	last  []byte
	typed bool // since the prompt
}

func (k *keys) Read(b []byte) (int, error) {
	n, err := k.Reader.Read(b)
	k.last = append(k.last[:0], b[:n]...)
	k.typed = k.typed || n > 0 && b[0] != ctrlC
	return n, err
}

const ctrlC, ctrlD = 3, 4

// Read shows prompt and reads a line. pasted reports that the line was pasted together with its
// end, so more may follow. The error is io.EOF after Ctrl-D, and ErrInterrupted or ErrDropped after
// Ctrl-C.
func (l *Lines) Read(prompt string) (line string, pasted bool, err error) {
	fd := int(l.in.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return "", false, err
	}
	restore := func() {
		l.editor.SetBracketedPasteMode(false)
		_ = term.Restore(fd, before) // the terminal may be gone
	}
	defer restore()
	defer l.watch(restore)()
	l.resize()
	l.keys.typed = false
	l.editor.SetPrompt(prompt)
	l.editor.SetBracketedPasteMode(true)
	line, err = l.editor.ReadLine()
	switch {
	case errors.Is(err, term.ErrPasteIndicator):
		return line, true, nil
	case errors.Is(err, io.EOF):
		c, d := bytes.IndexByte(l.keys.last, ctrlC), bytes.IndexByte(l.keys.last, ctrlD)
		switch {
		case c < 0 || d >= 0 && d < c:
		case l.keys.typed:
			err = ErrDropped
		default:
			err = ErrInterrupted
		}
		_, _ = io.WriteString(l.keys, "\r\n") // the cursor is behind the line
		l.begin()
	}
	return line, false, err
}

// resize tells the editor the size of the terminal.
func (l *Lines) resize() {
	if width, height, err := term.GetSize(int(l.in.Fd())); err == nil {
		_ = l.editor.SetSize(width, height)
	}
}

// watch follows the terminal's size, and restores the terminal before a signal ends the program.
// stop ends it.
func (l *Lines) watch(restore func()) (stop func()) {
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				if s == syscall.SIGWINCH {
					l.resize()
					continue
				}
				restore()
				signal.Reset(s)
				_ = syscall.Kill(os.Getpid(), s.(syscall.Signal))
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}
