// Package console is the input and output of a command: its streams, the progress of long work, and
// the colours of reports on a terminal.
package console

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/bench/stat"
	"krater/cmd/krater/cmdline"
	"krater/cmd/krater/term"
	"krater/kernels/machine"
)

// Colours of reports on a terminal. The rules match the text that a report prints.
var (
	DoctorRules = []term.Rule{
		{Style: term.Green, At: regexp.MustCompile(`^(ok) `)},
		{Style: term.Yellow, At: regexp.MustCompile(`^(warn) `)},
		{Style: term.Dim, At: regexp.MustCompile(`^\s+(recommended: .*)`)},
		{Style: term.Yellow, At: regexp.MustCompile(`^\s+(fix: .*)`)},
		{Style: term.Bold, At: regexp.MustCompile(`^(\S+) needs$`)},
		{Style: term.Green, At: regexp.MustCompile(`\bfits\b`)},
		{Style: term.Red, At: regexp.MustCompile(`\bDOES NOT FIT\b`)},
		tableHead,
	}
	PlanRules = []term.Rule{
		{Style: term.Green, At: regexp.MustCompile(`^>.*`)},
		{Style: term.Bold, At: regexp.MustCompile(`^(?:Prefill|Decode|strategies:|flags:).*`)},
		{Style: term.Dim, At: regexp.MustCompile(`^\s+strategy .*`)},
		{Style: term.Yellow, At: regexp.MustCompile(`\((?:assumed|an example)[^)]*\)?`)},
	}
	CompareRules = []term.Rule{
		{Style: term.Red, At: regexp.MustCompile(`\bFAILED\b`)},
		{Style: term.Green, At: regexp.MustCompile(`\s(ok)\s`)},
		{Style: term.Bold, At: regexp.MustCompile(`^The first operator that differs: .*`)},
		{Style: term.Yellow, At: regexp.MustCompile(`^(Suspect|     or): .*`)},
		{Style: term.Green, At: regexp.MustCompile(`^\d+ passed, 0 failed$`)},
		{Style: term.Red, At: regexp.MustCompile(`^\d+ passed, \d+ failed$`)},
		tableHead,
	}
	TableRules = []term.Rule{tableHead, {Style: term.Dim, At: regexp.MustCompile(`^\S+, go[\d.]+, revision .*`)}}
	tableHead  = term.Rule{Style: term.Dim, At: regexp.MustCompile(`^\s*(?:memory\s+bytes|layer\s+(?:operator|one)|tokens\s+tokens/s|% of rows|operator\s|kernel\s|stage\s|streams\s|strategy\s).*`)}
)

// ProgressEvery is the time between two lines about long work if there is no bar.
const ProgressEvery = 5 * time.Second

// Shown returns the progress of the command, on standard error.
func (e *Env) Shown() *term.Progress {
	if e.Progress == nil {
		e.Progress = term.NewProgress(e.Err, ProgressEvery, func(s term.State) { fmt.Fprintln(e.Err, "krater:", s) })
	}
	return e.Progress
}

// Say writes a line for people to standard error, above a bar.
func (e *Env) Say(text ...any) {
	line := strings.TrimSuffix(fmt.Sprintln(text...), "\n")
	fmt.Fprintln(e.Shown().Beside(e.Err), "krater:", term.Shown(line))
}

// Tokens reports how many of all tokens a phase has finished.
func (e *Env) Tokens(phase string, all int) (done func(int)) {
	return func(n int) { e.Shown().Set(phase, term.Tokens, int64(n), int64(all)) }
}

// Steps reports which of all steps begins: as the bar's name on a terminal, as a line elsewhere.
func (e *Env) Steps(all int) (next func(what string)) {
	n := 0
	return func(what string) {
		if !e.Shown().Bar() {
			e.Say(what)
		}
		e.Shown().Set(what, term.Steps, int64(n), int64(all))
		n++
	}
}

// Env is the environment of a command.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	Ctx      *kong.Context           // the parsed command line
	File     *cmdline.File           // the settings file; nil: none
	Machine  func() *machine.Machine // nil: this one
	Meter    predict.Meter           // nil: the real one
	Progress *term.Progress          // see Shown
}

// Here reads the machine.
func (e *Env) Here() *machine.Machine {
	if e.Machine != nil {
		return e.Machine()
	}
	return machine.Here()
}

// ExitError is an exit status without a message.
type ExitError int

func (e ExitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Measuring shows the progress of a measurement, by seconds or by steps.
func Measuring(p *term.Progress) config.Telling {
	return func(what string, done, all float64) {
		unit := term.Seconds
		if what == "the GPU" {
			unit = term.Steps
		}
		p.Set("measure "+what, unit, int64(done), int64(all))
	}
}

// Sentence writes a line of words, broken into lines of 100 columns.
func Sentence(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintln(w, stat.Wrap(fmt.Sprintf(format, args...)))
	return err
}

// WriteJSON writes a report, indented.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
