package client

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"krater/transport/api"
)

// TestUpload: the form has what the server wants; a file that cannot be read to its end is no
// upload.
func TestUpload(t *testing.T) {
	whole := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, head, err := r.FormFile("file")
		if err != nil {
			api.BadRequest("incomplete_body", "", "%v", err).Write(w)
			return
		}
		defer f.Close()
		data, err := io.ReadAll(f)
		if err != nil || string(data) != "content" || head.Filename != "a b.jsonl" || r.FormValue("purpose") != "batch" || r.Header.Get("Authorization") != "Bearer key" {
			t.Errorf("%v: %q, %+v, %v", err, data, head, r.Form)
		}
		whole++
		api.WriteJSON(w, http.StatusOK, api.File{ID: "file-1"})
	}))
	defer s.Close()
	c := New(s.URL, "key", s.Client())
	if f, err := c.Upload(t.Context(), "a b.jsonl", strings.NewReader("content")); err != nil || f.ID != "file-1" {
		t.Errorf("%+v, %v", f, err)
	}
	broken := errors.New("broken disk")
	if _, err := c.Upload(t.Context(), "a", io.MultiReader(strings.NewReader("con"), iotest.ErrReader(broken))); !errors.Is(err, broken) || whole != 1 {
		t.Errorf("%v, %d uploads", err, whole)
	}
}

// TestContentBreaksOff: half a file is an error, never a file.
func TestContentBreaksOff(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
	}))
	defer s.Close()
	body, err := New(s.URL, "", s.Client()).Content(t.Context(), "file-1")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if data, err := io.ReadAll(body); !errors.Is(err, io.ErrUnexpectedEOF) || string(data) != "half" {
		t.Errorf("%q, %v", data, err)
	}
}
