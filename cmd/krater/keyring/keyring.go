// Package keyring reads the file of API keys: their hashes, ranges of priorities and limits.
package keyring

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/rs/zerolog"

	"krater/scheduler/files"
	"krater/transport/api"
	"krater/transport/limits"
	"krater/transport/server"
)

// Ring is the file of API keys: their hashes, and for some of them the range of priorities that
// their requests may ask for, and limits. A nil Ring asks for no key.
type Ring struct {
	Hashes []server.KeyHash
	ranges map[string]*keyRange // by owner
	limits *limits.Limiter
	log    zerolog.Logger
}

// keyRange is the range of priorities of one key.
type keyRange struct {
	line, low, high int
	told            atomic.Bool // a request outside the range has been logged
}

// Limiter returns the limits of the keys; nil if there are none.
func (k *Ring) Limiter() *limits.Limiter {
	if k == nil {
		return nil
	}
	return k.limits
}

// rangeField begins the word of a line that has a range; limitFields those with limits.
const rangeField = "priority="

var limitFields = map[string]func(*limits.Limits) *int{
	"requests-per-minute=": func(l *limits.Limits) *int { return &l.Requests },
	"tokens-per-minute=":   func(l *limits.Limits) *int { return &l.Tokens },
	"concurrent=":          func(l *limits.Limits) *int { return &l.Concurrent },
}

// maxBytes bounds the file.
const maxBytes = 16 << 20

// keyWords are the words after a key.
type keyWords struct {
	own    *keyRange
	limits limits.Limits
}

// take reads the last word of a line; false if it is none of the settings.
func (s *keyWords) take(word string) (bool, error) {
	if text, ok := strings.CutPrefix(word, rangeField); ok {
		var err error
		s.own, err = parseRange(text)
		return true, err
	}
	for field, of := range limitFields {
		if text, ok := strings.CutPrefix(word, field); ok {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 || n > limitMost {
				return true, fmt.Errorf("%s: want %sN from 1 to %d", word, field, limitMost)
			}
			*of(&s.limits) = n
			return true, nil
		}
	}
	return false, nil
}

// limitMost bounds a limit of a key.
const limitMost = 1_000_000_000

// Read reads a file of API keys, one per line. It skips blank lines and lines that begin with
// #. A line may end with a range of priorities and limits: "KEY priority=-10..10 concurrent=4". Only
// hashes are kept.
func Read(path string, log zerolog.Logger) (*Ring, error) {
	data, err := files.Read(path, maxBytes)
	if err != nil {
		return nil, fmt.Errorf("--api-keys: %w", err)
	}
	ring, bounds := &Ring{ranges: map[string]*keyRange{}, log: log}, map[string]limits.Limits{}
	in := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; in.Scan(); n++ {
		key := strings.TrimSpace(in.Text())
		if key == "" || strings.HasPrefix(key, "#") {
			continue
		}
		var own keyWords
		for at := strings.LastIndexAny(key, " \t"); at >= 0; at = strings.LastIndexAny(key, " \t") {
			known, err := own.take(key[at+1:])
			if err != nil {
				return nil, fmt.Errorf("--api-keys: line %d: %w", n, err)
			}
			if !known {
				break
			}
			key = strings.TrimSpace(key[:at])
		}
		if len(key) < 8 {
			return nil, fmt.Errorf("--api-keys: line %d: the key has fewer than 8 characters", n)
		}
		hash := server.HashKey(key)
		ring.Hashes = append(ring.Hashes, hash)
		owner := hex.EncodeToString(hash[:])
		if own.own != nil {
			own.own.line = n
			ring.ranges[owner] = own.own
		}
		if own.limits != (limits.Limits{}) {
			bounds[owner] = own.limits
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("--api-keys: %s: %w", path, err)
	}
	if len(ring.Hashes) == 0 {
		return nil, fmt.Errorf("--api-keys: %s holds no key", path)
	}
	ring.limits = limits.New(bounds)
	return ring, nil
}

// parseRange reads LOW..HIGH.
func parseRange(text string) (*keyRange, error) {
	low, high, found := strings.Cut(text, "..")
	r := &keyRange{}
	var lowErr, highErr error
	r.low, lowErr = strconv.Atoi(low)
	r.high, highErr = strconv.Atoi(high)
	if !found || lowErr != nil || highErr != nil || r.low > r.high || r.low < -api.MaxPriority || r.high > api.MaxPriority {
		return nil, fmt.Errorf("%s%s: want %sLOW..HIGH from %d to %d", rangeField, text, rangeField, -api.MaxPriority, api.MaxPriority)
	}
	return r, nil
}

// Clip limits the priority that a request asks for to the range of its key. It logs the first such
// request of each key.
func (k *Ring) Clip(owner string, priority int) int {
	if k == nil {
		return priority
	}
	r := k.ranges[owner]
	if r == nil {
		return priority
	}
	clipped := min(max(priority, r.low), r.high)
	if clipped != priority && !r.told.Swap(true) {
		k.log.Warn().Int("line", r.line).Int("priority", priority).Int("low", r.low).Int("high", r.high).
			Msg("a key of --api-keys asks for a priority outside its range; it is clipped, and so are later ones of this key")
	}
	return clipped
}
