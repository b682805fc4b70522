// Package traces is the commands that record the actors of a running server and show a recording.
package traces

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"krater/actors/trace"
	"krater/cmd/krater/console"
	"krater/cmd/krater/remote"
	"krater/cmd/krater/term"
	"krater/scheduler/files"
)

// Cmd has the commands.
type Cmd struct {
	Record recordCmd `cmd:"" help:"Record the actors of a running server into a file, which ui.perfetto.dev also opens."`
	Show   showCmd   `cmd:"" help:"Show a recording on the terminal: one lane per actor, where the time went, and the longest waits."`
}

type recordCmd struct {
	URL     string  `name:"url" help:"URL of the server." default:"http://127.0.0.1:8080" placeholder:"URL"`
	Seconds float64 `help:"Length of the recording in seconds, at most 60." default:"5"`
	Out     string  `help:"File to write." required:"" type:"path" placeholder:"FILE"`
	APIKey  string  `name:"api-key" help:"API key, if the server asks for one. Prefer the variable KRATER_API_KEY, which other users cannot see." placeholder:"KEY"`
}

// recordLineMax bounds a line of a recording in bytes: the events of an actor in 100 ms.
const recordLineMax = 64 << 20

// Run implements the command.
func (c *recordCmd) Run(e *console.Env) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	tracks, devices, err := c.record(ctx)
	if err != nil {
		return err
	}
	f, err := os.Create(c.Out)
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	events := 0
	for _, t := range tracks {
		events += len(t.Events)
	}
	err = errors.Join(trace.WriteChrome(f, tracks, devices), f.Close())
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	fmt.Fprintf(e.Out, "%d events of %d actors in %s\n", events, len(tracks), c.Out)
	return nil
}

// record reads the events of a server until it has sent all of them.
func (c *recordCmd) record(ctx context.Context) ([]trace.Track, []string, error) {
	base, err := url.Parse(c.URL)
	if err != nil || base.Host == "" {
		return nil, nil, fmt.Errorf("--url %s: want an address such as http://127.0.0.1:8080", c.URL)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("trace/record").String()+fmt.Sprintf("?seconds=%g", c.Seconds), nil)
	if err != nil {
		return nil, nil, fmt.Errorf("--url: %w", err)
	}
	if c.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.APIKey)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, remote.Answering(c.URL, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, nil, refused(res)
	}
	return readRecording(res.Body)
}

// refused describes the error that a server answered with.
func refused(res *http.Response) error {
	var body struct{ Error struct{ Message string } }
	data, _ := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	if json.Unmarshal(data, &body) != nil || body.Error.Message == "" {
		return fmt.Errorf("the server answered %s", res.Status)
	}
	if res.StatusCode == http.StatusUnauthorized {
		body.Error.Message += " (--api-key or KRATER_API_KEY)"
	}
	return fmt.Errorf("the server answered %s: %s", res.Status, body.Error.Message)
}

// readRecording reads the lines of GET /trace/record: the names of devices, then lists of an
// actor's name and its events. It returns tracks sorted by name.
func readRecording(in io.Reader) (tracks []trace.Track, devices []string, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, recordLineMax)
	if lines.Scan() {
		if err := json.Unmarshal(lines.Bytes(), &devices); err != nil {
			return nil, nil, fmt.Errorf("the server sent %.80q, which is not a recording", lines.Bytes())
		}
	}
	for lines.Scan() {
		var line []json.RawMessage
		var name string
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || len(line) == 0 || json.Unmarshal(line[0], &name) != nil {
			return nil, nil, fmt.Errorf("the server sent %.80q, which is not a recording", lines.Bytes())
		}
		i, found := slices.BinarySearchFunc(tracks, name, func(t trace.Track, name string) int { return strings.Compare(t.Name, name) })
		if !found {
			tracks = slices.Insert(tracks, i, trace.Track{Name: name})
		}
		for _, raw := range line[1:] {
			e, err := eventOf(raw)
			if err != nil {
				return nil, nil, fmt.Errorf("the server sent the event %.80q: %w", raw, err)
			}
			tracks[i].Events = append(tracks[i].Events, e)
		}
	}
	return tracks, devices, lines.Err()
}

// eventOf reads an event from a list: lane, kind, batch, request, enqueued, started, ended, rows,
// layer, parts, bytes, micro-batch, device, others.
func eventOf(raw []byte) (e trace.Event, err error) {
	var lane int
	var kind string
	fields := []any{&lane, &kind, &e.Batch, &e.Request, &e.Enqueued, &e.Started, &e.Ended, &e.Rows, &e.Layer, &e.Parts, &e.Bytes, &e.Lane, &e.Device, &e.Others}
	n := len(fields)
	if err := json.Unmarshal(raw, &fields); err != nil {
		return e, err
	}
	if len(fields) != n {
		return e, fmt.Errorf("%d fields, want %d", len(fields), n)
	}
	var ok bool
	if e.Kind, ok = trace.KindOf(kind); !ok {
		return e, fmt.Errorf("unknown kind %.40q", kind)
	}
	return e, nil
}

type showCmd struct {
	File  string `arg:"" help:"File that krater trace record wrote or the page /trace saved." type:"existingfile"`
	Steps int    `help:"Number of steps to show, counted from the last." default:"3"`
	Width int    `help:"Columns of the picture; 0: those of the terminal, or 100 without one." default:"0"`
	Plain bool   `help:"Use no colours on a terminal."`
	JSON  bool   `name:"json" help:"Print JSON: the work of each actor, where the time went, and the longest waits."`
}

// Run implements the command.
func (c *showCmd) Run(e *console.Env) error {
	if c.Steps < 1 {
		return errors.New("--steps: want 1 or more")
	}
	f, err := files.Open(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	tracks, _, err := trace.ReadChrome(bufio.NewReader(f))
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	s := stretchOf(tracks, c.Steps)
	if c.JSON {
		return console.WriteJSON(e.Out, s)
	}
	v := lanesView{stretch: s, out: bufio.NewWriter(e.Out), colours: !c.Plain && term.Colours(e.Out), width: c.Width}
	if v.width == 0 {
		if v.width = widthDefault; term.Is(e.Out) {
			v.width = term.Width(e.Out)
		}
	}
	v.show()
	return v.out.Flush()
}

// took formats a time for people, aligned in columns.
func took(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(ns)/1e6)
	}
	return fmt.Sprintf("%.1f us", float64(ns)/1e3)
}
