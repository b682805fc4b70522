package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"krater/cmd/krater/term"
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

// progressEvery is the time between two lines about long work, where there is no bar.
const progressEvery = 5 * time.Second

// shown is the progress of what the command does, on standard error.
func (e *env) shown() *term.Progress {
	if e.progress == nil {
		e.progress = term.NewProgress(e.err, progressEvery, func(s term.State) { fmt.Fprintln(e.err, "krater:", s) })
	}
	return e.progress
}

// say writes a line for people to standard error, beside a bar.
func (e *env) say(text ...any) {
	line := strings.TrimSuffix(fmt.Sprintln(text...), "\n")
	fmt.Fprintln(e.shown().Beside(e.err), "krater:", term.Shown(line))
}

// tokens tells how many tokens of all a phase has done.
func (e *env) tokens(phase string, all int) (done func(int)) {
	return func(n int) { e.shown().Set(phase, term.Tokens, int64(n), int64(all)) }
}

// steps tells which of all steps begins: the bar's name on a terminal, a line elsewhere.
func (e *env) steps(all int) (next func(what string)) {
	n := 0
	return func(what string) {
		if !e.shown().Bar() {
			e.say(what)
		}
		e.shown().Set(what, term.Steps, int64(n), int64(all))
		n++
	}
}
