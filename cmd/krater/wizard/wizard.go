// Package wizard is the screen of krater setup: fields to choose from, the memory and speed of a
// choice, and actions. It knows neither models nor machines; its caller lists the choices and
// estimates each.
package wizard

import (
	"errors"
	"fmt"
	"maps"
	"os"

	tea "charm.land/bubbletea/v2"

	"krater/cmd/krater/term"
)

// Option is one value of a field.
type Option struct {
	Label string
	Value string // of the setting; "": the default, which is not saved
}

// Field is a setting with its options.
type Field struct {
	Key     string // name of the setting
	Title   string
	Help    string // one line
	Options []Option
	At      int // index of the chosen option
}

// Settings returns the chosen values, without defaults.
type Settings map[string]string

// Budget is a memory and the parts that must fit into it.
type Budget struct {
	Name  string
	Parts []Part
	Bytes string // formatted sum
	Share float64
	Fits  bool
	Says  string // what the sum means, in words
}

// Part is one part of a budget.
type Part struct{ Name, Size, Detail string }

// Outlook describes what a choice would mean.
type Outlook struct {
	Budgets []Budget
	Speed   []string // lines
	Trouble string   // why the choice cannot start; "" if it can
	Hidden  []string // keys of fields that have no effect here
}

// Action is the next action after the wizard.
type Action int

// The actions. Save and Serve have written the file.
const (
	Quit Action = iota
	Save
	Serve
	Start // without saving
	Bench // without saving
)

// Wizard is the state of the screen. It implements tea.Model.
type Wizard struct {
	Machine []string // describes the machine
	Fields  []Field
	File    string // file of the settings
	Exists  bool   // the file exists
	Own     bool   // the file is unchanged since the wizard wrote it, so replacing it loses no one's work
	// Stored is the settings in the file. Equal settings need not replace it.
	Stored Settings
	// Estimate says what a choice means. It is called in the background, one call at a time.
	Estimate func(Settings) Outlook
	Outlook  Outlook // the last estimate; initially what is known without one
	// Measure measures the machine for the choice and reports progress. It is called in the
	// background. Later estimates use the result. nil: there is nothing to measure.
	Measure func(s Settings, tell func(term.State)) error
	// Store writes the settings.
	Store func(Settings) error

	Done     Action // chosen at the end
	waiting  bool   // an estimate is running
	measures bool   // the machine is being measured
	measured term.State
	send     func(tea.Msg) // sends to the running program; nil: none
	wanted   *Action       // runs once the choice is planned
	stale    bool          // the choice has changed since the estimate began
	cursor   int           // index of a visible field, or after them of an action
	sure     bool          // the user confirmed that the file may be replaced
	message  string
	width    int
	height   int
	plain    bool
}

// actions are the buttons, in order.
var actions = []struct {
	Action
	label, key string
}{{Serve, "Save, start", "s"}, {Start, "Start only", "t"}, {Bench, "Bench", "b"}, {Save, "Save, quit", "w"}, {Quit, "Quit", "q"}}

// estimated is a finished estimate.
type estimated struct{ Outlook }

// measuring is the progress of a measurement; measured is its end.
type (
	measuring struct{ term.State }
	measured  struct{ error }
)

// Run shows the wizard on a terminal until an action is chosen. It always restores the terminal.
func Run(w *Wizard, in, out *os.File) error {
	w.plain = os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	p := tea.NewProgram(w, tea.WithInput(in), tea.WithOutput(out))
	w.send = p.Send
	_, err := p.Run()
	if errors.Is(err, tea.ErrInterrupted) {
		w.Done = Quit
		return nil
	}
	return err
}

// Init implements tea.Model.
func (w *Wizard) Init() tea.Cmd { return w.estimate() }

// estimate starts an estimate of the choice, unless one is running.
func (w *Wizard) estimate() tea.Cmd {
	if w.waiting {
		w.stale = true
		return nil
	}
	w.waiting, w.stale = true, false
	s := w.Settings()
	return func() tea.Msg { return estimated{w.Estimate(s)} }
}

// Settings returns the chosen values of visible fields.
func (w *Wizard) Settings() Settings {
	s := Settings{}
	for _, i := range w.visible() {
		if f := &w.Fields[i]; f.Options[f.At].Value != "" {
			s[f.Key] = f.Options[f.At].Value
		}
	}
	return s
}

