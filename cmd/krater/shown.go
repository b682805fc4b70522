package main

import (
	"fmt"
	"io"
	"regexp"

	"krater/cmd/krater/term"
	"krater/scheduler/planner"
)

// How reports look on a terminal. The rules find what a report prints anyway.
var (
	doctorRules = []term.Rule{
		{Style: term.Green, At: regexp.MustCompile(`^(ok) `)},
		{Style: term.Yellow, At: regexp.MustCompile(`^(warn) `)},
		{Style: term.Dim, At: regexp.MustCompile(`^\s+(recommended: .*)`)},
		{Style: term.Yellow, At: regexp.MustCompile(`^\s+(fix: .*)`)},
		{Style: term.Bold, At: regexp.MustCompile(`^(\S+) needs$`)},
		{Style: term.Green, At: regexp.MustCompile(`\bfits\b`)},
		{Style: term.Red, At: regexp.MustCompile(`\bDOES NOT FIT\b`)},
		tableHead,
	}
	planRules = []term.Rule{
		{Style: term.Green, At: regexp.MustCompile(`^>.*`)},
		{Style: term.Bold, At: regexp.MustCompile(`^(?:Prefill|Decode|strategies:|flags:).*`)},
		{Style: term.Dim, At: regexp.MustCompile(`^\s+strategy .*`)},
		{Style: term.Yellow, At: regexp.MustCompile(`\((?:assumed|an example)[^)]*\)?`)},
	}
	compareRules = []term.Rule{
		{Style: term.Red, At: regexp.MustCompile(`\bFAILED\b`)},
		{Style: term.Green, At: regexp.MustCompile(`\s(ok)\s`)},
		{Style: term.Bold, At: regexp.MustCompile(`^The first operator that differs: .*`)},
		{Style: term.Yellow, At: regexp.MustCompile(`^(Suspect|     or): .*`)},
		{Style: term.Green, At: regexp.MustCompile(`^\d+ passed, 0 failed$`)},
		{Style: term.Red, At: regexp.MustCompile(`^\d+ passed, \d+ failed$`)},
		tableHead,
	}
	tableRules = []term.Rule{tableHead, {Style: term.Dim, At: regexp.MustCompile(`^\S+, go[\d.]+, revision .*`)}}
	tableHead  = term.Rule{Style: term.Dim, At: regexp.MustCompile(`^\s*(?:memory\s+bytes|layer\s+(?:operator|one)|tokens\s+tokens/s|% of rows|operator\s|kernel\s|stage\s|streams\s|strategy\s).*`)}
)

// tokensBar is a bar of tokens on w, which goes when all are done; where nobody sees it nothing
// is written.
func tokensBar(w io.Writer, label string, all int) (bar *term.Bar, done func(int)) {
	bar = term.NewBar(w, label, func(n int64) string { return fmt.Sprint(n, " tokens") })
	return bar, func(n int) {
		if bar.Set(int64(n), int64(all)); n >= all {
			bar.Clear()
		}
	}
}

// bytesBar is a bar of bytes on w.
func bytesBar(w io.Writer, label string) *term.Bar { return term.NewBar(w, label, planner.Size) }
