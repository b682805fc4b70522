// Package batch is the commands that talk to the Batch API of a running server.
package batch

import (
	"bufio"
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"krater/cmd/krater/console"
	"krater/cmd/krater/remote"
	"krater/cmd/krater/term"
	"krater/scheduler/files"
	"krater/transport/api"
	"krater/transport/client"
)

// Cmd has the commands for a running server's Batch API.
type Cmd struct {
	Submit submitCmd `cmd:"" help:"Upload a file of request lines and create a batch from it."`
	Status statusCmd `cmd:"" help:"Show the state of one batch, or list the newest ones."`
	Fetch  fetchCmd  `cmd:"" help:"Download the answers of a batch."`
	Cancel cancelCmd `cmd:"" help:"Cancel a batch; lines that are running are finished."`
}

type submitCmd struct {
	remote.Server
	File     string        `arg:"" help:"File of requests, one JSON object per line: {\"custom_id\", \"method\", \"url\", \"body\"}." type:"existingfile"`
	Endpoint string        `help:"Path that all lines request; default: the url of the first line." placeholder:"PATH"`
	Window   time.Duration `help:"Time in which the batch must end." default:"24h"`
	Wait     bool          `help:"Wait for the end; the exit status is 1 unless the batch completes."`
}

// Run implements the command.
func (c *submitCmd) Run(e *console.Env) error {
	f, err := files.Open(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	endpoint := c.Endpoint
	if endpoint == "" {
		if endpoint, err = firstURL(f); err != nil {
			return err
		}
	}
	cl, ctx, stop, err := c.Session()
	if err != nil {
		return err
	}
	defer stop()
	file, err := cl.Upload(ctx, filepath.Base(c.File), f)
	if err != nil {
		return c.Plainly(err)
	}
	window := c.Window.String()
	if c.Window%time.Hour == 0 { // 24h instead of 24h0m0s
		window = fmt.Sprintf("%dh", c.Window/time.Hour)
	}
	b, err := cl.CreateBatch(ctx, api.BatchRequest{InputFileID: &file.ID, Endpoint: &endpoint, Window: &window})
	if err != nil {
		return c.Plainly(err)
	}
	if c.Wait {
		fmt.Fprintf(term.Safe(e.Err), "%s\n", b.ID)
		return c.wait(ctx, e, cl, b)
	}
	return c.Print(e, b, func(w io.Writer) {
		fmt.Fprintf(w, "%s\n", b.ID)
		fmt.Fprintf(term.Safe(e.Err), "%d bytes uploaded; see: krater batch status %s\n", file.Bytes, b.ID)
	})
}

// wait follows a batch until it ends.
func (c *submitCmd) wait(ctx context.Context, e *console.Env, cl *client.Client, b *api.Batch) error {
	last := ""
	b, err := cl.WaitBatch(ctx, b.ID, 500*time.Millisecond, func(b *api.Batch) {
		if now := progress(b); now != last {
			last = now
			fmt.Fprintln(term.Safe(e.Err), now)
		}
	})
	if err != nil {
		return c.Plainly(err)
	}
	if err := c.Print(e, b, func(w io.Writer) { describe(w, b) }); err != nil {
		return err
	}
	if b.Status != "completed" {
		return console.ExitError(1)
	}
	return nil
}

// firstURL returns the url of a file's first line, and seeks back to the start.
func firstURL(f *os.File) (string, error) {
	in := bufio.NewReader(io.LimitReader(f, 16<<20))
	var text string
	for err := error(nil); strings.TrimSpace(text) == "" && err == nil; {
		text, err = in.ReadString('\n')
	}
	var line struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(text, "\uFEFF")), &line); err != nil || line.URL == "" {
		return "", fmt.Errorf("%s: the first line is not an object with a 'url'; name the endpoint with --endpoint", f.Name())
	}
	_, err := f.Seek(0, io.SeekStart)
	return line.URL, err
}

type statusCmd struct {
	remote.Server
	ID    string `arg:"" optional:"" help:"Id of the batch; default: list the newest ones."`
	Limit int    `help:"Maximum number of batches to list." default:"20"`
}

