package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// Run runs the agent on this terminal until it ends, and returns its exit status. args come after
// those of Setup. An interrupt is the agent's: it is a key of its own there.
func (a *Agent) Run(s Served, args []string, in io.Reader, out, errs io.Writer) (status int, err error) {
	before, env := a.Setup(s)
	c := exec.Command(a.Program, append(before, args...)...)
	c.Env = append(os.Environ(), env...)
	c.Stdin, c.Stdout, c.Stderr = in, out, errs
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := c.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for {
		select {
		case sig := <-signals:
			if sig != os.Interrupt { // the terminal sends that to the agent as well
				_ = c.Process.Signal(sig) // it may have ended
			}
		case err := <-ended:
			if failed, ok := errors.AsType[*exec.ExitError](err); ok {
				return max(failed.ExitCode(), 1), nil // -1: by a signal
			}
			return 0, err
		}
	}
}

// Installed says what to install if the agent's program is not in PATH.
func (a *Agent) Installed() error {
	if _, err := exec.LookPath(a.Program); err != nil {
		return fmt.Errorf("%s is not installed: no program %s in PATH; install it with: %s", a.Name, a.Program, a.Install)
	}
	return nil
}

// Server is a server that was started for an agent.
type Server struct {
	process *exec.Cmd
	log     string
	ended   chan struct{} // closed when the process has ended
}

// StartServer starts a server as a process of its own, outside of the terminal's process group, so that keys of the agent do
// not reach it. Its log goes to a file.
func StartServer(program string, args []string) (*Server, error) {
	log, err := os.CreateTemp("", "krater-serve-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s := &Server{exec.Command(program, args...), log.Name(), make(chan struct{})}
	s.process.Stdout, s.process.Stderr = log, log
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.process.Start(); err != nil {
		_ = os.Remove(s.log) // empty
		return nil, err
	}
	go func() {
		_ = s.process.Wait() // the log says why it ended
		close(s.ended)
	}()
	return s, nil
}

// Log returns the path of the server's log.
func (s *Server) Log() string { return s.log }

// Ready waits until ready returns nil, with a context that ends when the server does. The error has the last
// lines of the log if the server ended.
func (s *Server) Ready(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := ready(ctx)
	select {
	case <-s.ended:
		return fmt.Errorf("the server ended before it was ready (%s):\n%s", s.log, s.tail())
	default:
		return err
	}
}

// tailBytes bounds how much of a log is shown.
const tailBytes = 2000

// tail returns the last lines of the log.
func (s *Server) tail() []byte {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return []byte(err.Error())
	}
	if cut := len(text) - tailBytes; cut > 0 {
		text = text[cut:]
		text = text[bytes.IndexByte(text, '\n')+1:]
	}
	return bytes.TrimSpace(text)
}

// Stop ends the server as SIGTERM does, kills it if it has not ended after patience, and removes its log.
func (s *Server) Stop(patience time.Duration) {
	_ = s.process.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-s.ended:
	case <-time.After(patience):
		_ = s.process.Process.Kill() // it may have ended
		<-s.ended
	}
	_ = os.Remove(s.log) // a file of the temporary folder
}
