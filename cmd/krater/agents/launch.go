package agents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/console"
	"krater/cmd/krater/remote"
	"krater/transport/client"
)

// Launch has the flags of krater launch.
type Launch struct {
	Words  []string `arg:"" optional:"" name:"agent" help:"claude, codex, opencode or aider, and after -- its own arguments. Without one, or with folders, the command is krater setup; ./NAME is a folder of such a name."`
	Save   string   `help:"File of settings for the server, as krater setup writes it; without an agent, the file to write." type:"path" default:"krater.yaml" placeholder:"FILE"`
	Listen string   `help:"Address of the server; default: the one in the file, or 127.0.0.1:8080." placeholder:"HOST:PORT"`
	Model  string   `help:"Model to serve if no server runs; default: the one in the file." placeholder:"NAME"`
	Args   []string `kong:"-"` // those of the agent, see Cut
	APIKey string   `name:"api-key" help:"API key, if the server asks for one. Prefer the variable KRATER_API_KEY, which other users cannot see." placeholder:"KEY"`
}

// Cut takes what comes after -- from the arguments of krater launch, since the parser would take
// them for folders.
func (c *Launch) Cut(args []string) []string {
	if i := slices.Index(args, "--"); i > 0 && args[0] == "launch" {
		c.Args, args = args[i+1:], args[:i]
	}
	return args
}

// agent returns the agent that was named, or nil if the words are folders.
func (c *Launch) agent() (*Agent, error) {
	if len(c.Words) > 0 {
		if a := Find(c.Words[0]); a != nil && len(c.Words) > 1 {
			return nil, fmt.Errorf("unexpected argument %s: arguments of %s come after --", c.Words[1], a.Name)
		} else if a != nil {
			return a, nil
		}
	}
	for _, dir := range c.Words {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("%s is neither an agent (claude, codex, opencode, aider) nor a folder", dir)
		}
	}
	return nil, nil
}

// stopPatience is the time that a server has to end its answers when the agent has ended.
const stopPatience = 15 * time.Second

// Start starts the agent that was named, and a server for it if none runs. Without an agent it calls setup.
func (c *Launch) Start(e *console.Env, setup func() error) error {
	agent, err := c.agent()
	if err != nil {
		return err
	}
	if agent == nil {
		return setup()
	}
	if err := agent.Installed(); err != nil {
		return err
	}
	serve, url, err := c.server(e)
	if err != nil {
		return err
	}
	server, served, err := c.reach(e, url, serve)
	if err != nil {
		return err
	}
	if server != nil {
		defer server.Stop(stopPatience)
	}
	fmt.Fprintf(e.Err, "%s with %s at %s\n", agent.Name, served.Model, url)
	status, err := agent.Run(served, c.Args, e.In, e.Out, e.Err)
	if err == nil && status != 0 {
		err = console.ExitError(status)
	}
	return err
}

// server returns the command line of a server, and the URL where clients reach it.
func (c *Launch) server(e *console.Env) (serve []string, url string, err error) {
	serve, file := []string{"serve"}, e.File
	url, listen := "http://", ""
	if _, err := os.Stat(c.Save); file == nil && err == nil {
		if file, err = cmdline.ReadConfig(c.Save); err != nil {
			return nil, "", err
		}
	}
	if file != nil {
		serve = append(serve, "--config", file.Path)
		if v := file.Values["listen"]; v != nil {
			listen = cmdline.PlainValue(v)
		}
		if file.Values["tls-cert"] != nil {
			url = "https://"
		}
	}
	if c.Listen != "" {
		listen = c.Listen
		serve = append(serve, "--listen", listen)
	}
	if c.Model != "" {
		serve = append(serve, "--model", c.Model)
	}
	if listen == "" {
		listen = "127.0.0.1:8080"
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, "", fmt.Errorf("--listen %s: want HOST:PORT", listen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1" // it listens on every address
	}
	return serve, url + net.JoinHostPort(host, port), nil
}

// reach finds what a running server serves, or starts one.
func (c *Launch) reach(e *console.Env, url string, serve []string) (server *Server, served Served, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	door := client.New(url, c.APIKey, nil)
	_, err = door.Models(ctx)
	if errors.Is(err, syscall.ECONNREFUSED) {
		program, err := os.Executable()
		if err != nil {
			return nil, served, err
		}
		if server, err = StartServer(program, serve); err != nil {
			return nil, served, err
		}
		fmt.Fprintf(e.Err, "starting krater %s; its log is %s\n", cmdline.Line(serve), server.Log())
		if err := server.Ready(ctx, door.WaitReady); err != nil {
			server.Stop(stopPatience)
			return nil, served, err
		}
	} else if err == nil {
		err = door.WaitReady(ctx) // it may still load
	}
	list, err := door.Models(ctx)
	if err == nil && len(list.Data) == 0 {
		err = errors.New("it serves no model")
	}
	if err != nil {
		if server != nil {
			server.Stop(stopPatience)
		}
		return nil, served, (&remote.Server{URL: url}).Plainly(err)
	}
	return server, Served{URL: url, Key: c.APIKey, Model: list.Data[0].ID, Context: list.Data[0].MaxModelLen}, nil
}
