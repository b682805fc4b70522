package wizard

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"krater/cmd/krater/term"
)

// The smallest screen that is laid out. A smaller one shows the upper left part.
const (
	widthMin  = 40
	heightMin = 10
	titleMax  = 18
	barWidth  = 12
)

// View implements tea.Model.
func (w *Wizard) View() tea.View {
	v := tea.NewView(w.Screen())
	v.AltScreen = true
	v.WindowTitle = "krater setup"
	return v
}

// Screen returns the text of the screen: height lines of at most width columns.
func (w *Wizard) Screen() string {
	width, height := w.width, w.height
	if width == 0 || height == 0 {
		width, height = 80, 24
	}
	width, height = max(width, widthMin), max(height, heightMin)
	fields, cursor := w.fieldLines(width)
	bottom := []string{w.actionLine(), w.footer(width)}
	// The choice comes first, then its consequences, then the machine.
	room := height - len(bottom) - 1
	head := w.head(width)
	if len(head)+len(fields)+6 > room {
		head = head[:1]
	}
	room -= len(head) + 1
	shown := min(len(fields), max(3, room-4))
	from := max(0, min(cursor-shown/2, len(fields)-shown))
	lines := append(head, "")
	lines = append(lines, fields[from:from+shown]...)
	room -= shown
	if room > 1 {
		lines = append(lines, "")
		lines = append(lines, w.outlookLines(width, room-1)...)
	}
	for len(lines) < height-len(bottom) {
		lines = append(lines, "")
	}
	lines = append(lines[:height-len(bottom)], bottom...)
	for i, l := range lines {
		lines[i] = clip(l, width)
	}
	return strings.Join(lines, "\n")
}

// head returns the title and the machine.
func (w *Wizard) head(width int) []string {
	lines := []string{w.style(bold, "krater setup") + w.style(dim, "   use the arrow keys")}
	for _, m := range w.Machine {
		lines = append(lines, w.style(dim, clip(m, width)))
	}
	return lines
}

// fieldLines returns one line per field, and the line of the cursor.
func (w *Wizard) fieldLines(width int) (lines []string, cursor int) {
	for n, i := range w.visible() {
		f := &w.Fields[i]
		mark, value, count := "  ", f.Options[f.At].Label, ""
		if n == w.cursor {
			mark, cursor = "> ", n
			value, count = "< "+value+" >", fmt.Sprintf("%d/%d", f.At+1, len(f.Options))
		}
		line := clip(fmt.Sprintf("%s%-*s%5s  %s", mark, titleMax, f.Title, count, value), width)
		if n == w.cursor {
			line = w.style(cyan, line)
		}
		lines = append(lines, line)
	}
	return lines, cursor
}

// actionLine returns the buttons.
func (w *Wizard) actionLine() string {
	at := w.cursor - len(w.visible())
	var parts []string
	for i, a := range actions {
		label := fmt.Sprintf("[%s: %s]", a.key, a.label)
		if i == at {
			label = w.style(cyan, ">"+label+"<")
		}
		parts = append(parts, label)
	}
	return strings.Join(parts, " ")
}

// footer returns the last line: a message, the help of the field, or the keys.
func (w *Wizard) footer(width int) string {
	list := w.visible()
	switch {
	case w.measures && w.measured.All > 0:
		return w.style(yellow, w.measured.Line(width))
	case w.message != "":
		return w.style(yellow, clip(w.message, width))
	case w.cursor < len(list) && w.Fields[list[w.cursor]].Help != "":
		return w.style(dim, clip(w.Fields[list[w.cursor]].Help, width))
	}
	return w.style(dim, clip("up, down: field   left, right: value   enter: run   settings are saved in "+w.File, width))
}

// outlookLines returns errors, speed and memory in at most room lines, the most important first.
func (w *Wizard) outlookLines(width, room int) []string {
	var lines, speed, memory, parts []string
	if w.Outlook.Trouble != "" {
		for i, l := range term.Wrap("cannot start: "+w.Outlook.Trouble, width) {
			if i < 3 {
				lines = append(lines, w.style(red, l))
			}
		}
	}
	for _, s := range w.Outlook.Speed {
		speed = append(speed, term.Wrap(s, width)...)
	}
	for _, b := range w.Outlook.Budgets {
		full := min(barWidth, max(0, int(b.Share*barWidth+0.5)))
		verdict, colour := b.Says, green
		if !b.Fits {
			colour = red
		}
		memory = append(memory, clip(b.Name, 20)+" ["+w.style(colour, strings.Repeat("#", full))+strings.Repeat(".", barWidth-full)+"] "+
			b.Bytes+", "+w.style(colour, clip(verdict, max(0, width-barWidth-len([]rune(b.Name))-len(b.Bytes)-6))))
	}
	for _, b := range w.Outlook.Budgets {
		for _, p := range b.Parts {
			parts = append(parts, clip(fmt.Sprintf("  %-22s %10s  %s", p.Name, p.Size, p.Detail), width))
		}
	}
	if len(lines)+len(speed)+len(memory) > room { // memory is more important than speed
		speed, memory = memory, speed
	}
	lines = append(append(lines, speed...), memory...)
	if n := room - len(lines); n < len(parts) && n > 0 {
		parts = append(parts[:n-1:n-1], w.style(dim, fmt.Sprintf("  and %d more", len(parts)-n+1)))
	}
	lines = append(lines, parts...)
	if len(lines) == 0 {
		lines = []string{w.style(dim, "planning ...")}
	}
	return lines[:min(len(lines), room)]
}

// The styles, as the parameters of an SGR sequence.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// style sets s in a style, if there are colours.
func (w *Wizard) style(style, s string) string {
	if w.plain || s == "" {
		return s
	}
	return "\x1b[" + style + "m" + s + "\x1b[0m"
}

// clip cuts s to width columns. Style sequences take no columns and are closed.
func clip(s string, width int) string {
	n, styled, escape := 0, false, false
	for i, r := range s {
		switch {
		case r == '\x1b':
			escape, styled = true, true
		case escape:
			escape = r != 'm'
		case n == width:
			if styled {
				return s[:i] + "\x1b[0m"
			}
			return s[:i]
		default:
			n++
		}
	}
	return s
}
