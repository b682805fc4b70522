package tokenizer

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// finder finds all matches of a pattern in a text.
type finder interface {
	// all calls yield for each match, from left to right, until it returns an error. A match may be
	// empty.
	all(s string, b *regexBudget, yield func(start, end int) error) error
}

// matcher is a finder written by hand: it returns the first match at or after byte i of s, valid
// UTF-8, which is never empty; start < 0 if there is none.
type matcher func(s string, i int) (start, end int)

func (m matcher) all(s string, _ *regexBudget, yield func(start, end int) error) error {
	for i := 0; i < len(s); {
		start, end := m(s, i)
		if start < 0 {
			return nil
		}
		if err := yield(start, end); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// matchers are the patterns with a hand-written matcher, by their exact text.
var matchers = map[string]matcher{
	patternLlama3:         matchLlama3,
	patternQwen2:          matchQwen2,
	patternQwen35:         matchQwen35,
	patternO200k:          matchO200k,
	patternKimi:           matchKimi,
	patternDigits3:        matchDigits3,
	patternDeepseekCJK:    matchDeepseekCJK,
	patternDeepseekV3:     matchDeepseekV3,
	patternNewline:        matchNewline,
	patternSpaceLetters:   matchSpaceLetters,
	patternSpacePunct:     matchSpacePunct,
	patternTrailingSpaces: matchTrailingSpaces,
}

// literal is a finder for a fixed, not empty text.
type literal string

func (l literal) all(s string, _ *regexBudget, yield func(start, end int) error) error {
	for i := 0; ; {
		k := strings.Index(s[i:], string(l))
		if k < 0 {
			return nil
		}
		if err := yield(i+k, i+k+len(l)); err != nil {
			return err
		}
		i += k + len(l)
	}
}

// Limits for patterns that are not in matchers. regexp2 backtracks, so that a hostile text can take
// quadratic time and worse. While a limit runs, and for a moment after, regexp2 keeps a goroutine
// that reads the clock.
const (
	regexMatchTime = 1 * time.Second // one match; regexp2's clock ticks every 100 ms
	regexTotalTime = 3 * time.Second // all matches of one Encode
	regexMaxLen    = 4096            // bytes of a pattern
)

// regexBudget is the remaining time of one Encode.
type regexBudget struct{ deadline time.Time }

// regex is a finder for any other pattern.
type regex struct{ re *regexp2.Regexp }

// newFinder returns the finder for a Regex pattern of a tokenizer.json, whose dialect is
// Oniguruma's.
func newFinder(pattern string) (finder, error) {
	if m := matchers[pattern]; m != nil {
		return m, nil
	}
	if len(pattern) > regexMaxLen {
		return nil, fmt.Errorf("%w: a pattern of %d bytes, the limit is %d", ErrUnsupported, len(pattern), regexMaxLen)
	}
	if what := foreignSyntax(pattern); what != "" {
		return nil, fmt.Errorf("%w: %s in the pattern %q", ErrUnsupported, what, pattern)
	}
	// In Oniguruma ^ and $ match at lines, as they do here with Multiline.
	re, err := regexp2.Compile(pattern, regexp2.Multiline)
	if err != nil {
		return nil, fmt.Errorf("%w: pattern %q: %v", ErrUnsupported, pattern, err)
	}
	re.MatchTimeout = regexMatchTime
	return regex{re}, nil
}

// foreignSyntax names the first thing in pattern that means something else in Oniguruma than in
// regexp2, "" if there is none.
func foreignSyntax(pattern string) string {
	inClass := false
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		switch {
		case rest[0] == '\\' && len(rest) > 1:
			if strings.IndexByte("hHRXKGyYONg", rest[1]) >= 0 {
				return rest[:2]
			}
			i++
		case inClass && rest[0] == '[':
			return "a set within a set"
		case inClass && strings.HasPrefix(rest, "&&"):
			return "&&"
		case inClass && rest[0] == ']':
			inClass = false
		case inClass:
		case rest[0] == '[':
			inClass = true
			if strings.HasPrefix(rest, "[]") || strings.HasPrefix(rest, "[^]") {
				return "] as the first of a set"
			}
		case strings.HasPrefix(rest, "{,"):
			return "{,"
		case strings.HasPrefix(rest, "(?~"):
			return "(?~"
		case strings.HasPrefix(rest, "(?"):
			flags := rest[2:]
			flags = flags[:len(flags)-len(strings.TrimLeft(flags, "imsxndWDSPa-"))]
			if strings.ContainsAny(flags, "msndWDSPa") {
				return "(?" + flags
			}
		}
	}
	return ""
}

func (r regex) all(s string, b *regexBudget, yield func(start, end int) error) error {
	if b.deadline.IsZero() {
		b.deadline = time.Now().Add(regexTotalTime)
	}
	runes := []rune(s)
	at, pos := 0, 0 // byte and rune offset of the end of the last match
	forward := func(to int) int {
		for ; pos < to; pos++ {
			at += utf8.RuneLen(runes[pos])
		}
		return at
	}
	last := -1 // end of the last match
	var failed error
	err := r.re.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		if time.Now().After(b.deadline) {
			failed = ErrSplitTime
			return false
		}
		index, length, _ := m.GroupRange(0)
		start := forward(index)
		end := forward(index + length)
		if start == end && end == last {
			return true // an empty match right after a match does not count
		}
		last = end
		failed = yield(start, end)
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("%w: %v", ErrSplitTime, err)
	}
	return nil
}
