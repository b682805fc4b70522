// Package remote is how commands reach a running server: flags, a client, and the wording of
// errors.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/transport/api"
	"krater/transport/client"
)

// Server has the flags that name a running server and the form of the output.
type Server struct {
	URL    string `name:"url" help:"URL of the server." default:"http://127.0.0.1:8080" placeholder:"URL"`
	APIKey string `name:"api-key" help:"API key, if the server asks for one. Prefer the variable KRATER_API_KEY, which other users cannot see." placeholder:"KEY"`
	JSON   bool   `name:"json" help:"Print the server's objects as JSON."`
}

// Session returns a client and a context that an interrupt ends.
func (f *Server) Session() (*client.Client, context.Context, context.CancelFunc, error) {
	u, err := url.Parse(f.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, nil, nil, fmt.Errorf("--url %s: want http://HOST:PORT", f.URL)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	return client.New(f.URL, f.APIKey, nil), ctx, stop, nil
}

// Print prints an object of the server, as JSON or as text for people.
func (f *Server) Print(e *console.Env, v any, text func(io.Writer)) error {
	if f.JSON {
		_, err := fmt.Fprintf(e.Out, "%s\n", api.Marshal(v))
		return err
	}
	text(term.Safe(e.Out))
	return nil
}

// Plainly turns an error of a client into one line that says what to do.
func (f *Server) Plainly(err error) error {
	if refused, ok := errors.AsType[*api.Error](err); ok {
		if refused.Status == 401 {
			return fmt.Errorf("%s: %s (--api-key or KRATER_API_KEY)", f.URL, refused.Message)
		}
		return errors.New(strings.ReplaceAll(refused.Message, "\n", " "))
	}
	return Answering(f.URL, err)
}

// Answering rewords an error of the connection: the server does not answer.
func Answering(server string, err error) error {
	failed, ok := errors.AsType[*url.Error](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s does not answer: connection refused; start a server with krater serve, or name another one with --url", server)
	}
	return fmt.Errorf("%s does not answer: %w", server, failed.Err)
}
