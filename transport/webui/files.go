package webui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html"
	"mime"
	"net/http"
	"path"

	"krater/transport/api"
)

//go:embed static
var static embed.FS

// policy lets the page load its own files and connect to its own server, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// file serves one of the embedded files.
func (p *Page) file(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serveFile(w, r, name) })
}

func (p *Page) asset(w http.ResponseWriter, r *http.Request) { serveFile(w, r, r.PathValue("name")) }

// home is the entry page, whose command line has the address that it was asked for at.
func home(w http.ResponseWriter, r *http.Request) {
	page, _ := static.ReadFile("static/home.html") // it is embedded
	at := "http://" + r.Host
	if r.TLS != nil {
		at = "https://" + r.Host
	}
	send(w, r, ".html", bytes.ReplaceAll(page, []byte("http://HOST:PORT"), []byte(html.EscapeString(at))))
}

func serveFile(w http.ResponseWriter, r *http.Request, name string) {
	data, err := static.ReadFile(path.Join("static", path.Base(name)))
	if err != nil {
		(&api.Error{Status: http.StatusNotFound, Type: api.TypeNotFound, Code: "not_found", Message: "no such path"}).Write(w)
		return
	}
	send(w, r, path.Ext(name), data)
}

// send answers with a file of a kind, unless the browser has it.
func send(w http.ResponseWriter, r *http.Request, ext string, data []byte) {
	sum := sha256.Sum256(data)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	h := w.Header()
	h.Set("Content-Type", mime.TypeByExtension(ext))
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // asked for again, answered by 304
	h.Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(data)
}
