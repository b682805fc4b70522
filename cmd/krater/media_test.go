package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"krater/transport/api"
)

// media are content parts that are not text, by their types.
var media = map[string]string{
	"image_url":   `"image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}`,
	"image":       `"image":"data:image/png;base64,iVBORw0KGgo="`,
	"input_image": `"image_url":"https://example.com/x.png"`,
	"input_audio": `"input_audio":{"data":"UklGRg==","format":"wav"}`,
	"audio_url":   `"audio_url":{"url":"https://example.com/x.wav"}`,
	"video_url":   `"video_url":{"url":"https://example.com/x.mp4"}`,
	"input_file":  `"file_id":"file_1"`,
	"file":        `"file":{"file_id":"file_1"}`,
}

// mediaRoutes are the routes that take a conversation, with the field that holds it and the type of a text part.
var mediaRoutes = []struct{ path, field, text string }{
	{"/v1/chat/completions", "messages", "text"},
	{"/tokenize", "messages", "text"},
	{"/apply-template", "messages", "text"},
	{"/v1/responses", "input", "input_text"},
}

// mediaRequest has a part of a kind after one of text, in the second of two messages.
func mediaRequest(field, text, kind string) (body, param string) {
	body = fmt.Sprintf(`{"%[1]s":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"%[2]s","text":"b"},{"type":"%[3]s",%[4]s}]}]}`,
		field, text, kind, media[kind])
	return body, field + "[1].content[1].type"
}

// refusesMedia asks every route with every kind of part: each answer names the place of the part and its type.
func (s *site) refusesMedia() {
	s.t.Helper()
	for _, r := range mediaRoutes {
		for kind := range media {
			body, param := mediaRequest(r.field, r.text, kind)
			status, _, text := s.do(http.MethodPost, r.path, body)
			e := decode[struct{ Error api.Error }](s.t, text).Error
			if status != http.StatusBadRequest || e.Param != param || e.Code != api.CodeUnsupported || !strings.Contains(e.Message, "'"+kind+"'") {
				s.t.Errorf("%s, %s: %d %s", r.path, kind, status, text)
			}
		}
	}
}

// TestMediaIsRefused: parts that are not text are refused by place and type on every way in, those of a batch in the answer of their line.
func TestMediaIsRefused(t *testing.T) {
	s := open(t, "--batch-dir", t.TempDir())
	s.refusesMedia()
	if status, _, text := s.do(http.MethodPost, "/v1/completions", `{"prompt":"a","image":"x"}`); status != http.StatusBadRequest || !strings.Contains(text, `"param":"image"`) {
		t.Errorf("%d %s", status, text)
	}
	ctx, cancel := s.patient()
	defer cancel()
	ws, err := s.dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	var lines strings.Builder
	for kind := range media {
		body, param := mediaRequest("input", "input_text", kind)
		if err := ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"response.create",`+body[1:])); err != nil {
			t.Fatal(err)
		}
		_, err := readEvent(ws)
		var r *refusal
		if !errors.As(err, &r) || r.param != param || r.code != api.CodeUnsupported || !strings.Contains(r.message, "'"+kind+"'") {
			t.Errorf("%s: %v", kind, err)
		}
		body, _ = mediaRequest("messages", "text", kind)
		fmt.Fprintf(&lines, `{"custom_id":"%s","method":"POST","url":"/v1/chat/completions","body":%s}`+"\n", kind, body)
	}
	o := krater(t, "", "batch", "submit", write(t, "media.jsonl", lines.String()), "--url="+s.base, "--wait", "--json")
	b := decode[api.Batch](t, o.out)
	if b.RequestCounts != (api.BatchCounts{Total: len(media), Failed: len(media)}) {
		t.Fatalf("%+v", o)
	}
	failed := answers(t, "", "batch", "fetch", b.ID, "--url="+s.base, "--errors")
	for kind := range media {
		if !strings.Contains(failed, `"custom_id":"`+kind+`"`) || !strings.Contains(failed, "content parts of type '"+kind+"' are not supported") {
			t.Errorf("%s is not in %s", kind, failed)
		}
	}
}
