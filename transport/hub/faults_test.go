package hub

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

// passing is a fault of the server that passes.
type passing struct {
	before func(f *fake, w http.ResponseWriter, r *http.Request, host string, n int) bool
	asked  string        // a request that must come
	wait   time.Duration // one that must be waited
}

var faults = map[string]passing{
	"dropped connections": {func(f *fake, w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if host == "cdn" && n == 0 && strings.HasSuffix(r.URL.Path, one) {
			cut(w, f.model[one], 4096)
		}
		return false
	}, "cdn /signed/" + one + " bytes=4096-", 0},
	"no ranges": {func(f *fake, w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if host == "cdn" && n == 0 {
			name := strings.TrimPrefix(r.URL.Path, "/signed/")
			cut(w, f.model[name], 4096)
		}
		r.Header.Del("Range")
		return false
	}, "cdn /signed/" + one + " bytes=4096-", 0},
	"a dropped list": {func(f *fake, w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if strings.Contains(r.URL.Path, "/api/") && n == 0 {
			cut(w, f.list(), 100)
		}
		return false
	}, "", 0},
	"wait": {func(_ *fake, w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if host == "hub" && n < 2 && strings.Contains(r.URL.Path, "/api/") {
			w.Header().Set("Retry-After", "77")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		return false
	}, "", 77 * time.Second},
	"wait until": {func(_ *fake, w http.ResponseWriter, _ *http.Request, host string, n int) bool {
		if host == "cdn" && n < 2 {
			w.Header().Set("Date", "Sun, 06 Nov 1994 08:49:00 GMT")
			w.Header().Set("Retry-After", "Sun, 06 Nov 1994 08:49:37 GMT")
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}, "", 37 * time.Second},
	"expired links": {func(_ *fake, w http.ResponseWriter, _ *http.Request, host string, n int) bool {
		if host == "cdn" && n == 0 {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	}, "", 0},
	"another file in between": {func(f *fake, w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if host == "cdn" && n == 0 && strings.HasSuffix(r.URL.Path, one) {
			w.Header().Set("ETag", `"old"`)
			cut(w, text("other", len(f.model[one])), 4096)
		}
		return false
	}, "cdn /signed/" + one + " bytes=4096-", 0},
	"no length": {func(f *fake, w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if host == "cdn" && r.Header.Get("Range") == "" {
			name := strings.TrimPrefix(r.URL.Path, "/signed/")
			half := len(f.model[name]) / 2
			w.Write(f.model[name][:half])
			_ = http.NewResponseController(w).Flush()
			if n > 0 {
				w.Write(f.model[name][half:])
			}
			return true // the first answer ends early, and looks whole
		}
		return false
	}, "cdn /signed/" + one + " bytes=4500-", 0},
	"a range that is none": {func(_ *fake, w http.ResponseWriter, r *http.Request, host string, n int) bool {
		if r.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return true
		}
		if host == "cdn" && n == 0 {
			cut(w, make([]byte, 9000), 10)
		}
		return false
	}, "", 0},
}

// TestFaults: what the server does wrong in passing costs an attempt and no bytes that came before.
func TestFaults(t *testing.T) {
	for name, x := range faults {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, tiny())
			f.before = func(w http.ResponseWriter, r *http.Request, host string, n int) bool {
				return x.before(f, w, r, host, n)
			}
			c, s := f.client()
			if name == "a range that is none" {
				f.listed = f.model
				f.model["model-00002-of-00002.safetensors"] = text("two", 9000) // what cut says of all
			}
			r, err := pullOf(c, t.TempDir(), repo)
			if err != nil {
				t.Fatal(err)
			}
			holds(t, r.Path, f.model, wanted...)
			if x.asked != "" && f.seen(x.asked) == 0 {
				t.Errorf("no request %q in %q", x.asked, f.requests)
			}
			waited := x.wait == 0
			for _, d := range s.all {
				waited = waited || d == x.wait
			}
			if !waited || len(s.all) == 0 {
				t.Errorf("waits %v, want one of %v", s.all, x.wait)
			}
		})
	}
}

// answer takes the place of the server's if it returns true.
type answer = func(f *fake, w http.ResponseWriter, r *http.Request, host string) bool

// status answers requests to a host and path.
func status(where string, code int, header ...string) answer {
	return func(_ *fake, w http.ResponseWriter, r *http.Request, host string) bool {
		if !strings.Contains(host+r.URL.Path, where) {
			return false
		}
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		return true
	}
}

// content sends something else for a file.
func content(name string, data []byte) answer {
	return func(_ *fake, w http.ResponseWriter, r *http.Request, host string) bool {
		if host == "hub" && large(name) || !strings.HasSuffix(r.URL.Path, name) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.Write(data)
		return true
	}
}

