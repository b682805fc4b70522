package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"krater/actors/local/config"
	"krater/scheduler/batchqueue"
	"krater/transport/batches"
	"krater/transport/responses"
	"krater/transport/server"
)

// batchFlags are the flags of the durable batch queue.
type batchFlags struct {
	BatchDir      string        `name:"batch-dir" help:"Folder of the durable batch queue and of conversations, for one server at a time; 'off' serves no Batch API, and conversations end with the process. Default: a folder for the served model in the user's state folder." placeholder:"DIR"`
	BatchInFlight int           `name:"batch-in-flight" help:"Maximum number of batch lines that run at the same time; 0: half of --max-seqs." default:"0"`
	BatchKeep     time.Duration `name:"batch-keep" help:"How long to keep files and ended batches." default:"720h"`
	BatchStore    config.Size   `name:"batch-store" help:"Maximum total size of the queue's files; larger uploads are refused." default:"16GiB"`
}

// batchOff is the value of --batch-dir that turns the Batch API off.
const batchOff = "off"

func (f *batchFlags) check() error {
	switch {
	case f.BatchInFlight < 0 || f.BatchInFlight > 1<<16:
		return fmt.Errorf("--batch-in-flight %d: want 0 to %d", f.BatchInFlight, 1<<16)
	case f.BatchKeep < time.Second:
		return fmt.Errorf("--batch-keep %v: want a second or more", f.BatchKeep)
	case f.BatchStore <= 0:
		return fmt.Errorf("--batch-store %v: want more than 0", f.BatchStore)
	}
	return nil
}

// stateFolder returns the folder of a user's programs for data that outlives them.
func stateFolder() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state"), err
}

// batchDir returns the folder of the queue. Each served model has its own.
func (f *batchFlags) batchDir(model string) (string, error) {
	if f.BatchDir != "" {
		return f.BatchDir, nil
	}
	dir, err := stateFolder()
	return filepath.Join(dir, "krater", "batches-"+url.PathEscape(model)), err
}

// batchAPI is the server's Batch API with its store; nil if it has none.
type batchAPI struct {
	store *batchqueue.Store
	door  *batches.Door
	log   zerolog.Logger
}

// openBatches adds the Batch API to a server, and has conversations saved in its store. If the folder cannot be used, that is an error when
// --batch-dir names it; otherwise the server starts without the Batch API.
func (c *serveCmd) openBatches(srv *server.Server, talks *responses.Door, model string, log zerolog.Logger) (*batchAPI, error) {
	if c.BatchDir == batchOff {
		batches.Closed(srv.Route, "this server has no Batch API (--batch-dir off)")
		return nil, nil
	}
	dir, err := c.batchDir(model)
	var store *batchqueue.Store
	if err == nil {
		store, err = batchqueue.Open(dir, batchqueue.Options{Keep: c.BatchKeep, MaxBytes: int64(c.BatchStore), Shared: srv.Shared()})
	}
	cause := err
	if errors.Is(err, batchqueue.ErrLocked) {
		err = fmt.Errorf("%s: %w%s", dir, err, holderOf(dir))
	}
	switch {
	case err != nil && c.BatchDir != "":
		return nil, fmt.Errorf("--batch-dir: %w (--batch-dir off starts without the Batch API)", err)
	case errors.Is(err, batchqueue.ErrLocked):
		log.Warn().Err(err).Msg("no Batch API: another server of the same model uses the folder; choose another one with --batch-dir DIR, or --batch-dir off to start without")
		batches.Closed(srv.Route, "this server has no Batch API: "+reason(cause))
		return nil, nil
	case err != nil:
		log.Warn().Err(err).Msg("no Batch API: the folder of its queue cannot be used; repair it, or choose another one with --batch-dir DIR")
		batches.Closed(srv.Route, "this server has no Batch API: "+reason(err))
		return nil, nil
	}
	opt := batches.Options{
		Store: store, Model: model, Inside: srv.Inside, Owner: srv.Owner, Peer: srv.Peer, AllowOrigin: srv.OriginAllowed,
		ReadBody: srv.ReadBody, Ready: srv.Ready, InFlight: c.BatchInFlight, Log: log,
	}
	if opt.InFlight == 0 {
		opt.InFlight = max(1, c.MaxSeqs/2)
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"} {
		if srv.Routed("POST", path) {
			opt.Endpoints = append(opt.Endpoints, path)
		}
	}
	d := &batchAPI{store: store, door: batches.New(opt), log: log}
	d.door.Mount(srv.Route)
	srv.Describe(batches.Routes()...)
	if err := errors.Join(talks.SaveIn(store), srv.Register(d.door)); err != nil {
		store.Close()
		return nil, err
	}
	if unknown := store.Unknown(); len(unknown) > 0 {
		log.Warn().Str("folder", store.ContentFolder()).Int("files", len(unknown)).Str("first", unknown[0]).
			Msg("the batch queue's folder has files that queue.db does not list; Krater leaves them alone, delete them if you do not need them")
	}
	log.Debug().Str("dir", dir).Int("in_flight", opt.InFlight).Msg("batch queue opened")
	return d, nil
}

// holderOf names the process that has locked a file of a folder, as the kernel lists it: " (process
// 4711)". It returns "" if the process is unknown, for example outside this container.
func holderOf(dir string) string {
	locks, err := os.ReadFile("/proc/locks")
	entries, err2 := os.ReadDir(dir)
	if errors.Join(err, err2) != nil {
		return ""
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		for line := range strings.Lines(string(locks)) {
			// 1: FLOCK  ADVISORY  WRITE 4711 fd:01:262146 0 EOF
			f := strings.Fields(line)
			if ok && len(f) == 8 && f[1] == "FLOCK" && strings.HasSuffix(f[5], ":"+strconv.FormatUint(stat.Ino, 10)) {
				if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 {
					return fmt.Sprintf(" (process %d)", pid)
				}
			}
		}
	}
	return ""
}

// reason tells clients why there are no batches, without the server's paths.
func reason(err error) string {
	for _, known := range []error{batchqueue.ErrLocked, batchqueue.ErrForeign, batchqueue.ErrDamaged, batchqueue.ErrIncomplete} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "its folder cannot be used"
}

// start begins to run lines.
func (d *batchAPI) start() {
	if d != nil {
		d.door.Start()
	}
}

// shutdown waits until the lines in flight have ended.
func (d *batchAPI) shutdown(ctx context.Context) error {
	if d == nil {
		return nil
	}
	return d.door.Shutdown(ctx)
}

// withdraw closes a server that served nothing. It removes the folder if the server created it.
func (d *batchAPI) withdraw() {
	if d == nil {
		return
	}
	if err := d.store.Withdraw(); err != nil {
		d.log.Warn().Err(err).Msg("cannot remove the folder of the batch queue")
	}
}

func (d *batchAPI) close() {
	if d == nil {
		return
	}
	if err := d.store.Close(); err != nil {
		d.log.Warn().Err(err).Msg("cannot close the batch queue")
	}
}
