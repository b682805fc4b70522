package webui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
)

// loadState is the progress of loading a model, as GET /ready reports it.
type loadState struct {
	Phase string  `json:"phase,omitempty"`
	Share float64 `json:"share"` // 0 to 1; 0 if unknown
	Left  float64 `json:"left_seconds,omitempty"`
	Rate  string  `json:"rate,omitempty"`
}

// loadingState returns the state that is shown before the model is loaded.
func (p *Page) loadingState() *state {
	l := p.progress()
	return &state{Verdict: &verdict{Text: l.words()}, Loading: l}
}

// progress asks GET /ready; the zero state means that nothing is known.
func (p *Page) progress() *loadState {
	l := &loadState{}
	if p.opt.Ready == nil {
		return l
	}
	var answer answerBuffer
	p.opt.Ready.ServeHTTP(&answer, &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/ready"}, Header: http.Header{}})
	if json.Unmarshal(answer.Bytes(), l) != nil {
		return &loadState{}
	}
	l.Share = min(1, max(0, l.Share))
	l.Left = min(1e6, max(0, l.Left))
	return l
}

// words returns the sentence at the top.
func (l *loadState) words() string {
	text := "The model is loading"
	if l.Phase != "" {
		text += ": " + l.Phase
	}
	if l.Share > 0 {
		text += fmt.Sprintf(", %.0f %%", math.Floor(100*l.Share))
	}
	if l.Rate != "" {
		text += " at " + l.Rate
	}
	if l.Left > 0 {
		left, unit := math.Ceil(l.Left), "s"
		if left >= 120 {
			left, unit = math.Ceil(l.Left/60), "min"
		}
		text += fmt.Sprintf(", about %.0f %s left", left, unit)
	}
	return text + "."
}

// answerBuffer keeps an answer's body.
type answerBuffer struct {
	bytes.Buffer
	header http.Header
}

// Header implements http.ResponseWriter.
func (a *answerBuffer) Header() http.Header {
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

// WriteHeader implements http.ResponseWriter.
func (a *answerBuffer) WriteHeader(int) {}