// visible returns the indices of the fields that have an effect.
func (w *Wizard) visible() []int {
	var list []int
	for i, f := range w.Fields {
		hidden := false
		for _, key := range w.Outlook.Hidden {
			hidden = hidden || key == f.Key
		}
		if !hidden {
			list = append(list, i)
		}
	}
	return list
}

// Update implements tea.Model.
func (w *Wizard) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		w.width, w.height = m.Width, m.Height
	case estimated:
		before := len(w.visible())
		w.Outlook, w.waiting = m.Outlook, false
		if w.cursor >= before { // stay on the same action
			w.cursor += len(w.visible()) - before
		}
		w.cursor = min(w.cursor, len(w.visible())+len(actions)-1)
		if w.stale {
			return w, w.estimate()
		}
		if a := w.wanted; a != nil && !w.measures {
			w.wanted, w.message = nil, ""
			return w, w.do(*a)
		}
	case measuring:
		w.measured = m.State
	case measured:
		w.measures, w.message = false, ""
		if m.error != nil {
			w.message, w.wanted = m.Error(), nil
		}
		return w, w.estimate()
	case tea.KeyPressMsg:
		return w, w.key(m.String())
	}
	return w, nil
}

// key handles a key.
func (w *Wizard) key(k string) tea.Cmd {
	fields := len(w.visible())
	last := fields + len(actions) - 1
	switch k {
	case "ctrl+c", "esc", "q":
		return w.do(Quit)
	case "up", "k", "shift+tab":
		w.cursor = (w.cursor + last) % (last + 1)
	case "down", "j", "tab":
		w.cursor = (w.cursor + 1) % (last + 1)
	case "home":
		w.cursor = 0
	case "end":
		w.cursor = fields
	case "left", "h":
		return w.turn(-1)
	case "right", "l", "space":
		return w.turn(1)
	case "m":
		return w.measure()
	case "enter":
		if w.cursor < fields {
			return w.turn(1)
		}
		return w.do(actions[w.cursor-fields].Action)
	default:
		for _, a := range actions {
			if k == a.key {
				return w.do(a.Action)
			}
		}
	}
	return nil
}

// measure starts to measure the machine, unless that is running.
func (w *Wizard) measure() tea.Cmd {
	if w.Measure == nil || w.measures {
		return nil
	}
	w.measures, w.measured, w.message = true, term.State{}, "Measuring this machine; this takes about 10 s."
	s, tell := w.Settings(), func(term.State) {}
	if send := w.send; send != nil {
		tell = func(s term.State) { send(measuring{s}) }
	}
	return func() tea.Msg { return measured{w.Measure(s, tell)} }
}

// turn selects the next option of the field at the cursor, or the next action.
func (w *Wizard) turn(by int) tea.Cmd {
	list := w.visible()
	if w.cursor >= len(list) {
		n := len(actions)
		w.cursor = len(list) + (w.cursor-len(list)+n+by)%n
		return nil
	}
	f := &w.Fields[list[w.cursor]]
	f.At = (f.At + by + len(f.Options)) % len(f.Options)
	w.message, w.sure, w.wanted = "", false, nil
	return w.estimate()
}

// do ends the wizard with an action if that is possible.
func (w *Wizard) do(a Action) tea.Cmd {
	switch {
	case a == Quit:
	case w.measures:
		w.wanted = &a
		w.message = "Krater starts when the machine has been measured."
		return nil
	case w.waiting:
		w.wanted = &a
		w.message = "Krater starts when the choice has been planned."
		return nil
	case a != Save && w.Outlook.Trouble != "":
		w.message = "This choice cannot start: " + w.Outlook.Trouble
		return nil
	case a == Start || a == Bench:
	case w.Exists && !w.Own && !w.sure && !(w.Stored != nil && maps.Equal(w.Settings(), w.Stored)):
		w.sure = true
		w.message = fmt.Sprintf("%s was edited by hand. Press the key again to replace it.", w.File)
		return nil
	default:
		if err := w.Store(w.Settings()); err != nil {
			w.message = err.Error()
			return nil
		}
	}
	w.Done = a
	return tea.Quit
}

// Options builds a list of pairs of value and label.
func Options(pairs ...string) []Option {
	var list []Option
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, Option{Value: pairs[i], Label: pairs[i+1]})
	}
	return list
}
