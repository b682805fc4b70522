package cmdline

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"

	"krater/cmd/krater/term"
)

// page is the part of a command's manual that kong's model lacks.
type page struct {
	about    string
	Examples []example
}

// example is a command line and what it does.
type example struct{ Line, What string }

// helpWidthMax keeps lines readable on wide terminals.
const helpWidthMax = 100

var helpRules = []term.Rule{
	{Style: term.Bold, At: regexp.MustCompile(`^[A-Z][A-Z ]+$`)},
	{Style: term.Bold, At: regexp.MustCompile(`^ ([A-Z].*)$`)},
	{Style: term.Cyan, At: regexp.MustCompile(`^  ((?:-\w, )?--[][\w-]+)`)},
	{Style: term.Cyan, At: regexp.MustCompile(`^    (krater .*)$`)},
}

// printHelp prints kong's help as a manual page: name, synopsis, description, commands, options,
// examples, environment.
func printHelp(_ kong.HelpOptions, ctx *kong.Context) error {
	node := ctx.Selected()
	if node == nil {
		node = ctx.Model.Node
	}
	h := &helpWriter{w: term.Paint(ctx.Stdout, helpRules...), width: min(helpWidthMax, term.Width(ctx.Stdout))}
	name := strings.TrimSpace(node.FullPath())
	if node.Parent == nil {
		name = node.Name
	}
	p := Pages[strings.TrimPrefix(strings.TrimPrefix(name, "krater"), " ")]
	h.section("NAME")
	h.wrap(2, name+" - "+node.Help)
	h.section("SYNOPSIS")
	h.wrap(2, synopsis(node, name))
	if p.about != "" {
		h.section("DESCRIPTION")
		for i, text := range strings.Split(p.about, "\n\n") {
			if i > 0 {
				h.print("")
			}
			h.wrap(2, strings.ReplaceAll(text, "\n", " "))
		}
	}
	h.commands(node)
	h.options(node)
	if len(p.Examples) > 0 {
		h.section("EXAMPLES")
		for i, e := range p.Examples {
			if i > 0 {
				h.print("")
			}
			h.wrap(2, e.What)
			h.print("    " + e.Line)
		}
	}
	if node.Parent == nil {
		h.section("ENVIRONMENT AND FILES")
		h.wrap(2, "Every flag can also be set by an environment variable and in the YAML file that --config names: --max-seqs 8, KRATER_MAX_SEQS=8, max-seqs: 8. The flag overrides the variable, and the variable overrides the file. NO_COLOR turns colours off.")
		h.print("")
		h.wrap(2, "For the page of a command: krater help COMMAND, or krater COMMAND --help.")
	}
	return h.err
}

// synopsis returns the command line in short.
func synopsis(node *kong.Node, name string) string {
	line := name
	if len(node.Children) > 0 {
		line += " COMMAND"
	}
	for _, p := range node.Positional {
		line += " " + p.Summary()
	}
	return line + " [flags]"
}

// helpWriter writes paragraphs and keeps the first error.
type helpWriter struct {
	w     io.Writer
	width int
	begun bool
	err   error
}

func (h *helpWriter) print(line string) {
	if _, err := fmt.Fprintln(h.w, line); h.err == nil {
		h.err = err
	}
}

func (h *helpWriter) section(name string) {
	if h.begun {
		h.print("")
	}
	h.begun = true
	h.print(name)
}

// wrap writes text in lines that begin with the given number of blanks.
func (h *helpWriter) wrap(indent int, text string) {
	for _, line := range term.Wrap(text, h.width-indent) {
		h.print(strings.Repeat(" ", indent) + line)
	}
}

// commands lists the commands below a node, including subcommands, and what they do. The program's
// own commands are in groups.
func (h *helpWriter) commands(node *kong.Node) {
	if len(node.Children) == 0 {
		return
	}
	h.section("COMMANDS")
	var names, helps, groups []string
	column := 0
	for _, c := range node.Leaves(true) {
		name := strings.TrimPrefix(strings.TrimPrefix(c.FullPath(), node.FullPath()), " ")
		group := ""
		if g := c.ClosestGroup(); g != nil && node.Parent == nil {
			group = g.Title
		}
		names, helps, groups = append(names, name), append(helps, c.Help), append(groups, group)
		column = max(column, len(name)+4)
	}
	for i, name := range names {
		if g := groups[i]; g != "" && (i == 0 || g != groups[i-1]) {
			if i > 0 {
				h.print("")
			}
			h.print(" " + g)
		}
		lead := fmt.Sprintf("  %-*s", column-2, name)
		for _, line := range term.Wrap(helps[i], max(20, h.width-column)) {
			h.print(lead + line)
			lead = strings.Repeat(" ", column)
		}
	}
}

// options lists a node's arguments and its flags, its own ones first.
func (h *helpWriter) options(node *kong.Node) {
	begun := false
	entry := func(head, help string) {
		if !begun {
			h.section("OPTIONS")
			begun = true
		}
		h.print("  " + head)
		h.wrap(6, help)
	}
	for _, p := range node.Positional {
		entry(p.Summary(), p.Help)
	}
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			entry(flagHead(f), f.Help)
		}
	}
}

// flagHead returns a flag as it is typed: -h, --name=VALUE.
func flagHead(f *kong.Flag) string {
	head := "--" + f.Name
	if Negatable(f) {
		head = "--[no-]" + f.Name
	}
	if f.Short != 0 {
		head = fmt.Sprintf("-%c, %s", f.Short, head)
	}
	if f.IsBool() {
		return head
	}
	return head + "=" + f.FormatPlaceHolder()
}
