package gguf

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a header. Real files stay far below all of them.
const (
	maxHeader  = 256 << 20 // bytes of metadata and tensor entries together
	maxKeys    = 1 << 16
	maxKey     = 1 << 16 // bytes of a key
	maxTensors = 1 << 20
	maxName    = 256 // bytes of a tensor's name
	maxDims    = 4
	maxArray   = 1 << 22 // elements; the largest vocabularies have half a million merges
	maxNesting = 4       // arrays within arrays
	maxAlign   = 1 << 20
)

// scanner reads the fields of a header. Nothing is allocated by what the file says: counts
// are held against the bytes that are left.
type scanner struct {
	b []byte // the whole file, or its first maxHeader bytes
	i int
	n int // size of the file
}

// need reports an error unless n more bytes are there.
func (s *scanner) need(n uint64, what string) error {
	left := uint64(len(s.b) - s.i)
	switch {
	case n <= left:
		return nil
	case len(s.b) < s.n && n <= uint64(s.n-s.i):
		return fmt.Errorf("%w: the header takes more than %d bytes at %s (byte %d)", ErrLimit, maxHeader, what, s.i)
	}
	return fmt.Errorf("%w: %s takes %d bytes from byte %d, and the file has %d", ErrTruncated, what, n, s.i, s.n)
}

func (s *scanner) u32(what string) (uint32, error) {
	if err := s.need(4, what); err != nil {
		return 0, err
	}
	s.i += 4
	return binary.LittleEndian.Uint32(s.b[s.i-4:]), nil
}

func (s *scanner) u64(what string) (uint64, error) {
	if err := s.need(8, what); err != nil {
		return 0, err
	}
	s.i += 8
	return binary.LittleEndian.Uint64(s.b[s.i-8:]), nil
}

// count reads the number of things that follow, each of which takes at least size bytes.
func (s *scanner) count(limit, size uint64, what string) (int, error) {
	at := s.i
	n, err := s.u64(what)
	if err != nil {
		return 0, err
	}
	if n > limit {
		return 0, fmt.Errorf("%w: %s is %d at byte %d, at most %d are accepted", ErrLimit, what, n, at, limit)
	}
	return int(n), s.need(n*size, what)
}

// text reads a string of at most limit bytes.
func (s *scanner) text(limit uint64, what string) (string, error) {
	n, err := s.count(limit, 1, "the length of "+what)
	if err != nil {
		return "", err
	}
	s.i += n
	return string(s.b[s.i-n : s.i]), nil
}

// name reads a string that is a name: valid UTF-8 without control characters.
func (s *scanner) name(limit uint64, what string) (string, error) {
	at := s.i
	name, err := s.text(limit, what)
	if err != nil {
		return "", err
	}
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fmt.Errorf("%w: %s at byte %d is %.40q", ErrHeader, what, at, name)
	}
	return name, nil
}

// clip shortens a foreign name for a message.
func clip(s string) string {
	const limit = 120
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
