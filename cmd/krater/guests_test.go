package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// client makes visits until ctx ends; a visit that has begun goes on to its end.
func (c *crowd) client(ctx context.Context, r *rand.Rand) {
	for ctx.Err() == nil {
		visit, done := context.WithTimeout(context.Background(), patience)
		s := c.guest(r)
		switch n := r.IntN(100); {
		case n < 55:
			c.askToTheEnd(visit, s, r)
		case n < 70:
			c.leaveEarly(visit, s, r)
		case n < 77:
			c.giveUp(visit, s, r)
		case n < 90:
			c.talkInLanes(visit, s, r)
		default:
			c.sendGarbage(visit, s, r)
		}
		if s != c.s {
			s.http.CloseIdleConnections()
		}
		done()
	}
}

// guest is the site with connections shared with others or, half of the time,
// of its own.
func (c *crowd) guest(r *rand.Rand) *site {
	if r.IntN(2) == 0 {
		return c.s
	}
	return &site{t: c.s.t, base: c.s.base, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: r.IntN(2) == 0}}}
}

// pick chooses a question and a way to ask it; those of the OpenAI API take every question.
func (c *crowd) pick(r *rand.Rand, from []route) (exam, route) {
	for {
		way := from[r.IntN(len(from))]
		if e := c.exam(r, way.raw); way.takes(e.question) {
			return e, way
		}
	}
}

// exam chooses a question; there is at least one of each kind.
func (c *crowd) exam(r *rand.Rand, raw bool) exam {
	for {
		if e := c.exams[r.IntN(len(c.exams))]; e.raw == raw {
			return e
		}
	}
}

// askToTheEnd reads all of an answer, at times slowly.
func (c *crowd) askToTheEnd(ctx context.Context, s *site, r *rand.Rand) {
	e, way := c.pick(r, everyRoute())
	see := idle
	if r.IntN(8) == 0 {
		pause := time.Duration(1+r.IntN(30)) * time.Millisecond
		see = func(string) error {
			<-time.After(pause)
			return nil
		}
	}
	got, err := way.ask(ctx, s, e.question, see)
	switch {
	case c.busy(err):
	case err != nil:
		c.fault("%s: %v", way.name, err)
	default:
		c.grade(way.name, e, got)
	}
}

// leaveEarly drops the connection after some pieces of text.
func (c *crowd) leaveEarly(ctx context.Context, s *site, r *rand.Rand) {
	e, way := c.pick(r, streams(question{}))
	after := r.IntN(12)
	got, err := way.ask(ctx, s, e.question, func(string) error {
		if after--; after < 0 {
			return errLeft
		}
		return nil
	})
	switch {
	case errors.Is(err, errLeft):
		c.count("left in the middle")
	case c.busy(err):
	case err != nil:
		c.fault("leaving %s: %v", way.name, err)
	default:
		c.grade(way.name, e, got)
	}
}

// giveUp cuts a request after some time, wherever it is then.
func (c *crowd) giveUp(ctx context.Context, s *site, r *rand.Rand) {
	e, way := c.pick(r, everyRoute())
	limit := time.Duration(r.IntN(400)) * time.Millisecond
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	got, err := way.ask(short, s, e.question, idle)
	switch {
	case c.busy(err):
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), err != nil && short.Err() != nil:
		c.count("gave up")
	case err != nil:
		c.fault("giving up %s: %v", way.name, err)
	default:
		c.grade(way.name, e, got)
	}
}

// lane is one of several answers on a connection.
type lane struct {
	follower
	exam   exam
	cancel int // pieces after which it is cancelled; < 0: never
}

// talkInLanes asks several questions at once on one WebSocket, cancels some and
// at times vanishes without a word.
func (c *crowd) talkInLanes(ctx context.Context, s *site, r *rand.Rand) {
	ws, err := s.dial(ctx)
	if err != nil {
		c.fault("lanes: %v", err)
		return
	}
	defer ws.NetConn().Close()
	lanes := map[string]*lane{}
	for i := range 1 + r.IntN(4) {
		e := c.exam(r, false)
		l := &lane{exam: e, cancel: r.IntN(30) - 20}
		l.see = idle
		name := fmt.Sprint("lane-", i)
		lanes[name] = l
		if err := ws.WriteMessage(websocket.TextMessage, e.create(name)); err != nil {
			c.fault("lanes: %v", err)
			return
		}
	}
	vanish := -1
	if r.IntN(4) == 0 {
		vanish = r.IntN(40)
	}
	for events := 0; len(lanes) > 0; events++ {
		if events == vanish {
			c.count("vanished from a WebSocket")
			return
		}
		if err := c.lanesEvent(ws, lanes); err != nil {
			c.fault("lanes: %v", err)
			return
		}
	}
	if err := hangUp(ws); err != nil {
		c.fault("lanes: %v", err)
	}
}

