package benches

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"krater/bench/serve"
	"krater/cmd/krater/console"
	"krater/cmd/krater/term"
	"krater/transport/enginetest"
	"krater/transport/responses"
	"krater/transport/server"
)

type doorsCmd struct {
	Streams int           `help:"Number of WebSockets, each with a stream." default:"10000"`
	Every   time.Duration `help:"Time between two tokens of a stream." default:"500ms"`
	Windows int           `help:"Number of windows to measure." default:"5"`
	Window  time.Duration `help:"Length of a window." default:"10s"`
	JSON    bool          `name:"json" help:"Print the report as JSON."`
	Only    bool          `name:"server-only" help:"Be the server alone, until standard input ends, and print its address."`
}

// Run implements the command: this process is the client, and the server is another one.
func (c *doorsCmd) Run(e *console.Env) error {
	if c.Streams < 1 || c.Streams > 1<<16 || c.Every <= 0 || c.Windows < 1 || c.Window <= 0 {
		return errors.New("want 1 to 65536 streams, and times and windows above 0")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.Only {
		return c.serve(ctx, e)
	}
	url, pid, end, err := c.start(ctx, e)
	if err != nil {
		return err
	}
	p := serve.Paced{URL: url, PID: pid, Streams: c.Streams, Windows: c.Windows, Window: c.Window, Read: enginetest.ReadBeat}
	if !c.JSON {
		p.Progress = func(what string) { fmt.Fprintf(e.Err, "krater: %s\n", what) }
	}
	r, err := p.Run(ctx)
	if err = errors.Join(err, end()); err != nil {
		return err
	}
	h := host()
	if c.JSON {
		return console.WriteJSON(e.Out, struct {
			benchHost
			*serve.PacedReport
		}{h, r})
	}
	if err := console.Sentence(e.Out, "%s, %s, revision %s", h.CPU, h.GoVersion, h.Revision); err != nil {
		return err
	}
	fmt.Fprintln(e.Out)
	return r.Text(term.Paint(e.Out, console.TableRules...))
}

// start starts the server and returns its address, its process, and a function that ends it.
func (c *doorsCmd) start(ctx context.Context, e *console.Env) (url string, pid int, end func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return "", 0, nil, err
	}
	child := exec.CommandContext(ctx, program, "bench", "doors", "--server-only", "--streams", strconv.Itoa(c.Streams), "--every", c.Every.String())
	child.Stderr = e.Err
	in, err := child.StdinPipe()
	if err != nil {
		return "", 0, nil, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return "", 0, nil, err
	}
	if err := child.Start(); err != nil {
		return "", 0, nil, err
	}
	end = func() error { return errors.Join(in.Close(), child.Wait()) }
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", 0, nil, errors.Join(fmt.Errorf("the server did not start: %w", err), end())
	}
	return strings.TrimSpace(line), child.Process.Pid, end, nil
}

// doorsContext is the context of the scripted model: more tokens than a measurement takes.
const doorsContext = 1 << 20

// doorsStep is the time between two steps of the scripted engine.
const doorsStep = 10 * time.Millisecond

// serve is the server: the doors as krater serve has them, over an engine that plays a script.
func (c *doorsCmd) serve(ctx context.Context, e *console.Env) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(console.ServingGCPercent)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	most := 2 * c.Streams // one address may have three quarters
	m := enginetest.NewMetronome(doorsContext)
	srv := server.New(m, server.Options{MaxConcurrent: most, MaxConnections: most})
	door := responses.New(m, responses.Options{
		Owner: srv.Owner, Peer: srv.Peer, AllowOrigin: srv.OriginAllowed, ReadBody: srv.ReadBody, Work: srv.Work, Acquire: srv.Acquire,
		MaxSockets: most, MaxKept: most,
	})
	door.Mount(srv.Route)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go m.Run(ctx, c.Every, doorsStep)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	fmt.Fprintf(e.Out, "http://%s\n", l.Addr())
	_, _ = io.Copy(io.Discard, e.In) // until the client has ended
	stop()
	cut, cancel := context.WithCancel(context.Background())
	cancel()
	_, _ = door.Shutdown(cut), srv.Shutdown(cut) // what runs is cut off
	return <-served
}
