package safetensors

import (
	json "encoding/json/v2"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"krater/kernels/tensor"
)

// metadataKey is the one entry that is not a tensor: an object of strings.
const metadataKey = "__metadata__"

// scanner reads exactly the JSON of a safetensors header. A scanner of its own
// and not a JSON library, because its depth is fixed, a name given twice has to
// be seen, and 50,000 entries should cost milliseconds at start-up.
type scanner struct {
	b []byte
	i int
	// ints is the free part of the last block of memory for shapes.
	ints []int
}

// readHeader reads {"name": {"dtype": .., "shape": [..], "data_offsets": [b, e]}, ...}.
// Spaces may follow: writers pad with them for alignment.
func readHeader(b []byte) ([]entry, error) {
	s := &scanner{b: b}
	// An entry of a real model takes about 110 bytes of header; the guess stays
	// below the header's own size, whatever it says.
	guess := len(b)/110 + 1
	entries := make([]entry, 0, guess)
	seen := make(map[string]struct{}, guess)
	err := s.object(func(key []byte) error {
		name := string(key) // a copy: the file may be unmapped later
		if _, dup := seen[name]; dup {
			return fmt.Errorf("%w: %q", ErrDuplicate, clip(name))
		}
		seen[name] = struct{}{}
		if name == metadataKey {
			return s.metadata()
		}
		e, err := s.entry()
		if err != nil {
			return fmt.Errorf("tensor %q: %w", clip(name), err)
		}
		e.name = name
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if s.skip(); s.i != len(s.b) {
		return nil, s.fail("the end")
	}
	return entries, nil
}

// metadata checks the free-form strings; nothing here needs them.
func (s *scanner) metadata() error {
	seen := make(map[string]struct{})
	return s.object(func(key []byte) error {
		if _, dup := seen[string(key)]; dup {
			return fmt.Errorf("%w: %q twice in %s", ErrHeader, clip(string(key)), metadataKey)
		}
		seen[string(key)] = struct{}{}
		_, err := s.str()
		return err
	})
}

// entry reads one tensor's object: its three fields, each once, in any order.
func (s *scanner) entry() (entry, error) {
	var e entry
	var have [3]bool
	once := func(i int, field string) error {
		if have[i] {
			return fmt.Errorf("%w: %s given twice", ErrHeader, field)
		}
		have[i] = true
		return nil
	}
	err := s.object(func(field []byte) error {
		switch string(field) {
		case "dtype":
			if err := once(0, "dtype"); err != nil {
				return err
			}
			name, err := s.str()
			if err != nil {
				return err
			}
			var ok bool
			if e.dtype, ok = tensor.ParseDType(string(name)); !ok {
				return fmt.Errorf("%w: %q", ErrDType, clip(string(name)))
			}
			return nil
		case "shape":
			if err := once(1, "shape"); err != nil {
				return err
			}
			return s.shape(&e)
		case "data_offsets":
			if err := once(2, "data_offsets"); err != nil {
				return err
			}
			return s.offsets(&e)
		}
		return fmt.Errorf("%w: unknown field %q", ErrHeader, clip(string(field)))
	})
	if err == nil && have != [3]bool{true, true, true} {
		err = fmt.Errorf("%w: dtype, shape or data_offsets is missing", ErrHeader)
	}
	return e, err
}

// shape reads a list of sizes. Shapes are cut from blocks, since a file has as
// many of them as tensors.
func (s *scanner) shape(e *entry) error {
	var dims [maxRank]int
	n := 0
	err := s.array(func() error {
		if n == maxRank {
			return fmt.Errorf("%w: more than %d dimensions", ErrShape, maxRank)
		}
		d, err := s.uint()
		if err != nil {
			return err
		}
		dims[n], n = int(d), n+1
		return nil
	})
	if err != nil {
		return err
	}
	if len(s.ints) < n {
		s.ints = make([]int, 512)
	}
	e.shape, s.ints = s.ints[:n:n], s.ints[n:]
	copy(e.shape, dims[:n])
	return nil
}

func (s *scanner) offsets(e *entry) error {
	var at [2]uint64
	n := 0
	err := s.array(func() (err error) {
		if n == len(at) {
			return fmt.Errorf("%w: more than two data_offsets", ErrHeader)
		}
		at[n], err = s.uint()
		n++
		return err
	})
	if err == nil && n != len(at) {
		err = fmt.Errorf("%w: want two data_offsets, got %d", ErrHeader, n)
	}
	e.begin, e.end = at[0], at[1]
	return err
}

// object reads {"key": value, ...}; value reads each value itself.
func (s *scanner) object(value func(key []byte) error) error {
	return s.list('{', '}', "an object", func() error {
		key, err := s.str()
		if err != nil {
			return err
		}
		if !s.take(':') {
			return s.fail("':'")
		}
		return value(key)
	})
}

// array reads [element, ...].
func (s *scanner) array(element func() error) error {
	return s.list('[', ']', "a list", element)
}

func (s *scanner) list(open, shut byte, what string, item func() error) error {
	if !s.take(open) {
		return s.fail(what)
	}
	if s.take(shut) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		switch {
		case s.take(shut):
			return nil
		case !s.take(','):
			return s.fail("',' or '" + string(shut) + "'")
		}
	}
}

// skip goes over JSON's white space.
func (s *scanner) skip() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\n' || s.b[s.i] == '\t' || s.b[s.i] == '\r') {
		s.i++
	}
}

// take consumes c, after white space, if it comes next.
func (s *scanner) take(c byte) bool {
	if s.skip(); s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

// str reads a string. The result lies in the header, unless it had escapes.
func (s *scanner) str() ([]byte, error) {
	if !s.take('"') {
		return nil, s.fail("a string")
	}
	start, escaped := s.i, false
	for ; s.i < len(s.b) && s.b[s.i] != '"'; s.i++ {
		switch c := s.b[s.i]; {
		case c < 0x20:
			return nil, s.fail("no control character in a string")
		case c == '\\':
			escaped = true
			s.i++ // whatever follows is not the end
		}
	}
	if s.i >= len(s.b) {
		return nil, s.fail("the end of a string")
	}
	raw := s.b[start:s.i]
	s.i++
	if !escaped {
		if !utf8.Valid(raw) {
			return nil, fmt.Errorf("%w: invalid UTF-8 in a string at byte %d", ErrHeader, start)
		}
		return raw, nil
	}
	var out string
	if err := json.Unmarshal(s.b[start-1:s.i], &out); err != nil {
		return nil, fmt.Errorf("%w: string at byte %d: %w", ErrHeader, start, err)
	}
	return []byte(out), nil
}

// uint reads a whole number that fits an int.
func (s *scanner) uint() (uint64, error) {
	s.skip()
	start, n := s.i, uint64(0)
	for ; s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9'; s.i++ {
		d := uint64(s.b[s.i] - '0')
		if n > (math.MaxInt64-d)/10 {
			return 0, fmt.Errorf("%w: number at byte %d is too large", ErrHeader, start)
		}
		n = 10*n + d
	}
	if s.i == start || s.b[start] == '0' && s.i > start+1 {
		s.i = start
		return 0, s.fail("a whole number")
	}
	return n, nil
}

// fail says what was expected where.
func (s *scanner) fail(want string) error {
	if s.i >= len(s.b) {
		return fmt.Errorf("%w: ends where %s was expected", ErrHeader, want)
	}
	return fmt.Errorf("%w: byte %d is %q where %s was expected", ErrHeader, s.i, s.b[s.i], want)
}

// clip shortens a foreign name for a message.
func clip(s string) string {
	const limit = 120
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