// Run implements the command.
func (c *statusCmd) Run(e *console.Env) error {
	cl, ctx, stop, err := c.Session()
	if err != nil {
		return err
	}
	defer stop()
	if c.ID != "" {
		b, err := cl.Batch(ctx, c.ID)
		if err != nil {
			return c.Plainly(err)
		}
		return c.Print(e, b, func(w io.Writer) { describe(w, b) })
	}
	list, err := cl.Batches(ctx, "", c.Limit)
	if err != nil {
		return c.Plainly(err)
	}
	return c.Print(e, list, func(w io.Writer) {
		if len(list.Data) == 0 {
			fmt.Fprintln(w, "no batches")
			return
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "ID\tSTATUS\tLINES\tANSWERED\tFAILED\tCREATED")
		for i := range list.Data {
			b := &list.Data[i]
			n := b.RequestCounts
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\n", b.ID, b.Status, n.Total, n.Completed, n.Failed, clockTime(b.CreatedAt))
		}
		_ = t.Flush()
		if list.HasMore {
			fmt.Fprintln(w, "there are more; raise --limit")
		}
	})
}

// progress describes a batch in one short line.
func progress(b *api.Batch) string {
	n := b.RequestCounts
	if n.Total == 0 {
		return b.Status
	}
	return fmt.Sprintf("%s: %d of %d lines, %d failed", b.Status, n.Completed+n.Failed, n.Total, n.Failed)
}

// describe prints the details of a batch.
func describe(w io.Writer, b *api.Batch) {
	fmt.Fprintf(w, "%s  %s\n", b.ID, progress(b))
	fmt.Fprintf(w, "  %s, model %s, created %s, must end by %s\n", b.Endpoint, b.Model, clockTime(b.CreatedAt), clockTime(b.ExpiresAt))
	if b.Errors != nil {
		for _, e := range b.Errors.Data {
			where := ""
			if e.Line != nil {
				where = fmt.Sprintf("line %d: ", *e.Line)
			}
			fmt.Fprintf(w, "  %s%s (%s)\n", where, e.Message, e.Code)
		}
	}
	if b.OutputFileID != nil {
		fmt.Fprintf(w, "  answers: krater batch fetch %s -o answers.jsonl\n", b.ID)
	}
	if b.ErrorFileID != nil {
		fmt.Fprintf(w, "  failed lines: krater batch fetch %s --errors -o errors.jsonl\n", b.ID)
	}
}

func clockTime(unix int64) string { return time.Unix(unix, 0).Format(time.DateTime) }

type fetchCmd struct {
	remote.Server
	ID     string `arg:"" help:"Id of the batch."`
	Output string `short:"o" help:"File to write; default: standard output." type:"path" placeholder:"FILE"`
	Errors bool   `help:"Download the lines that failed instead of the answers."`
}

// Run implements the command.
func (c *fetchCmd) Run(e *console.Env) error {
	cl, ctx, stop, err := c.Session()
	if err != nil {
		return err
	}
	defer stop()
	b, err := cl.Batch(ctx, c.ID)
	if err != nil {
		return c.Plainly(err)
	}
	id, what := b.OutputFileID, "answers"
	if c.Errors {
		id, what = b.ErrorFileID, "failed lines"
	}
	switch {
	case !b.Ended():
		return fmt.Errorf("%s has not ended: %s", b.ID, progress(b))
	case id == nil:
		return fmt.Errorf("%s has no %s: %s", b.ID, what, progress(b))
	}
	file, err := cl.File(ctx, *id)
	if err != nil {
		return c.Plainly(err)
	}
	body, err := cl.Content(ctx, *id)
	if err != nil {
		return c.Plainly(err)
	}
	defer body.Close()
	if c.Output == "" {
		_, err := io.Copy(term.Safe(e.Out), body)
		return c.Plainly(err)
	}
	if err := c.save(body, file.Bytes); err != nil {
		return c.Plainly(err)
	}
	return c.Print(e, file, func(io.Writer) { fmt.Fprintf(e.Err, "%d bytes in %s\n", file.Bytes, c.Output) })
}

// save writes the whole file or none of it.
func (c *fetchCmd) save(body io.Reader, size int64) error {
	tmp, err := os.CreateTemp(filepath.Dir(c.Output), filepath.Base(c.Output)+".*.part")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename
	n, err := io.Copy(tmp, body)
	if err == nil && n != size {
		err = fmt.Errorf("the server sent %d of %d bytes", n, size)
	}
	if err == nil {
		err = tmp.Chmod(0o644)
	}
	if closing := tmp.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), c.Output)
}

type cancelCmd struct {
	remote.Server
	ID string `arg:"" help:"Id of the batch."`
}

// Run implements the command.
func (c *cancelCmd) Run(e *console.Env) error {
	cl, ctx, stop, err := c.Session()
	if err != nil {
		return err
	}
	defer stop()
	b, err := cl.CancelBatch(ctx, c.ID)
	if err != nil {
		return c.Plainly(err)
	}
	return c.Print(e, b, func(w io.Writer) { fmt.Fprintf(w, "%s  %s\n", b.ID, progress(b)) })
}