// lanesEvent reads one frame and acts on it; ended lanes are taken out.
func (c *crowd) lanesEvent(ws *websocket.Conn, lanes map[string]*lane) error {
	e, err := readEvent(ws)
	if e == nil {
		return err
	}
	l := lanes[e.StreamID]
	switch {
	case l == nil:
		// A cancel may come too late for its answer.
		if e.Type == "error" && e.Error.Code == "response_cancel_not_active" {
			return nil
		}
		return fmt.Errorf("%s for the lane %q, which has ended or never was: %w", e.Type, e.StreamID, err)
	case e.Type == "error" && e.Error.Code == "response_cancel_not_active":
		return nil
	case e.Type == "error" && c.busy(err):
		delete(lanes, e.StreamID)
		return nil
	case err != nil:
		return err
	}
	if err := l.take(e); err != nil {
		return err
	}
	switch {
	case l.ended && l.got.finish == "cancelled":
		c.count("cancelled")
		delete(lanes, e.StreamID)
	case l.ended:
		c.grade("lanes", l.exam, l.got)
		delete(lanes, e.StreamID)
	case l.got.deltas == l.cancel && e.Type == "response.output_text.delta":
		return ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"type":"response.cancel","stream_id":%q}`, e.StreamID))
	}
	return nil
}

// garbage are requests that must be refused with their status.
var garbage = []struct {
	path, body, kind string
	status           int
}{
	{"/v1/chat/completions", `{`, "application/json", 400},
	{"/v1/chat/completions", `{"messages":[]}`, "application/json", 400},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"max_tokens":-1}`, "application/json", 400},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"temprature":1}`, "application/json", 400},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}]}`, "text/plain", 415},
	{"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}", "application/json", 400},
	{"/v1/chat/completions", strings.Repeat("[", 100000), "application/json", 400},
	{"/v1/chat/completions", `{"model":"another","messages":[{"role":"user","content":"a"}]}`, "application/json", 404},
	{"/v1/completions", `{"prompt":[99999999]}`, "application/json", 400},
	{"/v1/completions", `{"prompt":"` + strings.Repeat("word ", 5000) + `"}`, "application/json", 400},
	{"/v1/completions", `{"prompt":"a","stop":[""]}`, "application/json", 400},
	{"/v1/responses", `{"input":[{"type":"function_call"}]}`, "application/json", 400},
	{"/v1/responses", `{"input":"a","previous_response_id":"resp_none"}`, "application/json", 400},
	{"/v1/nothing", `{}`, "application/json", 404},
	{"/v1/messages", `{"messages":[{"role":"user","content":"a"}]}`, "application/json", 400},
	{"/v1/messages", `{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result"}]}]}`, "application/json", 400},
	{"/v1/messages/count_tokens", `{"messages":{}}`, "application/json", 400},
	{"/v1/responses/input_tokens", `{"input":[[]]}`, "application/json", 400},
	{"/v1/conversations", `{"items":[{"type":"message"}]}`, "application/json", 400},
	{"/api/chat", `{"messages":[{"role":"user","content":"a"}],"options":{"mirostat":2}}`, "application/json", 400},
	{"/api/generate", `{"model":"another","prompt":"a"}`, "application/json", 404},
	{"/api/show", strings.Repeat("[", 100000), "application/json", 400},
	{"/openapi.json", `{}`, "application/json", 405},
	{"/v1/models", `{}`, "application/json", 405},
}

func (c *crowd) sendGarbage(ctx context.Context, s *site, r *rand.Rand) {
	switch r.IntN(4) {
	case 0:
		c.garbageOnTheLine(r)
	case 1:
		c.garbageFrames(ctx, s, r)
	default:
		g := garbage[r.IntN(len(garbage))]
		req, err := http.NewRequestWithContext(ctx, "POST", s.base+g.path, strings.NewReader(g.body))
		if err != nil {
			c.fault("%v", err)
			return
		}
		req.Header.Set("Content-Type", g.kind)
		res, err := s.http.Do(req)
		if err != nil {
			c.fault("garbage for %s: %v", g.path, err)
			return
		}
		defer res.Body.Close()
		if err := readRefusal(res); res.StatusCode != g.status && !c.busy(err) {
			c.fault("garbage for %s: %v, want status %d", g.path, err, g.status)
			return
		}
		c.count("garbage")
	}
}

// garbageOnTheLine is no HTTP at all, or stops in the middle of it.
func (c *crowd) garbageOnTheLine(r *rand.Rand) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.s.base, "http://"))
	if err != nil {
		c.fault("%v", err)
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte([]string{
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "GET /v1/mod", "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"prom",
		"GET /v1/responses HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "\r\n\r\n\x00\x00\x00",
	}[r.IntN(5)]))
	c.count("garbage on the line")
}

// garbageFrames are refused one by one, and the connection answers still.
func (c *crowd) garbageFrames(ctx context.Context, s *site, r *rand.Rand) {
	ws, err := s.dial(ctx)
	if err != nil {
		c.fault("garbage frames: %v", err)
		return
	}
	defer ws.NetConn().Close()
	for _, frame := range []string{`{`, `{"type":"nope"}`, `{"type":"response.create"}`, `{"type":"response.cancel","response_id":"resp_none"}`, `[]`} {
		if err := ws.WriteMessage(websocket.TextMessage, []byte(frame)); err != nil {
			c.fault("garbage frames: %v", err)
			return
		}
		var refused *refusal
		if _, err := readEvent(ws); !errors.As(err, &refused) {
			c.fault("%s is answered with %v", frame, err)
			return
		}
	}
	if r.IntN(2) == 0 {
		_ = ws.WriteMessage(websocket.TextMessage, []byte("\xff\xfe"))
		if _, err := readEvent(ws); !websocket.IsCloseError(err, websocket.CloseInvalidFramePayloadData) {
			c.fault("a frame that is no UTF-8 is answered with %v", err)
			return
		}
		c.count("garbage frames")
		return
	}
	e := c.exam(r, false)
	got, err := converse(ws, e.question, idle)
	switch {
	case c.busy(err):
	case err != nil:
		c.fault("after garbage frames: %v", err)
	default:
		c.grade("garbage frames", e, got)
	}
}
