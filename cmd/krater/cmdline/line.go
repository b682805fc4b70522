package cmdline

import (
	"regexp"
	"strings"
)

// plainWord matches words that need no quotes in a shell.
var plainWord = regexp.MustCompile(`^[\w./:=,@%+-]+$`)

// Line joins words to a command line for a shell.
func Line(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		if quoted[i] = word; !plainWord.MatchString(word) {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
