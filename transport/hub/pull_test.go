package hub

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"krater/stages/source/hubcache"
)

// TestPull: the files that a model needs are in the cache as the hub's own tools lay it out, and are not downloaded again.
func TestPull(t *testing.T) {
	f, cache := newFake(t, tiny()), t.TempDir()
	c, _ := f.client()
	var done, all int64
	c.Progress = func(d, a int64) { done, all = d, a }
	r, err := pullOf(c, cache, repo)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "models--acme--Tiny-MoE", "snapshots", commit)
	if r.Path != dir || r.Commit != commit || len(r.Files) != len(wanted) {
		t.Errorf("%+v", r)
	}
	holds(t, dir, f.model, wanted...)
	if done != all || all != 700+3000+9000+5001+50 {
		t.Errorf("progress %d of %d", done, all)
	}
	if ref, err := os.ReadFile(filepath.Join(cache, "models--acme--Tiny-MoE", "refs", "main")); err != nil || string(ref) != commit {
		t.Errorf("%q, %v", ref, err)
	}
	link, err := os.Readlink(filepath.Join(dir, "model-00002-of-00002.safetensors"))
	if err != nil || link != "../../blobs/"+sum(f.model["model-00002-of-00002.safetensors"]) {
		t.Errorf("%q, %v", link, err)
	}
	if path, err := (hubcache.Ref{Repo: repo}).Locate(cache); path != dir {
		t.Errorf("%q, %v", path, err)
	}
	before := len(f.requests)
	if _, err := pullOf(c, cache, repo); err != nil || len(f.requests) != before+1 {
		t.Errorf("again: %v, %q", err, f.requests[before:])
	}
	if f.seen("hub /"+repo) == 0 || f.seen("cdn ") != 2 {
		t.Errorf("%q", f.requests)
	}
}

// TestStall: a connection that brings nothing is given up.
func TestStall(t *testing.T) {
	f := newFake(t, tiny())
	f.before = func(w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if host == "cdn" && n == 0 && strings.Contains(r.URL.Path, "00001") {
			w.Header().Set("Content-Length", "9000")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done() // the client leaves
			return true
		}
		return false
	}
	c, s := f.client()
	c.Parallel, c.sys.stall = 1, 10*time.Millisecond // the first file is the larger one
	c.sys.sleep = func(ctx context.Context, d time.Duration) error {
		c.sys.stall = time.Hour
		return s.sleep(ctx, d)
	}
	var told []string
	c.Say = func(line string) { told = append(told, line) }
	r, err := pullOf(c, t.TempDir(), repo)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, r.Path, f.model, wanted...)
	if len(told) != 1 || !strings.Contains(told[0], errStalled.Error()) {
		t.Errorf("told %q", told)
	}
}

var errKilled = errors.New("killed")

// TestKills: a download that is killed before any of its changes goes on at the next start, and at no moment does the cache
// have a file with a wrong content or a model that is not whole.
func TestKills(t *testing.T) {
	defer func(n int) { bufferBytes = n }(bufferBytes)
	bufferBytes = 3000
	f := newFake(t, tiny())
	cache := t.TempDir()
	steps := map[string]bool{}
	for at := 0; ; at++ {
		if err := os.RemoveAll(cache); err != nil {
			t.Fatal(err)
		}
		c, _ := f.client()
		c.Parallel = 1
		n := 0
		c.sys.step = func(what string) error {
			if n++; n > at {
				steps[what] = true
				return errKilled
			}
			return nil
		}
		_, err := pullOf(c, cache, repo)
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		path, lost := (hubcache.Ref{Repo: repo}).Locate(cache)
		if lost == nil {
			holds(t, path, f.model, wanted...)
		}
		if err == nil {
			if lost != nil || at < 20 {
				t.Errorf("%d steps, %v", at, lost)
			}
			break
		}
		c.sys.step = func(string) error { return nil }
		r, err := pullOf(c, cache, repo)
		if err != nil {
			t.Fatalf("after a kill at step %d: %v", at, err)
		}
		holds(t, r.Path, f.model, wanted...)
	}
	if f.seen("cdn /signed/model-00001-of-00002.safetensors bytes=") == 0 {
		t.Error("no download went on where it ended")
	}
	for _, what := range []string{"open", "write", "sync", "rename", "name"} {
		if !steps[what] {
			t.Errorf("there was no kill before %q", what)
		}
	}
}

// TestDamagedRest: what an earlier program left is only used if the whole has the right hash.
func TestDamagedRest(t *testing.T) {
	for name, rest := range map[string][]byte{"other": text("other", 4000), "too long": text("one", 20000), "whole and other": text("other", 9000)} {
		f, cache := newFake(t, tiny()), t.TempDir()
		blobs := filepath.Join(cache, "models--acme--Tiny-MoE", "blobs")
		if err := os.MkdirAll(blobs, 0o755); err != nil {
			t.Fatal(err)
		}
		left := filepath.Join(blobs, sum(f.model["model-00001-of-00002.safetensors"])+".incomplete")
		if err := os.WriteFile(left, rest, 0o644); err != nil {
			t.Fatal(err)
		}
		c, _ := f.client()
		r, err := pullOf(c, cache, repo)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		holds(t, r.Path, f.model, wanted...)
	}
}

