package tokenizer

// Short patterns: those of the models trained in this project, and the one built into the ByteLevel
// pre-tokenizer (GPT-2).
const (
	patternNewline        = `[\r\n]`
	patternSpaceLetters   = `\s?\p{L}+`
	patternSpacePunct     = `\s?\p{P}+`
	patternTrailingSpaces = `\s+$`
	patternGPT2           = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

func matchNewline(s string, i int) (start, end int) {
	for ; i < len(s); i++ {
		if s[i] == '\r' || s[i] == '\n' {
			return i, i + 1
		}
	}
	return -1, -1
}

func matchSpaceLetters(s string, i int) (start, end int) { return spaceThen(s, i, classL) }
func matchSpacePunct(s string, i int) (start, end int)   { return spaceThen(s, i, classP) }

// spaceThen finds \s? and a run of set.
func spaceThen(s string, i int, set class) (start, end int) {
	for i < len(s) {
		c, n := classAt(s, i)
		if c&set != 0 {
			return i, run(s, i+n, set)
		}
		if c&classWs != 0 {
			if d, m := classAt(s, i+n); d&set != 0 {
				return i, run(s, i+n+m, set)
			}
		}
		i += n
	}
	return -1, -1
}

// matchTrailingSpaces finds \s+$, where $ is the end of the text or the place before a \n: in a run
// of white space inside the text it takes everything before its last \n.
func matchTrailingSpaces(s string, i int) (start, end int) {
	for {
		i = runNot(s, i, classWs)
		if i == len(s) {
			return -1, -1
		}
		end = run(s, i, classWs)
		if end == len(s) {
			return i, end
		}
		for k := end - 1; k > i; k-- {
			if s[k] == '\n' {
				return i, k
			}
		}
		i = end
	}
}

// matchGPT2 covers every text without a gap.
func matchGPT2(s string, i int) (start, end int) {
	if s[i] == '\'' && i+1 < len(s) && s[i+1] >= 'a' {
		if k := contraction(s, i); k > 0 && (k == 2 || s[i+2] >= 'a' && s[i+2] <= 'z') {
			return i, i + k
		}
	}
	at := i
	if s[i] == ' ' && i+1 < len(s) {
		at++
	}
	c, n := classAt(s, at)
	switch {
	case c&classL != 0:
		return i, run(s, at+n, classL)
	case c&classN != 0:
		return i, run(s, at+n, classN)
	case c&classWs == 0:
		return i, runNot(s, at+n, classWs|classL|classN)
	}
	// \s+(?!\S)|\s+: line ends are like other white space.
	last, end := i, i
	for {
		c, n := classAt(s, end)
		if c&classWs == 0 {
			break
		}
		last = end
		end += n
	}
	if end == len(s) || last == i {
		return i, end
	}
	return i, last
}
