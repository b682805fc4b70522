package hub

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"krater/stages/source/hubcache"
)

const (
	repo   = "acme/Tiny-MoE"
	commit = "0123456789abcdef0123456789abcdef01234567"
)

// text is n bytes that tell where they are from.
func text(name string, n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%s %d\n", name, i)
	}
	return b.Bytes()[:n]
}

// tiny is a model with small files and large ones.
func tiny() map[string][]byte {
	return map[string][]byte{
		"config.json": text("config", 700), "tokenizer.json": text("tokenizer", 3000), "README.md": text("readme", 100),
		"model-00001-of-00002.safetensors": text("one", 9000), "model-00002-of-00002.safetensors": text("two", 5001),
		"model.safetensors.index.json": text("index", 50), "pytorch_model.bin": text("pickle", 40), "consolidated.safetensors": text("double", 14000),
	}
}

// wanted are the files of tiny that are pulled.
var wanted = []string{"config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"}

// fake is a hub and the host of large files behind it.
type fake struct {
	t        *testing.T
	hub, cdn *httptest.Server
	model    map[string][]byte
	listed   map[string][]byte // what the list says of them; nil: model

	mu       sync.Mutex
	requests []string // "hub /path RANGE" and "cdn ..."
	// before answers a request in place of the server if it returns true. n counts the requests of the same host and path from 0 on.
	before func(w http.ResponseWriter, r *http.Request, host string, n int) bool
	counts map[string]int
}

func large(name string) bool {
	return strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".gguf")
}

func newFake(t *testing.T, model map[string][]byte) *fake {
	f := &fake{t: t, model: model, counts: map[string]int{}}
	f.cdn = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(w, r, "cdn") }))
	f.hub = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(w, r, "hub") }))
	t.Cleanup(f.cdn.Close)
	t.Cleanup(f.hub.Close)
	return f
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request, host string) {
	f.mu.Lock()
	key := host + " " + r.URL.Path
	n := f.counts[key]
	f.counts[key]++
	f.requests = append(f.requests, strings.TrimSpace(key+" "+r.Header.Get("Range")))
	f.mu.Unlock()
	if host == "cdn" && r.Header.Get("Authorization") != "" {
		f.t.Errorf("the token was sent to another host with %s", key)
	}
	if r.Header.Get("Referer") != "" {
		f.t.Errorf("%s has a Referer", key)
	}
	if f.before != nil && f.before(w, r, host, n) {
		return
	}
	if r.URL.Path == "/api/models/"+repo+"/revision/main" {
		w.Write(f.list())
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"+repo+"/resolve/"+commit+"/"), "/signed/")
	data, ok := f.model[name]
	switch {
	case !ok:
		http.NotFound(w, r)
	case host == "hub" && large(name):
		http.Redirect(w, r, f.cdn.URL+"/signed/"+name+"?signature=secret", http.StatusFound)
	default:
		w.Header().Set("ETag", `"`+sum(data)[:20]+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// list is the hub's answer about the model.
func (f *fake) list() []byte {
	type lfs struct {
		SHA256 string `json:"sha256"`
		Size   int    `json:"size"`
	}
	type sibling struct {
		Name   string `json:"rfilename"`
		Size   int    `json:"size"`
		BlobID string `json:"blobId"`
		LFS    *lfs   `json:"lfs,omitempty"`
	}
	answer := struct {
		ID       string    `json:"id"`
		SHA      string    `json:"sha"`
		Siblings []sibling `json:"siblings"`
	}{ID: repo, SHA: commit}
	model := f.listed
	if model == nil {
		model = f.model
	}
	for name, data := range model {
		h := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(data), data))
		s := sibling{Name: name, Size: len(data), BlobID: hex.EncodeToString(h[:])}
		if large(name) {
			s.LFS = &lfs{sum(data), len(data)}
		}
		answer.Siblings = append(answer.Siblings, s)
	}
	out, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	return out
}

// sleeps are the waits of a client, which do not take any time.
type sleeps struct {
	mu  sync.Mutex
	all []time.Duration
}

func (s *sleeps) sleep(ctx context.Context, d time.Duration) error {
	s.mu.Lock()
	s.all = append(s.all, d)
	s.mu.Unlock()
	return ctx.Err()
}

// client is one that does not wait.
func (f *fake) client() (*Client, *sleeps) {
	c, err := New(f.hub.URL+"/", "hf_secret")
	if err != nil {
		f.t.Fatal(err)
	}
	s := &sleeps{}
	c.sys.sleep = s.sleep
	c.Say = func(line string) {
		if strings.Contains(line, "secret") {
			f.t.Errorf("a secret in %q", line)
		}
	}
	f.t.Cleanup(c.http.CloseIdleConnections)
	return c, s
}

func (f *fake) seen(request string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if strings.HasPrefix(r, request) {
			n++
		}
	}
	return n
}

func pullOf(c *Client, cache, word string, include ...string) (*Result, error) {
	ref, err := hubcache.Parse(word)
	if err != nil {
		return nil, err
	}
	return c.Pull(context.Background(), cache, ref, include)
}

// holds fails unless a folder has exactly these files with their content.
func holds(t *testing.T, dir string, model map[string][]byte, names ...string) {
	t.Helper()
	found := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			found[filepath.ToSlash(rel)] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, model[name]) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(model[name]))
		}
		delete(found, name)
	}
	for name := range found {
		if !strings.HasSuffix(name, ".tmp") { // a kill leaves some
			t.Errorf("%s is there, too", name)
		}
	}
}

// cut sends the beginning of a file and then drops the connection.
func cut(w http.ResponseWriter, data []byte, n int) {
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	_, _ = io.Copy(w, bytes.NewReader(data[:n]))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}
