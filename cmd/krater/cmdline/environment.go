package cmdline

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"krater/kernels/cpu"
	"krater/kernels/cpu/amx"
	"krater/kernels/cpu/level"
)

// environmentBeside are KRATER_ variables that are not flags: those of kernels, tests and scripts.
var environmentBeside = []string{
	amx.EnvAMX, level.EnvLevel, cpu.EnvPrefetch,
	"KRATER_EXPECT_LEVEL", "KRATER_CI_CACHE", "KRATER_PAGE_PORT", "KRATER_PERFETTO", "KRATER_TRUE_SIZES",
}

// environmentForeign are prefixes of variables that Kubernetes sets for a service called krater.
var environmentForeign = []string{"KRATER_SERVICE_", "KRATER_PORT"}

// UnknownVariables returns a warning for each variable of the environment ("NAME=value") that looks like a
// setting but is not one.
func UnknownVariables(app *kong.Application, environ []string) []string {
	known := slices.Clone(environmentBeside)
	_ = kong.Visit(app, func(n kong.Visitable, next kong.Next) error {
		if f, ok := n.(*kong.Flag); ok {
			known = append(known, f.Envs...)
		}
		return next(nil)
	})
	var out []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		foreign := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
		if !foreign("KRATER_") || slices.Contains(known, name) || slices.ContainsFunc(environmentForeign, foreign) {
			continue
		}
		line := fmt.Sprintf("the environment variable %s is not a setting and is ignored", name)
		flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "KRATER_"), "_", "-"))
		if meant := Foreign(flag, ""); meant != "" {
			line += "; as a flag: " + meant
		} else if near := nearest(name, known); near != "" {
			line += "; did you mean " + near + "?"
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

// nearest returns the candidate with the smallest edit distance, or "" if all are far away.
func nearest(name string, candidates []string) string {
	best, least := "", 1+len(strings.TrimPrefix(name, "KRATER_"))/3
	for _, c := range candidates {
		if d := changes(name, c); d < least {
			best, least = c, d
		}
	}
	return best
}

// changes returns the Levenshtein distance between a and b: the number of letters to insert, delete
// or replace.
func changes(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0] // of the previous row, one column to the left
		row[0] = i + 1
		for j := range len(b) {
			replaced := before
			if a[i] != b[j] {
				replaced++
			}
			before = row[j+1]
			row[j+1] = min(replaced, row[j]+1, before+1)
		}
	}
	return row[len(b)]
}
