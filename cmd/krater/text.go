package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"

	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/scheduler/files"
	"krater/scheduler/jsonlines"
	"krater/stages/source"
	"krater/stages/text/chat"
	"krater/stages/text/tokenizer"
)

// lineMaxBytes bounds a line on standard input.
const lineMaxBytes = 64 << 20

// eachLine calls f for every line of standard input and writes the result as one line.
func eachLine(e *console.Env, f func(line []byte) ([]byte, error)) error {
	out := bufio.NewWriter(term.Safe(e.Out))
	defer out.Flush()
	in := bufio.NewScanner(flushFirst{e.In, out})
	in.Buffer(make([]byte, 64<<10), lineMaxBytes)
	for n := 1; in.Scan(); n++ {
		answer, err := f(in.Bytes())
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if _, err := out.Write(append(jsonlines.Escape(answer), '\n')); err != nil {
			return err
		}
	}
	return in.Err()
}

// flushFirst flushes the output before it waits for more input, so that a program that writes a
// line and waits for the answer gets it.
type flushFirst struct {
	io.Reader
	out *bufio.Writer
}

func (f flushFirst) Read(p []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.Reader.Read(p)
}

type tokenizeCmd struct {
	source.Folder
	AddSpecial bool `help:"Add the special tokens that the tokenizer puts around a text, such as BOS."`
	Plain      bool `help:"Treat special tokens in the input as plain text."`
}

// Run implements the command.
func (c *tokenizeCmd) Run(e *console.Env) error {
	tok, err := openTokenizer(c.Model)
	if err != nil {
		return err
	}
	return eachLine(e, func(line []byte) ([]byte, error) {
		text, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(line)))
		if err != nil {
			return nil, err
		}
		ids := tok.Encode(string(text), tokenizer.EncodeOptions{ParseSpecial: !c.Plain, AddSpecial: c.AddSpecial})
		if ids == nil {
			ids = []int32{}
		}
		return json.Marshal(ids)
	})
}

type detokenizeCmd struct {
	source.Folder
	SkipSpecial bool `help:"Leave special tokens out of the text."`
}

// Run implements the command.
func (c *detokenizeCmd) Run(e *console.Env) error {
	tok, err := openTokenizer(c.Model)
	if err != nil {
		return err
	}
	return eachLine(e, func(line []byte) ([]byte, error) {
		var ids []int32
		if err := json.Unmarshal(line, &ids); err != nil {
			return nil, err
		}
		for _, id := range ids {
			if _, ok := tok.TokenBytes(id); !ok {
				return nil, fmt.Errorf("token %d is unknown", id)
			}
		}
		return marshalText(tok.Decode(ids, c.SkipSpecial))
	})
}

// marshalText is json.Marshal without escapes for HTML.
func marshalText(s string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(s)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func openTokenizer(dir string) (*tokenizer.Tokenizer, error) {
	src, err := source.Open(dir)
	if err != nil {
		return nil, err
	}
	tok, _, err := src.Tokenizer()
	return tok, err
}

type templateCmd struct {
	source.Folder
	Template string `help:"Template file to use instead of the model's." type:"existingfile" placeholder:"FILE"`
}

// Run implements the command.
func (c *templateCmd) Run(e *console.Env) error {
	t, err := c.compile()
	if err != nil {
		return err
	}
	return eachLine(e, func(line []byte) ([]byte, error) { return t.RenderLine(line), nil })
}

func (c *templateCmd) compile() (*chat.Template, error) {
	if c.Template != "" {
		text, err := files.Read(c.Template, source.FileMaxBytes)
		if err != nil {
			return nil, err
		}
		return chat.Compile(string(text), chat.Options{})
	}
	src, err := source.Open(c.Model)
	if err != nil {
		return nil, err
	}
	tok, config, err := src.Tokenizer()
	if err != nil {
		return nil, err
	}
	t, err := src.Template(tok, config)
	if err == nil && t == nil {
		err = fmt.Errorf("model %s has no chat template", src.Name)
	}
	return t, err
}

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command, such as serve or bench model; default: list all commands."`
}

// Run implements the command. It prints what --help after the command prints.
func (c *helpCmd) Run(e *console.Env) error {
	if status := run(append(c.Command, "--help"), e); status != 0 {
		return console.ExitError(status)
	}
	return nil
}

type completionCmd struct {
	Shell string `arg:"" help:"The shell: ${enum}." enum:"bash,zsh,fish"`
}

// Run implements the command.
func (c *completionCmd) Run(e *console.Env) error {
	words := cmdline.Completions(cmdline.All(&cli{}).Node)
	switch c.Shell {
	case "bash":
		return cmdline.CompleteBash(e.Out, words)
	case "zsh":
		// zsh runs scripts for bash after bashcompinit.
		if _, err := fmt.Fprint(e.Out, "#compdef krater\nautoload -U +X bashcompinit && bashcompinit\n"); err != nil {
			return err
		}
		return cmdline.CompleteBash(e.Out, words)
	}
	return cmdline.CompleteFish(e.Out, words)
}
