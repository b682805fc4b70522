package tokenizer

// patternKimi is Kimi K2's: runs of Han characters are pieces, all else is split nearly as
// patternO200k does. The release writes the sets of letters as intersections ([...&&[^\p{Han}]]),
// which this syntax has as look ahead. It covers every text without a gap.
const patternKimi = `\p{Han}+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

func matchKimi(s string, i int) (start, end int) {
	c, n := classAt(s, i)
	switch {
	case c&classHan != 0:
		return i, run(s, i+n, classHan)
	case c&classN != 0:
		return i, runMax(s, i+n, classN, 2)
	}
	if end := casedWord(s, i, c, n, classHan); end > 0 {
		return i, end
	}
	if end := symbols(s, i, c, n, classL, classNewline); end > 0 {
		return i, end
	}
	return i, spaces(s, i)
}