// TestCancel: a cancelled download says so, and goes on later.
func TestCancel(t *testing.T) {
	f, cache := newFake(t, tiny()), t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	f.before = func(w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if host == "cdn" && n == 0 && strings.Contains(r.URL.Path, "00001") {
			w.Header().Set("Content-Length", "9000")
			w.Write(f.model["model-00001-of-00002.safetensors"][:5000])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return true
		}
		return false
	}
	c, _ := f.client()
	c.Parallel = 1
	c.Progress = func(done, all int64) {
		if done == 5000 { // of the first and largest file
			cancel()
		}
	}
	if _, err := c.Pull(ctx, cache, hubcache.Ref{Repo: repo}, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := pullOf(c, cache, repo); err != nil {
		t.Fatal(err)
	}
	if f.seen("cdn /signed/model-00001-of-00002.safetensors bytes=5000-") != 1 {
		t.Errorf("%q", f.requests)
	}
}

// TestTogether: two downloads of a model at once both succeed, and each file comes once.
func TestTogether(t *testing.T) {
	f, cache := newFake(t, tiny()), t.TempDir()
	waiting, release := make(chan struct{}, 1), make(chan struct{})
	f.before = func(w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if host == "cdn" {
			<-release // until the other one waits for the lock
		}
		return false
	}
	go func() {
		<-waiting
		close(release)
	}()
	var both sync.WaitGroup
	for range 2 {
		c, _ := f.client()
		c.sys.sleep = func(ctx context.Context, _ time.Duration) error { return sleep(ctx, time.Millisecond) }
		c.Say = func(line string) {
			if strings.Contains(line, "another program downloads it") {
				select {
				case waiting <- struct{}{}:
				default:
				}
			}
		}
		both.Go(func() {
			r, err := pullOf(c, cache, repo)
			if err != nil {
				t.Error(err)
				return
			}
			holds(t, r.Path, f.model, wanted...)
		})
	}
	both.Wait()
	if n := f.seen("cdn "); n != 2 {
		t.Errorf("%d downloads: %q", n, f.requests)
	}
}

// TestDisk: a disk that is too small is found before anything is downloaded, and one that fills up leaves what came.
func TestDisk(t *testing.T) {
	f, cache := newFake(t, tiny()), t.TempDir()
	c, _ := f.client()
	c.sys.free = func(string) (int64, error) { return 17000, nil }
	_, err := pullOf(c, cache, repo)
	if err == nil || !strings.Contains(err.Error(), "17751 bytes (0.0 GB) are missing, and "+cache) || !strings.Contains(err.Error(), "has room for 17000") || len(f.requests) != 1 {
		t.Errorf("%v, %q", err, f.requests)
	}
	c.sys.free = freeSpace
	writes := 0
	c.sys.step = func(what string) error {
		if what == "write" {
			if writes++; writes > 1 {
				return &os.PathError{Op: "write", Path: "blob", Err: syscall.ENOSPC}
			}
		}
		return nil
	}
	c.Parallel = 1
	if _, err = pullOf(c, cache, repo); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "the same command goes on there") {
		t.Errorf("%v", err)
	}
	c.sys.step = func(string) error { return nil }
	if _, err := pullOf(c, cache, repo); err != nil {
		t.Error(err)
	}
}

// TestWithoutLinks: where there are no symbolic links, names are hard links, else the files themselves.
func TestWithoutLinks(t *testing.T) {
	no := func(string, string) error { return syscall.EPERM }
	model := tiny()
	model["generation_config.json"] = model["config.json"] // one content under two names
	names := append([]string{"generation_config.json"}, wanted...)
	for _, hard := range []bool{true, false} {
		f, cache := newFake(t, model), t.TempDir()
		c, _ := f.client()
		c.sys.symlink = no
		if !hard {
			c.sys.link = no
		}
		for range 2 {
			r, err := pullOf(c, cache, repo)
			if err != nil {
				t.Fatal(err)
			}
			holds(t, r.Path, model, names...)
		}
		if n := f.seen("cdn "); n != 2 {
			t.Errorf("%d downloads", n)
		}
	}
}

// TestTokens: which token is used, and where it goes.
func TestTokens(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"} {
		t.Setenv(name, "")
	}
	t.Setenv("HF_HOME", home)
	if got := UserToken(); got != "" {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(filepath.Join(home, "token"), []byte("stored\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := UserToken(); got != "stored" {
		t.Errorf("%q", got)
	}
	t.Setenv("HF_TOKEN", "given")
	if got := UserToken(); got != "given" {
		t.Errorf("%q", got)
	}
	for hub, want := range map[string]string{"": "t", "https://x.example": "t", "http://127.0.0.1:1": "t", "http://localhost": "t", "http://x.example": ""} {
		if c, err := New(hub, "t"); err != nil || c.Token != want {
			t.Errorf("%s: %+v, %v", hub, c, err)
		}
	}
	for _, hub := range []string{"x.example", "ftp://x.example", "https://user:pw@x.example", "https://x.example?q", "https://"} {
		if _, err := New(hub, ""); err == nil {
			t.Errorf("%s is a hub", hub)
		}
	}
	plain, err := New("http://x.example", "t")
	if err != nil {
		t.Fatal(err)
	}
	if err := plain.explain(&statusError{code: http.StatusUnauthorized, hub: true}, repo, "main"); !strings.Contains(err.Error(), "sent over TLS only") {
		t.Error(err)
	}
	if _, err := New("", "a\nb"); err == nil || strings.Contains(err.Error(), "a\nb") {
		t.Errorf("%v", err)
	}
	f := newFake(t, tiny())
	tokens := map[string]bool{}
	f.before = func(_ http.ResponseWriter, r *http.Request, host string, _ int) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		tokens[host+r.Header.Get("Authorization")] = true
		return false
	}
	c, _ := f.client()
	if _, err := pullOf(c, t.TempDir(), repo); err != nil || len(tokens) != 2 || !tokens["hubBearer hf_secret"] || !tokens["cdn"] {
		t.Errorf("%v, %v", tokens, err)
	}
}
