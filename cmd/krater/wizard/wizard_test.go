package wizard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"krater/cmd/krater/term"
)

// rig is a wizard over made-up choices, with what was stored.
type rig struct {
	*Wizard
	stored []Settings
	asked  []Settings
}

func newRig() *rig {
	r := &rig{}
	r.Wizard = &Wizard{
		Machine: []string{"a machine of 2 threads"},
		File:    "k.yaml",
		Fields: []Field{
			{Key: "model", Title: "Model", Options: []Option{{"tiny", ""}, {"large", "/models/large"}, {"unknown", "/models/unknown"}}},
			{Key: "gpu", Title: "Device", Help: "where the layers are", Options: []Option{{"CPU", ""}, {"GPU 0", "0"}}},
			{Key: "decode-strategy", Title: "Decode strategy", Options: []Option{{"auto", ""}, {"lru", "lru"}}},
		},
		Estimate: func(s Settings) Outlook {
			r.asked = append(r.asked, s)
			o := Outlook{Speed: []string{"decode 12 tok/s for " + s["model"]}, Budgets: []Budget{{Name: "memory", Bytes: "3 GiB", Share: 0.5, Fits: true, Says: "fits", Parts: []Part{{"experts", "2 GiB", "26 layers"}}}}}
			if s["gpu"] == "" {
				o.Hidden = []string{"decode-strategy"}
			}
			if s["model"] == "/models/unknown" {
				o.Trouble = "its family is not known"
			}
			return o
		},
		Store: func(s Settings) error { r.stored = append(r.stored, s); return nil },
	}
	r.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	r.run(r.Init())
	return r
}

// run does a command and what follows from it; it reports whether that ends the program.
func (r *rig) run(cmd tea.Cmd) bool {
	for cmd != nil {
		msg := cmd()
		if _, quit := msg.(tea.QuitMsg); quit {
			return true
		}
		_, cmd = r.Update(msg)
	}
	return false
}

func (r *rig) send(msg tea.Msg) bool {
	_, cmd := r.Update(msg)
	return r.run(cmd)
}

