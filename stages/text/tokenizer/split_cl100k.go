package tokenizer

import "strings"

// The patterns of OpenAI's cl100k_base and its relatives. What they match covers every text without
// a gap, so the matchers always match at i.

const (
	patternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

func matchLlama3(s string, i int) (start, end int) { return i, cl100k(s, i, 3, classL) }
func matchQwen2(s string, i int) (start, end int)  { return i, cl100k(s, i, 1, classL) }
func matchQwen35(s string, i int) (start, end int) { return i, cl100k(s, i, 1, classL|classM) }

// cl100k returns the end of the match at s[i], i < len(s), of patternLlama3 or, if a number has at
// most one digit, patternQwen2, or, if marks are letters too, patternQwen35.
func cl100k(s string, i, digits int, letters class) int {
	c, n := classAt(s, i)
	switch {
	case c&letters != 0: // \p{L}+
		return run(s, i+n, letters)
	case c&classN != 0: // \p{N}{1,3}
		return runMax(s, i+n, classN, digits-1)
	}
	if s[i] == '\'' {
		if k := contraction(s, i); k > 0 {
			return i + k
		}
	}
	if c&classNewline == 0 { // [^\r\n\p{L}\p{N}]\p{L}+
		if d, m := classAt(s, i+n); d&letters != 0 {
			return run(s, i+n+m, letters)
		}
	}
	if end := symbols(s, i, c, n, letters, classNewline); end > 0 {
		return end
	}
	return spaces(s, i)
}

// contraction returns the length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at s[i], which is an apostrophe,
// or 0. The long s folds to s; no other non-ASCII letter counts.
func contraction(s string, i int) int {
	if i+1 >= len(s) {
		return 0
	}
	switch s[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if i+2 < len(s) && s[i+2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if i+2 < len(s) && s[i+2]|0x20 == 'l' {
			return 3
		}
	}
	if strings.HasPrefix(s[i+1:], "\u017F") {
		return 3
	}
	return 0
}

// symbols returns the end of ` ?[^\s\p{L}\p{N}]+` and the characters of tail after it, or 0. The
// character at s[i] has class c and n bytes; letters are \p{L}.
func symbols(s string, i int, c class, n int, letters, tail class) int {
	not := classWs | letters | classN
	if s[i] == ' ' {
		i++
		if i == len(s) {
			return 0
		}
		c, n = classAt(s, i)
	}
	if c&not != 0 {
		return 0
	}
	return run(s, runNot(s, i+n, not), tail)
}

// runNot returns the end of the run of characters outside set.
func runNot(s string, i int, set class) int {
	for i < len(s) {
		c, n := classAt(s, i)
		if c&set != 0 {
			return i
		}
		i += n
	}
	return i
}

// spaces returns the end of \s*[\r\n]+|\s+(?!\S)|\s+ at s[i], a white space: up to the last line
// end of the run, else all of a run that ends the text, else all but its last character, which goes
// with the word that follows.
func spaces(s string, i int) int {
	newline, last, end := -1, i, i
	for {
		c, n := classAt(s, end)
		if c&classWs == 0 {
			break
		}
		last = end
		end += n
		if c == classNewline {
			newline = end
		}
	}
	switch {
	case newline >= 0:
		return newline
	case end == len(s) || last == i:
		return end
	}
	return last
}
