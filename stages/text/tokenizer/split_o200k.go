package tokenizer

// patternO200k is OpenAI's o200k_base, of gpt_oss: words are split where lower case turns to upper
// case. It covers every text without a gap.
const patternO200k = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

const (
	classUpper = classLu | classLt | classLm | classLo | classM // of the first set
	classLower = classLl | classLm | classLo | classM           // of the second set
	classBoth  = classUpper & classLower
)

func matchO200k(s string, i int) (start, end int) {
	c, n := classAt(s, i)
	if c&classN != 0 {
		return i, runMax(s, i+n, classN, 2)
	}
	if end := casedWord(s, i, c, n, 0); end > 0 {
		return i, end
	}
	if end := symbols(s, i, c, n, classL, classNewline); end > 0 {
		for end < len(s) && (s[end] == '\r' || s[end] == '\n' || s[end] == '/') {
			end++
		}
		return i, end
	}
	return i, spaces(s, i)
}

// casedWord returns the end of the first two alternatives at s[i], with the contraction, or 0 if
// neither matches. Characters of the class skip are not in the sets of letters; s[i] is none of them.
func casedWord(s string, i int, c class, n int, skip class) int {
	end := o200kWord(s, i, c, n, skip)
	if end > 0 && end < len(s) && s[end] == '\'' {
		end += contraction(s, end)
	}
	return end
}

// o200kWord is casedWord without the contraction. Both alternatives may start with one character that
// is not a letter, a digit or a line end; a mark can be that character or part of the word.
func o200kWord(s string, i int, c class, n int, skip class) int {
	if c&(classL|classNewline) == 0 {
		if end := mixedCase(s, i+n, skip); end > 0 {
			return end
		}
		if c&classM == 0 {
			return upperCase(s, i+n, skip)
		}
	}
	if end := mixedCase(s, i, skip); end > 0 { // always so for a mark
		return end
	}
	return upperCase(s, i, skip)
}

// mixedCase returns the end of Upper*Lower+ at s[i], or 0 if it does not match. If no lower case
// follows the run of Upper, the run gives back characters until the next one is in both sets, and
// the match ends after it.
func mixedCase(s string, i int, skip class) int {
	end, both := i, 0
	for {
		c, n := classAt(s, end)
		if c&classUpper == 0 || c&skip != 0 {
			if c&classLower != 0 && c&skip == 0 {
				return runWithout(s, end+n, classLower, skip)
			}
			return both
		}
		end += n
		if c&classBoth != 0 {
			both = end
		}
	}
}

// upperCase returns the end of Upper+ at s[i], 0 if it does not match. It is called where mixedCase
// failed, so no character of Lower follows.
func upperCase(s string, i int, skip class) int {
	if end := runWithout(s, i, classUpper, skip); end > i {
		return end
	}
	return 0
}

// runWithout is run over the characters of set that have nothing of skip, which holds no ASCII.
func runWithout(s string, i int, set, skip class) int {
	for i < len(s) {
		c, n := classAt(s, i)
		if c&set == 0 || c&skip != 0 {
			break
		}
		i += n
	}
	return i
}