var codes = map[string]rune{"up": tea.KeyUp, "down": tea.KeyDown, "left": tea.KeyLeft, "right": tea.KeyRight, "enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "end": tea.KeyEnd, "home": tea.KeyHome}

// press types keys and reports whether that ended the program.
func (r *rig) press(keys ...string) (quit bool) {
	for _, k := range keys {
		code, ok := codes[k]
		if !ok {
			code = rune(k[0])
		}
		key := tea.Key{Code: code}
		if !ok {
			key.Text = k
		}
		if r.send(tea.KeyPressMsg(key)) {
			quit = true
		}
	}
	return quit
}

func TestChoicesAndOutlookFollow(t *testing.T) {
	r := newRig()
	if s := r.Screen(); !strings.Contains(s, "a machine of 2 threads") || !strings.Contains(s, "26 layers") || strings.Contains(s, "Decode strategy") {
		t.Errorf("got\n%s", s)
	}
	r.press("right")
	if s := r.Screen(); !strings.Contains(s, "large") || !strings.Contains(s, "decode 12 tok/s for /models/large") {
		t.Errorf("got\n%s", s)
	}
	r.press("down", "right") // a GPU: there are strategies now
	if s := r.Screen(); !strings.Contains(s, "Decode strategy") {
		t.Errorf("got\n%s", s)
	}
	r.press("down", "left")
	want := Settings{"model": "/models/large", "gpu": "0", "decode-strategy": "lru"}
	if got := r.Settings(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v", got)
	}
	// What is hidden again is no part of the settings.
	r.press("up", "left")
	if got := r.Settings(); fmt.Sprint(got) != fmt.Sprint(Settings{"model": "/models/large"}) {
		t.Errorf("got %v", got)
	}
}

func TestActions(t *testing.T) {
	for keys, want := range map[string]Action{"s": Serve, "t": Start, "b": Bench, "w": Save, "q": Quit, "esc": Quit, "end enter": Serve, "end right enter": Start, "end right right enter": Bench, "end left enter": Quit, "up up enter": Save} {
		r := newRig()
		if !r.press(strings.Fields(keys)...) || r.Done != want {
			t.Errorf("%s: %v, want %v", keys, r.Done, want)
		}
		if stored := len(r.stored) == 1; stored != (want == Save || want == Serve) {
			t.Errorf("%s: stored %v", keys, r.stored)
		}
	}
}

func TestWhatCannotBeStarted(t *testing.T) {
	r := newRig()
	r.press("left") // the last model
	if r.press("s") || r.press("b") || r.press("t") || len(r.stored) > 0 {
		t.Error("it was started")
	}
	if s := r.Screen(); !strings.Contains(s, "This choice cannot start: its family is not known") {
		t.Errorf("got\n%s", s)
	}
	if !r.press("w") || r.Done != Save {
		t.Error("it cannot be saved either")
	}
}

// TestWhatIsAskedForEarlyIsDone once the choice is planned.
func TestWhatIsAskedForEarlyIsDone(t *testing.T) {
	r := newRig()
	_, plan := r.Update(tea.KeyPressMsg{Code: tea.KeyRight})
	if r.press("s") || len(r.stored) > 0 {
		t.Fatal("started before it was planned")
	}
	if !r.run(plan) || r.Done != Serve || len(r.stored) != 1 || r.stored[0]["model"] != "/models/large" {
		t.Errorf("%v, stored %v", r.Done, r.stored)
	}
	r = newRig()
	_, plan = r.Update(tea.KeyPressMsg{Code: tea.KeyLeft}) // what cannot be started
	if r.press("s") || r.run(plan) || !strings.Contains(r.Screen(), "This choice cannot start") {
		t.Errorf("got\n%s", r.Screen())
	}
}

// TestMeasure: the outlook after it is a new one, and nothing starts meanwhile.
func TestMeasure(t *testing.T) {
	r := newRig()
	if _, cmd := r.Update(tea.KeyPressMsg{Code: 'm', Text: "m"}); cmd != nil {
		t.Error("there is nothing to measure")
	}
	var fault error
	r.Measure = func(s Settings, tell func(term.State)) error {
		tell(term.State{Phase: "measure", All: 4})
		return fault
	}
	_, done := r.Update(tea.KeyPressMsg{Code: 'm', Text: "m"})
	if _, again := r.Update(tea.KeyPressMsg{Code: 'm', Text: "m"}); done == nil || again != nil {
		t.Error("it is not measured once")
	}
	r.press("right") // planned meanwhile
	n := len(r.asked)
	if r.press("s") || !strings.Contains(r.Screen(), "has been measured") {
		t.Errorf("started beside a measurement:\n%s", r.Screen())
	}
	r.Update(measuring{term.State{Phase: "measure threads", Unit: term.Seconds, Done: 2, All: 8, PerSecond: 1}})
	if s := bare(r.Screen()); !strings.Contains(s, "measure threads [###") || !strings.Contains(s, "25 %  2 s of 8 s  6s left") {
		t.Errorf("no bar:\n%s", s)
	}
	if !r.run(done) || len(r.asked) != n+1 || r.Done != Serve || r.stored[0]["model"] != "/models/large" {
		t.Errorf("%v, asked %d times, stored %v", r.Done, len(r.asked)-n, r.stored)
	}
	r.stored, fault = nil, errors.New("no kernel")
	if r.press("m") || !strings.Contains(r.Screen(), "no kernel") {
		t.Errorf("got\n%s", r.Screen())
	}
}

func TestTheSameFileIsNotAskedFor(t *testing.T) {
	r := newRig()
	r.Exists, r.Stored = true, Settings{}
	r.press("right", "left")
	if !r.press("s") || r.Done != Serve {
		t.Errorf("got\n%s", r.Screen())
	}
	r = newRig()
	r.Exists, r.Stored = true, Settings{}
	if r.press("right", "s") {
		t.Error("another choice replaces the file unasked")
	}
}

// TestSmallScreens: whether the choice fits is said before how fast it is, and what is left away is counted.
func TestSmallScreens(t *testing.T) {
	r := newRig()
	r.Outlook.Speed = []string{strings.Repeat("fast ", 60)}
	for i := range 20 {
		r.Outlook.Budgets[0].Parts = append(r.Outlook.Budgets[0].Parts, Part{fmt.Sprint("part ", i), "1 GiB", ""})
	}
	r.send(tea.WindowSizeMsg{Width: 60, Height: 12})
	s := r.Screen()
	if memory := strings.Index(s, "memory ["); memory < 0 || memory > strings.Index(s, "fast") {
		t.Errorf("got\n%s", s)
	}
	r.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	s = r.Screen()
	var rest int
	if at := strings.Index(s, "and "); at < 0 {
		t.Errorf("got\n%s", s)
	} else if _, err := fmt.Sscanf(bare(s[at:]), "and %d more", &rest); err != nil || rest+strings.Count(s, " GiB  ") != 21 {
		t.Errorf("%v: %d are left away:\n%s", err, rest, s)
	}
	r.send(tea.WindowSizeMsg{Width: 80, Height: 60})
	if s := r.Screen(); !strings.Contains(s, "part 19") || strings.Contains(s, "more") {
		t.Errorf("got\n%s", s)
	}
}

func TestAFileIsReplacedOnceSure(t *testing.T) {
	r := newRig()
	r.Exists = true
	if r.press("w") || len(r.stored) > 0 || !strings.Contains(r.Screen(), "k.yaml was edited by hand. Press the key again") {
		t.Errorf("got\n%s", r.Screen())
	}
	r.press("right") // something else: asked again
	if r.press("w") || !r.press("w") || len(r.stored) != 1 {
		t.Errorf("stored %v", r.stored)
	}
	r = newRig()
	r.Exists, r.Own = true, true
	if r.press("right"); !r.press("s") || len(r.stored) != 1 {
		t.Error("asks before it replaces its own file")
	}
	r = newRig()
	r.Exists = true
	if !r.press("t") || len(r.stored) != 0 || r.Done != Start {
		t.Errorf("%v, stored %v", r.Done, r.stored)
	}
	r = newRig()
	r.Store = func(Settings) error { return errors.New("no room on the disk") }
	if r.press("w") || !strings.Contains(r.Screen(), "no room on the disk") {
		t.Errorf("got\n%s", r.Screen())
	}
}

// TestOneEstimateAtATime: what is typed meanwhile is estimated once, as it is then.
func TestOneEstimateAtATime(t *testing.T) {
	r := newRig()
	_, first := r.Update(tea.KeyPressMsg{Code: tea.KeyRight})
	if first == nil {
		t.Fatal("no estimate")
	}
	for range 4 {
		if _, cmd := r.Update(tea.KeyPressMsg{Code: tea.KeyRight}); cmd != nil {
			t.Error("another estimate beside it")
		}
	}
	if r.press("s") || !strings.Contains(r.Screen(), "has been planned") {
		t.Errorf("started before it was planned:\n%s", r.Screen())
	}
	r.Update(tea.KeyPressMsg{Code: tea.KeyRight}) // something else is chosen: that is not to be started
	for range 5 {
		r.Update(tea.KeyPressMsg{Code: tea.KeyRight})
	}
	n := len(r.asked)
	if r.run(first) {
		t.Error("started though the choice changed")
	}
	if len(r.asked) != n+2 || r.asked[n+1]["model"] != "/models/unknown" {
		t.Errorf("asked %v", r.asked[n:])
	}
}

// TestEveryScreenFits: no line is longer and none is more than there is room for, and the cursor's
// field and the buttons are always seen.
func TestEveryScreenFits(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {40, 10}, {60, 12}, {132, 50}, {41, 60}} {
		for _, plain := range []bool{true, false} {
			r := newRig()
			r.plain = plain
			for i := range 9 {
				r.Fields = append(r.Fields, Field{Key: fmt.Sprint("k", i), Title: fmt.Sprint("More ", i), Help: strings.Repeat("long ", 40), Options: []Option{{strings.Repeat("x", 100), ""}, {"y", "y"}}})
			}
			r.send(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			for step := range len(r.visible()) + len(actions) {
				lines := strings.Split(r.Screen(), "\n")
				if len(lines) != size[1] {
					t.Fatalf("%v: %d lines", size, len(lines))
				}
				for _, l := range lines {
					if n := len([]rune(bare(l))); n > size[0] {
						t.Fatalf("%v: %d columns: %q", size, n, l)
					}
					if plain && bare(l) != l {
						t.Fatalf("%v: colours: %q", size, l)
					}
				}
				if !strings.Contains(bare(lines[size[1]-2]), "[s: Save, start") {
					t.Fatalf("%v: no buttons:\n%s", size, r.Screen())
				}
				if step < len(r.visible()) && !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(bare(l), "> ") }) {
					t.Fatalf("%v: no cursor at %d:\n%s", size, step, r.Screen())
				}
				r.press("down")
			}
		}
	}
}

