package tokenizer

// The three patterns of DeepSeek V3, applied one after the other.
const (
	patternDigits3     = `\p{N}{1,3}`
	patternDeepseekCJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
	patternDeepseekV3  = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

func matchDigits3(s string, i int) (start, end int) {
	i = runNot(s, i, classN)
	if i == len(s) {
		return -1, -1
	}
	return i, runMax(s, i, classN, 3)
}

func matchDeepseekCJK(s string, i int) (start, end int) {
	for i < len(s) {
		n := cjkLen(s, i)
		if n > 0 {
			end = i + n
			for end < len(s) && cjkLen(s, end) > 0 {
				end += 3
			}
			return i, end
		}
		i++ // no byte but a first byte passes cjkLen
	}
	return -1, -1
}

// cjkLen returns 3 if patternDeepseekCJK's set has the character at s[i], else 0.
func cjkLen(s string, i int) int {
	if s[i] < 0xE3 || s[i] > 0xE9 {
		return 0
	}
	r, n := runeAt(s, i)
	if r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff {
		return n
	}
	return 0
}

// matchDeepseekV3 is the only matcher here that leaves gaps within a text: no
// alternative matches a digit or a control character that no letter follows.
func matchDeepseekV3(s string, i int) (start, end int) {
	for i < len(s) {
		c, n := classAt(s, i)
		if end := deepseekV3(s, i, c, n); end > 0 {
			return i, end
		}
		i += n
	}
	return -1, -1
}

// deepseekV3 returns the end of the match at s[i], 0 if there is none.
func deepseekV3(s string, i int, c class, n int) int {
	const letters, signs = classL | classM, classP | classS
	switch {
	case c&classL != 0:
		return run(s, i+n, letters)
	case c&signs != 0:
		if end := asciiLetters(s, i+1); n == 1 && end > i+1 {
			return end
		}
		return run(s, run(s, i+n, signs), classNewline)
	}
	if c&classNewline == 0 {
		if d, m := classAt(s, i+n); d&letters != 0 {
			return run(s, i+n+m, letters)
		}
		if c&classM != 0 {
			return i + n
		}
	}
	if s[i] == ' ' {
		if d, m := classAt(s, i+1); d&signs != 0 {
			return run(s, run(s, i+1+m, signs), classNewline)
		}
	}
	if c&classWs != 0 {
		return spaces(s, i)
	}
	return 0
}

// asciiLetters returns the end of [A-Za-z]* at s[i].
func asciiLetters(s string, i int) int {
	for i < len(s) && (s[i]|0x20) >= 'a' && (s[i]|0x20) <= 'z' {
		i++
	}
	return i
}
