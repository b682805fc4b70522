package stat

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Table is figures in rows, as every benchmark prints them. A cell is a string, a whole number, a
// float64 (three significant digits, more where it is large), or nil for nothing.
type Table struct {
	Title   string
	Columns []string // a unit belongs to the name: "GB/s"
	Rows    [][]any
}

// Add appends a row.
func (t *Table) Add(cells ...any) { t.Rows = append(t.Rows, cells) }

// lineWidth bounds lines of words. A table is as wide as its columns are.
const lineWidth = 100

// Wrap breaks text into lines of 100 columns, of which the second and later ones are indented.
func Wrap(text string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > lineWidth:
			b.WriteString("\n  ")
			column = 2
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// Text writes tables with a line between them.
func Text(w io.Writer, tables []Table) error {
	for i := range tables {
		if i > 0 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		if err := tables[i].Text(w); err != nil {
			return err
		}
	}
	return nil
}

// Text writes the table with aligned columns; numbers are right-aligned.
func (t *Table) Text(w io.Writer) error {
	var b strings.Builder
	if t.Title != "" {
		b.WriteString(Wrap(t.Title) + "\n")
	}
	rows, right := t.cells()
	width := make([]int, len(t.Columns))
	for _, row := range append([][]string{t.Columns}, rows...) {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for _, row := range append([][]string{t.Columns}, rows...) {
		line := ""
		for i, c := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i > 0 {
				line += "  "
			}
			if right[i] {
				line += pad + c
			} else {
				line += c + pad
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Markdown writes the table for a document.
func (t *Table) Markdown(w io.Writer) error {
	var b strings.Builder
	if t.Title != "" {
		b.WriteString(t.Title + "\n\n")
	}
	rows, right := t.cells()
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(t.Columns)
	rule := make([]string, len(t.Columns))
	for i := range rule {
		rule[i] = "---"
		if right[i] {
			rule[i] = "--:"
		}
	}
	line(rule)
	for _, row := range rows {
		for i := range row {
			row[i] = strings.ReplaceAll(row[i], "|", `\|`)
		}
		line(row)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// cells formats every cell. right says which columns hold only numbers.
func (t *Table) cells() (rows [][]string, right []bool) {
	right = make([]bool, len(t.Columns))
	for i := range right {
		right[i] = len(t.Rows) > 0
	}
	for _, row := range t.Rows {
		texts := make([]string, len(t.Columns))
		for i := range texts {
			if i >= len(row) || row[i] == nil {
				continue
			}
			texts[i] = cell(row[i])
			if _, text := row[i].(string); text {
				right[i] = false
			}
		}
		rows = append(rows, texts)
	}
	return rows, right
}

func cell(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return Number(v)
	}
	return fmt.Sprint(v)
}

// Number writes a figure with two or three significant digits, whole from 100 on.
func Number(v float64) string {
	abs := max(v, -v)
	switch {
	case abs >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case abs >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case abs >= 0.09995 || v == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case abs >= 0.000995:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}
