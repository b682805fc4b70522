package webui

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"krater/actors/engine"
	"krater/actors/trace"
	"krater/transport/api"
)

// export is GET /trace/export: the trace as a file that ui.perfetto.dev opens, of the last "steps"
// (default 200), of one "request", or of all that the rings hold ("steps=all").
func (p *Page) export(w http.ResponseWriter, r *http.Request) {
	g := p.src.Trace()
	if g == nil {
		loading().Write(w)
		return
	}
	release := p.exports.Take(p.opt.Peer(r))
	if release == nil {
		busy("too many exports of the trace").Write(w)
		return
	}
	defer release()
	q := r.URL.Query()
	var tracks []trace.Track
	switch {
	case q.Has("request"):
		id, err := strconv.ParseUint(q.Get("request"), 10, 64)
		if err != nil {
			api.BadRequest("", "request", "request: want a number").Write(w)
			return
		}
		tracks = g.Request(id, p.opt.MaxEvents)
	case q.Get("steps") == "all":
		tracks = g.Snapshot(0)
	default:
		n := 200
		if s := q.Get("steps"); s != "" {
			var err error
			if n, err = strconv.Atoi(s); err != nil || n < 1 {
				api.BadRequest("", "steps", "steps: want a number from 1 on, or all").Write(w)
				return
			}
		}
		tracks, _ = g.Steps(n, p.opt.MaxEvents)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Disposition", `attachment; filename="krater-trace.json"`)
	_ = trace.WriteChrome(w, tracks, g.Devices())
}

// busy returns a 503 for a client that may try again in a moment.
func busy(message string) *api.Error {
	return &api.Error{Status: http.StatusServiceUnavailable, Type: api.TypeServer, Code: api.CodeOverloaded, Message: message, RetryAfter: time.Second}
}

// recordEvery is how often a recording reads the rings, which hold a few seconds.
const recordEvery = 100 * time.Millisecond

// record is GET /trace/record?seconds=N: every event from now on, one JSON list per line. The first
// line has the names of devices; each other one has an actor's name and then its events in the form
// of wire.
func (p *Page) record(w http.ResponseWriter, r *http.Request) {
	g := p.src.Trace()
	if g == nil {
		loading().Write(w)
		return
	}
	// A foreign page cannot read the answer, but could have it made again and again.
	site := r.Header.Get("Sec-Fetch-Site")
	if foreign := site == "cross-site" || site == "same-site"; foreign && (r.Header.Get("Origin") == "" || !p.opt.AllowOrigin(r)) {
		(&api.Error{Status: http.StatusForbidden, Type: api.TypeInvalidRequest, Message: "pages of this origin may not record the trace"}).Write(w)
		return
	}
	seconds, err := strconv.ParseFloat(r.URL.Query().Get("seconds"), 64)
	if err != nil || !(seconds > 0 && seconds <= p.opt.RecordMax.Seconds()) {
		api.BadRequest("", "seconds", "seconds: want more than 0 and at most %v", p.opt.RecordMax.Seconds()).Write(w)
		return
	}
	release := p.recordings.Take(p.opt.Peer(r))
	if release == nil {
		busy("too many recordings of the trace").Write(w)
		return
	}
	defer release()
	defer g.Watch()()
	g.Refresh()
	next := map[string]uint64{}
	for _, ring := range g.Rings() {
		_, next[ring.Name()] = ring.Read(nil, 0)
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	end := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer end.Stop()
	tick := time.NewTicker(recordEvery)
	defer tick.Stop()
	control := http.NewResponseController(w)
	if json.NewEncoder(w).Encode(g.Devices()) != nil || control.Flush() != nil {
		return
	}
	for over := false; !over; {
		select {
		case <-tick.C:
		case <-end.C:
			over = true
		case <-p.opt.Draining:
			over = true
		case <-r.Context().Done():
			return
		}
		_ = control.SetWriteDeadline(time.Now().Add(p.opt.WriteWait))
		if writeRings(json.NewEncoder(w), g, next) != nil || control.Flush() != nil {
			return
		}
	}
}

// writeRings writes what rings have got since the numbers in next.
func writeRings(out *json.Encoder, g *trace.Registry, next map[string]uint64) error {
	var events []trace.Event
	var err error
	g.Each(func(ring *trace.Ring) {
		events, next[ring.Name()] = ring.Read(events[:0], next[ring.Name()])
		if len(events) == 0 || err != nil {
			return
		}
		line := []any{ring.Name()}
		for i := range events {
			line = append(line, wire(0, &events[i]))
		}
		err = out.Encode(line)
	})
	return err
}

// cancel is POST /trace/requests/{id}/cancel. It refuses pages of another origin even without keys,
// and finds only the sender's own requests.
func (p *Page) cancel(w http.ResponseWriter, r *http.Request) {
	if !p.opt.AllowOrigin(r) {
		(&api.Error{Status: http.StatusForbidden, Type: api.TypeInvalidRequest, Message: "pages of this origin may not cancel requests"}).Write(w)
		return
	}
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err == nil {
		owner := p.opt.Owner(r)
		for _, q := range p.src.Running() {
			if q.ID == id && q.Owner == owner && q.Phase != engine.Ended {
				p.src.Cancel(id)
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
	}
	(&api.Error{Status: http.StatusNotFound, Type: api.TypeNotFound, Code: "not_found", Message: "no such request is open"}).Write(w)
}
