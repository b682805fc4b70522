package cmdline

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Completion lists the words that may follow a command.
type Completion struct {
	Path     string // such as "bench kernels"; "" at the top
	help     string
	commands []*kong.Node
	Flags    []*kong.Flag
	values   []string // of the first argument
}

// Completions lists the completions of node and of all commands below it.
func Completions(node *kong.Node) []Completion {
	c := Completion{Path: strings.TrimPrefix(strings.TrimPrefix(node.FullPath(), "krater"), " "), help: node.Help}
	for _, group := range node.AllFlags(true) {
		c.Flags = append(c.Flags, group...)
	}
	for _, p := range node.Positional {
		if p.Enum != "" {
			c.values = p.EnumSlice()
		}
	}
	list := []Completion{c}
	for _, child := range node.Children {
		if !child.Hidden {
			list[0].commands = append(list[0].commands, child)
			list = append(list, Completions(child)...)
		}
	}
	// A command that has subcommands leaves its flags to the subcommand that it runs by default.
	if node.DefaultCmd != nil {
		for _, f := range list[1:] {
			if strings.HasSuffix(f.Path, node.DefaultCmd.Name) {
				list[0].Flags = f.Flags
			}
		}
	}
	return list
}

// words returns what may be typed after the command.
func (c *Completion) words() []string {
	var list []string
	for _, n := range c.commands {
		list = append(list, n.Name)
	}
	list = append(list, c.values...)
	for _, f := range c.Flags {
		list = append(list, "--"+f.Name)
		if Negatable(f) {
			list = append(list, "--no-"+f.Name)
		}
	}
	return list
}

// Negatable reports whether the flag has a --no- form.
func Negatable(f *kong.Flag) bool { return f.Tag != nil && f.Tag.Negatable != "" }

// CompleteBash writes a function that finds the command in the words typed so far.
func CompleteBash(w io.Writer, all []Completion) error {
	var b strings.Builder
	b.WriteString(`_krater() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev= path= word i words=
    (( COMP_CWORD > 0 )) && prev=${COMP_WORDS[COMP_CWORD-1]}
    [[ $prev == = ]] && prev=${COMP_WORDS[COMP_CWORD-2]}
    [[ $cur == = ]] && cur=
    for (( i = 1; i < COMP_CWORD; i++ )); do
        word=${COMP_WORDS[i]}
        case "$path $word" in
`)
	for _, c := range all[1:] {
		at := strings.LastIndex(c.Path, " ")
		fmt.Fprintf(&b, "        %q) path=%q ;;\n", c.Path[:max(0, at)]+" "+c.Path[at+1:], c.Path)
	}
	b.WriteString("        esac\n    done\n    case \"$prev\" in\n")
	for _, line := range flagValues(all) {
		fmt.Fprintf(&b, "    %s) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n", line.flags, line.values)
	}
	fmt.Fprintf(&b, "    %s) local IFS=$'\\n'; COMPREPLY=($(compgen -f -- \"$cur\")); compopt -o filenames 2>/dev/null; return ;;\n    esac\n    case \"$path\" in\n", strings.Join(fileFlags(all), "|"))
	for _, c := range all {
		fmt.Fprintf(&b, "    %q) words=%q ;;\n", c.Path, strings.Join(c.words(), " "))
	}
	b.WriteString("    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -o default -F _krater krater\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// valued are flags that take the same set of values.
type valued struct{ flags, values string }

// flagValues lists the flags with a fixed set of values. Flags of the same name have the same
// values in every command.
func flagValues(all []Completion) []valued {
	values := map[string][]string{}
	var names []string
	for _, c := range all {
		for _, f := range c.Flags {
			if f.Enum == "" || f.IsBool() {
				continue
			}
			if values[f.Name] == nil {
				names = append(names, f.Name)
			}
			for _, v := range f.EnumSlice() {
				if !slices.Contains(values[f.Name], v) {
					values[f.Name] = append(values[f.Name], v)
				}
			}
		}
	}
	slices.Sort(names)
	var list []valued
	for _, n := range names {
		list = append(list, valued{"--" + n, strings.Join(values[n], " ")})
	}
	return list
}

// takesFile reports whether a flag's value is a file or a folder.
func takesFile(f *kong.Flag) bool {
	return f.Tag != nil && slices.Contains([]string{"path", "existingfile", "existingdir", "model"}, f.Tag.Type)
}

// fileFlags lists the flags whose values are files.
func fileFlags(all []Completion) []string {
	var list []string
	for _, c := range all {
		for _, f := range c.Flags {
			if takesFile(f) {
				list = append(list, "--"+f.Name)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// CompleteFish writes one line per command and flag.
func CompleteFish(w io.Writer, all []Completion) error {
	var b strings.Builder
	b.WriteString("complete -c krater -f\n")
	for _, c := range all {
		when := "__fish_use_subcommand"
		if c.Path != "" {
			names := strings.Fields(c.Path)
			when = "__fish_seen_subcommand_from " + names[0]
			if len(names) > 1 {
				when += "; and __fish_seen_subcommand_from " + names[1]
			} else if others := groupsWith(all, names[0]); others != "" { // bench serve is not serve
				when += "; and not __fish_seen_subcommand_from " + others
			}
		}
		for _, n := range c.commands {
			also := when
			if c.Path != "" { // suggest a subcommand only once
				also += "; and not __fish_seen_subcommand_from " + siblings(c.commands)
			}
			fmt.Fprintf(&b, "complete -c krater -n %s -a %s -d %s\n", fishQuote(also), n.Name, fishQuote(firstSentence(n.Help)))
		}
		for _, v := range c.values {
			fmt.Fprintf(&b, "complete -c krater -n %s -a %s\n", fishQuote(when), v)
		}
		for _, f := range c.Flags {
			line := fmt.Sprintf("complete -c krater -n %s -l %s", fishQuote(when), f.Name)
			switch {
			case f.IsBool():
			case f.Enum != "":
				line += " -x -a " + fishQuote(strings.Join(f.EnumSlice(), " "))
			case takesFile(f):
				line += " -r -F"
			default:
				line += " -x"
			}
			fmt.Fprintf(&b, "%s -d %s\n", line, fishQuote(firstSentence(f.Help)))
			if Negatable(f) {
				fmt.Fprintf(&b, "complete -c krater -n %s -l no-%s\n", fishQuote(when), f.Name)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// groupsWith returns the commands that have a subcommand of this name.
func groupsWith(all []Completion, name string) string {
	var list []string
	for _, c := range all {
		if group, part, ok := strings.Cut(c.Path, " "); ok && part == name {
			list = append(list, group)
		}
	}
	return strings.Join(list, " ")
}

func siblings(nodes []*kong.Node) string {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return strings.Join(names, " ")
}

func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}

// firstSentence returns help up to its first full stop.
func firstSentence(help string) string {
	s, _, _ := strings.Cut(help, ". ")
	return strings.TrimSuffix(s, ".")
}
