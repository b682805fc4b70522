package api

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"math"
)

// Limits of lists in a request; each is checked while reading, before more is allocated.
const (
	MaxStops     = 16   // stop strings
	MaxPriority  = 1000 // and its negative
	MaxStopBytes = 1024 // length of one stop string
	MaxStopIDs   = 128
	MaxBiases    = 1024 // entries of logit_bias
)

// StringList is a string or an array of strings, at most MaxStops. An empty string alone is an
// empty list.
type StringList []string

// UnmarshalJSONFrom reads either form; null leaves the list nil.
func (l *StringList) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	const want = "a string or an array of strings"
	switch d.PeekKind() {
	case 'n':
		*l = nil
		return d.SkipValue()
	case '"':
		var s string
		if err := json.UnmarshalDecode(d, &s); err != nil {
			return err
		}
		if *l = nil; s != "" { // which some clients write for no string
			*l = StringList{s}
		}
		return nil
	case '[':
	default:
		return wrongKind(d, want)
	}
	*l = StringList{}
	return eachElement(d, MaxStops, func() error {
		if d.PeekKind() != '"' {
			return wrongKind(d, "a string")
		}
		var s string
		if err := json.UnmarshalDecode(d, &s); err != nil {
			return err
		}
		*l = append(*l, s)
		return nil
	})
}

// IDs is a short array of token ids, at most MaxStopIDs.
type IDs []int32

// UnmarshalJSONFrom reads the array; null leaves it nil.
func (l *IDs) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == 'n' {
		*l = nil
		return d.SkipValue()
	}
	if d.PeekKind() != '[' {
		return wrongKind(d, "an array of token ids")
	}
	*l = IDs{}
	return eachElement(d, MaxStopIDs, func() error {
		id, err := readID(d)
		*l = append(*l, id)
		return err
	})
}

// LogitBias maps token ids (written as strings, as JSON keys are) to biases.
type LogitBias map[int32]float32

// UnmarshalJSONFrom reads the object; null leaves the map nil.
func (m *LogitBias) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == 'n' {
		*m = nil
		return d.SkipValue()
	}
	if d.PeekKind() != '{' {
		return wrongKind(d, "an object of token ids and biases")
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	*m = LogitBias{}
	for d.PeekKind() != '}' {
		if len(*m) == MaxBiases {
			return &ValueError{Reason: fmt.Sprintf("has more than %d entries", MaxBiases)}
		}
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		id, ok := parseID(name.String())
		if !ok {
			return &ValueError{Reason: "has a key that is not a token id"}
		}
		if _, dup := (*m)[id]; dup {
			return &ValueError{Reason: fmt.Sprintf("names token %d twice", id)}
		}
		if d.PeekKind() != '0' {
			return wrongKind(d, "a number")
		}
		var bias float64
		if err := json.UnmarshalDecode(d, &bias); err != nil {
			return err
		}
		if bias < -100 || bias > 100 {
			return &ValueError{Reason: "must be between -100 and 100"}
		}
		(*m)[id] = float32(bias)
	}
	_, err := d.ReadToken()
	return err
}

// wrongKind is the error for a value of another kind than wanted, or, where the JSON is broken at
// this place, the decoder's own.
func wrongKind(d *jsontext.Decoder, want string) error {
	if d.PeekKind() == 0 {
		_, err := d.ReadToken()
		return err
	}
	return &TypeError{Want: want}
}

// eachElement calls read for every element of the array that d is about to read.
func eachElement(d *jsontext.Decoder, limit int, read func() error) error {
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for n := 0; d.PeekKind() != ']'; n++ {
		if d.PeekKind() == 0 {
			return wrongKind(d, "")
		}
		if n == limit {
			return &ValueError{Reason: fmt.Sprintf("has more than %d elements", limit)}
		}
		if err := read(); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// readID reads one token id: an integer from 0 to 2^31-1.
func readID(d *jsontext.Decoder) (int32, error) {
	if d.PeekKind() != '0' {
		return 0, wrongKind(d, "a token id")
	}
	t, err := d.ReadToken()
	if err != nil {
		return 0, err
	}
	id, ok := parseID(t.String())
	if !ok {
		return 0, &ValueError{Reason: "must be a token id"}
	}
	return id, nil
}

// parseID reads the canonical decimal form only.
func parseID(s string) (int32, bool) {
	if len(s) == 0 || len(s) > 10 || (s[0] == '0' && len(s) > 1) {
		return 0, false
	}
	n := int64(0)
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return int32(n), n <= math.MaxInt32
}

// Absent reports whether a raw field was left out or null.
func Absent(raw jsontext.Value) bool { return len(raw) == 0 || raw.Kind() == 'n' }