// refusal is an answer that does not get better.
type refusal struct {
	before  answer
	noToken bool
	want    string
}

var refusals = map[string]refusal{
	"gated":           {status("/resolve/", 403, "X-Error-Code", "GatedRepo"), false, "acme/Tiny-MoE is gated: accept its terms on HUB/acme/Tiny-MoE with the account"},
	"gated, no token": {status("/resolve/", 401, "X-Error-Code", "GatedRepo"), true, "and set HF_TOKEN"},
	"private":         {status("/api/", 401), true, "acme/Tiny-MoE does not exist, or it is private or gated. Look at HUB/acme/Tiny-MoE; for a model that needs a login set HF_TOKEN"},
	"a bad token":     {status("/api/", 401), false, "the hub does not accept the token"},
	"no right":        {status("/api/", 403), false, "the token may not read acme/Tiny-MoE"},
	"unknown":         {status("/api/", 404, "X-Error-Code", "RepoNotFound"), false, "HUB has no model acme/Tiny-MoE"},
	"no revision":     {status("/api/", 404, "X-Error-Code", "RevisionNotFound"), false, "acme/Tiny-MoE has no revision main"},
	"a long wait":     {status("/api/", 429, "Retry-After", "3600"), false, "it asks for a wait of 1h0m0s"},
	"always busy":     {status("cdn/signed/"+two, 500), false, two + ": CDN answers 500 Internal Server Error; given up after 7 attempts"},
	"never a link":    {status("cdn/signed/"+two, 403), false, "given up after 7 attempts"},
	"too long":        {content(two, text("two", 5002)), false, two + ": the server's file has another size than the hub's list says: 5002 bytes, not 5001"},
	"too long, without a length": {func(_ *fake, w http.ResponseWriter, r *http.Request, host string) bool {
		if !strings.Contains(host+r.URL.Path, "cdn/signed/"+two) {
			return false
		}
		w.Write(text("two", 5000))
		_ = http.NewResponseController(w).Flush()
		w.Write(text("two", 5000))
		return true
	}, false, "more than 5001 bytes"},
	"too short":        {content(two, text("two", 5000)), false, "5000 bytes, not 5001"},
	"other content":    {content(two, text("owt", 5001)), false, two + ": its content has not the hash that the hub names"},
	"other small file": {content("config.json", text("gifnoc", 700)), false, "config.json: its content has not the hash"},
	"redirects": {func(f *fake, w http.ResponseWriter, r *http.Request, host string) bool {
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
		return true
	}, false, "more than 10 redirects"},
	"a wrong range": {func(f *fake, w http.ResponseWriter, r *http.Request, host string) bool {
		if host != "cdn" || !strings.HasSuffix(r.URL.Path, one) {
			return false
		}
		if r.Header.Get("Range") == "" {
			cut(w, f.model[one], 100)
		}
		w.Header().Set("Content-Range", "bytes 0-8999/9000")
		w.WriteHeader(http.StatusPartialContent)
		return true
	}, false, one + `: the server was asked for the bytes from 100 on and sends "bytes 0-8999/9000"`},
	"not a list": {func(f *fake, w http.ResponseWriter, r *http.Request, host string) bool {
		fmt.Fprint(w, "<html>login</html>")
		return true
	}, false, "the hub's list of files cannot be read"},
}

// TestRefusals: what does not get better ends the download, with what to do, and leaves no file under its name.
func TestRefusals(t *testing.T) {
	for name, x := range refusals {
		t.Run(name, func(t *testing.T) {
			f, cache := newFake(t, tiny()), t.TempDir()
			f.before = func(w http.ResponseWriter, r *http.Request, host string, _ int) bool { return x.before(f, w, r, host) }
			c, _ := f.client()
			if x.noToken {
				c.Token = ""
			}
			_, err := pullOf(c, cache, repo)
			want := strings.NewReplacer("HUB", f.hub.URL, "CDN", strings.TrimPrefix(f.cdn.URL, "http://")).Replace(x.want)
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v\nwant %s", err, want)
			}
			if _, err := os.Stat(filepath.Join(cache, "models--acme--Tiny-MoE", "snapshots")); err == nil {
				t.Error("there is a snapshot")
			}
			if strings.Contains(want, "hash") {
				left, _ := filepath.Glob(filepath.Join(cache, "*", "blobs", sum(f.model[two])+"*"))
				if len(left) > 0 && strings.HasPrefix(want, two) {
					t.Errorf("%q is not discarded", left)
				}
			}
		})
	}
}
