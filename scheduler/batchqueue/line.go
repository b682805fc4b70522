package batchqueue

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

const (
	// FaultsMax is the largest number of faults in the list of a refused file.
	FaultsMax = 100
	// customIDMax bounds a line's custom_id, in bytes.
	customIDMax = 512
	// echoMax bounds what a fault repeats of the client's own text, in bytes.
	echoMax = 96
)

// Fault describes an error in a line, or in the whole file (Line 0).
type Fault struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Param   string `json:"param,omitzero"`
	Line    int    `json:"line,omitzero"` // from 1, counting blank lines
}

// The codes of faults.
const (
	FaultEmpty     = "empty_file"
	FaultLines     = "too_many_lines"
	FaultMissing   = "input_missing"
	FaultLong      = "line_too_long"
	FaultJSON      = "invalid_json_line"
	FaultCustomID  = "invalid_custom_id"
	FaultDuplicate = "duplicate_custom_id"
	FaultMethod    = "invalid_method"
	FaultURL       = "invalid_url"
	FaultBody      = "invalid_body"
	FaultModel     = "model_not_found"
	FaultStream    = "unsupported_parameter"
)

// Raw is one line of an input file that is not blank.
type Raw struct {
	Index  int    // from 0, without blank lines: the line's name in the store
	Number int    // from 1, with them: what a person counts
	Text   []byte // without its end; valid until the next call of Next
	Long   bool   // it is over the limit, and Text only its beginning
}

// Reader divides an input file into lines. It holds one line in memory.
type Reader struct {
	in    *bufio.Reader
	limit int // bytes of a line
	text  []byte
	next  Raw
}

// NewReader reads lines of at most limit bytes; longer ones are cut and marked.
func NewReader(r io.Reader, limit int) *Reader {
	return &Reader{in: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// Next returns the next line, and io.EOF after the last one.
func (r *Reader) Next() (Raw, error) {
	for {
		line, err := r.line()
		if err != nil {
			return Raw{}, err
		}
		if r.next.Number++; r.next.Number == 1 {
			line.Text = bytes.TrimPrefix(line.Text, []byte("\uFEFF")) // of editors that mark UTF-8
		}
		if line.Text = bytes.Trim(line.Text, " \t\r"); len(line.Text) == 0 && !line.Long {
			continue
		}
		line.Index, line.Number = r.next.Index, r.next.Number
		r.next.Index++
		return line, nil
	}
}

// line reads up to a line's end or the file's.
func (r *Reader) line() (Raw, error) {
	var out Raw
	r.text = r.text[:0]
	for {
		part, err := r.in.ReadSlice('\n')
		if room := r.limit - len(r.text); len(bytes.TrimRight(part, "\r\n")) > room {
			out.Long = true
			part = part[:room]
		}
		if !out.Long || len(r.text) < r.limit {
			r.text = append(r.text, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(r.text) == 0 && !out.Long:
			return Raw{}, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return Raw{}, err
		}
		out.Text = bytes.TrimSuffix(r.text, []byte("\n"))
		return out, nil
	}
}

// Line is a request of a batch.
type Line struct {
	CustomID string
	Body     jsontext.Value // a JSON object; shares Raw.Text
}

// Spec holds the values that all lines of a batch share.
type Spec struct {
	Endpoint string // their url
	Model    string // the served model
}

// wireLine is a line as clients write it.
type wireLine struct {
	CustomID *string        `json:"custom_id"`
	Method   *string        `json:"method"`
	URL      *string        `json:"url"`
	Body     jsontext.Value `json:"body"`
}

// Parse reads a line and checks the rules for lines of a batch. The endpoint checks
// its own rules. A faulty line also keeps its custom id, if it has one.
func (s *Spec) Parse(raw Raw) (Line, *Fault) {
	fault := func(code, param, format string, args ...any) *Fault {
		return &Fault{Code: code, Param: param, Line: raw.Number, Message: fmt.Sprintf(format, args...)}
	}
	if raw.Long {
		return Line{CustomID: customID(raw.Text)}, fault(FaultLong, "", "the line is longer than a request may be")
	}
	var w wireLine
	if err := json.Unmarshal(raw.Text, &w, json.RejectUnknownMembers(true)); err != nil {
		line := Line{CustomID: customID(raw.Text)}
		if known, ok := errors.AsType[*json.SemanticError](err); ok {
			return line, fault(FaultJSON, "", "the line must be an object of custom_id, method, url and body: wrong at '%s'", clip(string(known.JSONPointer)))
		}
		return line, fault(FaultJSON, "", "the line is not valid JSON")
	}
	if w.CustomID == nil || *w.CustomID == "" || len(*w.CustomID) > customIDMax {
		return Line{}, fault(FaultCustomID, "custom_id", "'custom_id' must be a string of 1 to %d bytes", customIDMax)
	}
	line := Line{CustomID: *w.CustomID, Body: w.Body}
	switch {
	case w.Method == nil || *w.Method != "POST":
		return line, fault(FaultMethod, "method", "'method' must be POST")
	case w.URL == nil || *w.URL != s.Endpoint:
		return line, fault(FaultURL, "url", "'url' must be the batch's endpoint, %s", s.Endpoint)
	case len(w.Body) == 0 || w.Body.Kind() != '{':
		return line, fault(FaultBody, "body", "'body' must be an object")
	}
	return line, s.body(line.Body, fault)
}

// customID finds the custom id of a line that is refused. The line need not be whole, and
// may have members that are unknown or come twice. It is "" where there is no valid id.
func customID(text []byte) string {
	d := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true))
	if open, err := d.ReadToken(); err != nil || open.Kind() != '{' {
		return ""
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return ""
		}
		if name.String() != "custom_id" || d.PeekKind() != '"' {
			if d.SkipValue() != nil {
				return ""
			}
			continue
		}
		id, err := d.ReadToken()
		if err != nil || len(id.String()) > customIDMax {
			return ""
		}
		return id.String()
	}
	return ""
}

// body looks for what a line of a batch must not ask. A field of a wrong type is left
// to the endpoint, which names it.
func (s *Spec) body(body jsontext.Value, fault func(code, param, format string, args ...any) *Fault) *Fault {
	var b struct {
		Model      jsontext.Value `json:"model"`
		Stream     jsontext.Value `json:"stream"`
		Background jsontext.Value `json:"background"`
	}
	if err := json.Unmarshal(body, &b); err != nil {
		return fault(FaultJSON, "body", "the body is not valid JSON")
	}
	var model string
	if b.Model.Kind() == '"' && json.Unmarshal(b.Model, &model) == nil && model != s.Model {
		return fault(FaultModel, "body.model", "the model '%s' does not exist; this batch is for '%s'", clip(model), s.Model)
	}
	switch {
	case b.Stream.Kind() == 't':
		return fault(FaultStream, "body.stream", "'stream' has no meaning in a batch")
	case b.Background.Kind() == 't':
		return fault(FaultStream, "body.background", "'background' has no meaning in a batch")
	}
	return nil
}

// clip bounds text of the client, on a character's border.
func clip(s string) string {
	if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) <= echoMax {
		return s
	}
	cut := echoMax
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// names finds custom ids that come twice. It keeps 16 bytes of a hash of each, so that
// long ids take no more memory than short ones.
type names map[[16]byte]struct{}

// add reports whether the id is new.
func (n names) add(id string) bool {
	sum := sha256.Sum256([]byte(id))
	key := [16]byte(sum[:16])
	if _, there := n[key]; there {
		return false
	}
	n[key] = struct{}{}
	return true
}