// bare is a line without styles.
func bare(s string) string {
	for {
		from := strings.Index(s, "\x1b[")
		if from < 0 {
			return s
		}
		s = s[:from] + s[from+strings.IndexByte(s[from:], 'm')+1:]
	}
}

// TestProgram runs the whole program on pipes instead of a terminal.
func TestProgram(t *testing.T) {
	r := newRig()
	in, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer typed.Close()
	var out bytes.Buffer
	p := tea.NewProgram(r.Wizard, tea.WithInput(in), tea.WithOutput(&out), tea.WithWindowSize(80, 24), tea.WithEnvironment([]string{"TERM=xterm"}))
	done := make(chan error, 1)
	go func() { _, err := p.Run(); done <- err }()
	if _, err := typed.WriteString("\x1b[C"); err != nil { // right
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // the choice is planned meanwhile
	if _, err := typed.WriteString("w"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
	if r.Done != Save || len(r.stored) != 1 || r.stored[0]["model"] != "/models/large" {
		t.Errorf("%v %v", r.Done, r.stored)
	}
	if s := out.String(); !strings.Contains(s, "\x1b[?1049h") || strings.LastIndex(s, "\x1b[?1049l") < strings.LastIndex(s, "\x1b[?1049h") {
		t.Errorf("the other screen is not left: %q", s)
	}
}
