package main

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
	"krater/transport/server"
)

// keyring is the file of API keys: their hashes, and for some of them the range of priorities that
// their requests may ask for. A nil keyring asks for no key.
type keyring struct {
	hashes []server.KeyHash
	ranges map[string]*keyRange // by owner
	log    zerolog.Logger
}

// keyRange is the range of priorities of one key.
type keyRange struct {
	line, low, high int
	told            atomic.Bool // a request outside the range has been logged
}

// rangeField begins the last word of a line that has a range.
const rangeField = "priority="

// readKeys reads a file of API keys, one per line. It skips blank lines and lines that begin with
// #. A line may end with a range of priorities: "KEY priority=-10..10". Only hashes are kept.
func readKeys(path string, log zerolog.Logger) (*keyring, error) {
	data, err := files.Read(path, keysMaxBytes)
	if err != nil {
		return nil, fmt.Errorf("--api-keys: %w", err)
	}
	ring := &keyring{ranges: map[string]*keyRange{}, log: log}
	in := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; in.Scan(); n++ {
		key := strings.TrimSpace(in.Text())
		if key == "" || strings.HasPrefix(key, "#") {
			continue
		}
		var own *keyRange
		if at := strings.LastIndexAny(key, " \t"); at >= 0 && strings.HasPrefix(key[at+1:], rangeField) {
			if own, err = parseRange(key[at+1+len(rangeField):]); err != nil {
				return nil, fmt.Errorf("--api-keys: line %d: %w", n, err)
			}
			own.line, key = n, strings.TrimSpace(key[:at])
		}
		if len(key) < 8 {
			return nil, fmt.Errorf("--api-keys: line %d: the key has fewer than 8 characters", n)
		}
		hash := server.HashKey(key)
		ring.hashes = append(ring.hashes, hash)
		if own != nil {
			ring.ranges[hex.EncodeToString(hash[:])] = own
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("--api-keys: %s: %w", path, err)
	}
	if len(ring.hashes) == 0 {
		return nil, fmt.Errorf("--api-keys: %s holds no key", path)
	}
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

// clip limits the priority that a request asks for to the range of its key. It logs the first such
// request of each key.
func (k *keyring) clip(owner string, priority int) int {
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
