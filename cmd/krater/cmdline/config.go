// Package cmdline reads the command line, the environment and the settings file, and prints help.
// It knows flags and commands only through kong's model.
package cmdline

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"

	"krater/scheduler/files"
	"krater/stages/source"
)

// A setting has one name and four possible sources. The first one that is set wins: the flag
// --listen, the variable KRATER_LISTEN, the key `listen` in the file of --config, the default.

// EnvName returns the environment variable of a flag: --kv-dtype is KRATER_KV_DTYPE.
func EnvName(flag string) string {
	return "KRATER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// nameEnvironment gives every flag below n its variable (kong.DefaultEnvars would cut bf16 into
// BF_16).
func nameEnvironment(n *kong.Node) {
	for _, f := range n.Flags {
		if f.Name != "help" {
			f.Envs = []string{EnvName(f.Name)}
			f.Value.Tag.Envs = f.Envs
		}
	}
	for _, child := range n.Children {
		nameEnvironment(child)
	}
}

// ConfigMaxBytes bounds a configuration file.
const ConfigMaxBytes = 1 << 20

// File gives kong the values of a configuration file.
type File struct {
	Path   string
	app    *kong.Application // every command; nil: that of Validate
	Values map[string]any
	used   map[string]bool
}

// ReadConfig reads a YAML file of `flag-name: value` lines.
func ReadConfig(path string) (*File, error) {
	data, err := files.Read(path, ConfigMaxBytes)
	if err != nil {
		return nil, err
	}
	r := &File{Path: path, Values: map[string]any{}, used: map[string]bool{}}
	if err := yaml.Unmarshal(data, &r.Values); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for key, v := range r.Values {
		switch v.(type) {
		case map[string]any, nil:
			return nil, fmt.Errorf("%s: %s: want a plain value or a list", path, key)
		}
	}
	return r, nil
}

// Validate refuses keys that no command has as a flag.
func (r *File) Validate(app *kong.Application) error {
	if r.app != nil {
		app = r.app
	}
	known := map[string]bool{}
	_ = kong.Visit(app, func(n kong.Visitable, next kong.Next) error {
		if f, ok := n.(*kong.Flag); ok {
			known[f.Name] = true
		}
		return next(nil)
	})
	var unknown []string
	for key := range r.Values {
		if !known[key] || key == "config" || key == "print-config" {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		for i, key := range unknown {
			if meant := Foreign(key, ""); meant != "" {
				unknown[i] = fmt.Sprintf("%s (%s)", key, meant)
			}
		}
		return fmt.Errorf("%s: unknown settings: %s", r.Path, strings.Join(unknown, ", "))
	}
	return nil
}

// Resolve implements kong.Resolver. The environment overrides the file. An empty value means the
// default.
func (r *File) Resolve(_ *kong.Context, _ *kong.Path, f *kong.Flag) (any, error) {
	if _, set := os.LookupEnv(EnvName(f.Name)); set {
		return nil, nil
	}
	v, ok := r.Values[f.Name]
	if !ok || v == "" { // PrintConfig writes an empty text for a path that is not set
		return nil, nil
	}
	r.used[f.Name] = true
	return PlainValue(v), nil
}

// PlainValue returns a value of the file in the form of a flag: lists are joined by commas.
func PlainValue(v any) string {
	list, ok := v.([]any)
	if !ok {
		return fmt.Sprint(v)
	}
	parts := make([]string, len(list))
	for i, e := range list {
		parts[i] = fmt.Sprint(e)
	}
	return strings.Join(parts, ",")
}

// configPath finds --config in args before the real parse, because the file provides other values.
// Without it, the environment variable counts.
func configPath(args []string) string {
	for i, a := range args {
		if a == "--" {
			break
		}
		if v, ok := strings.CutPrefix(a, "--config="); ok {
			return v
		}
		if a == "--config" && i+1 < len(args) {
			return args[i+1]
		}
	}
	return os.Getenv(EnvName("config"))
}

// Parse reads the command line, the environment and the configuration file into cli, a pointer to a struct.
func Parse(cli any, args []string, options ...kong.Option) (*kong.Context, *File, error) {
	var file *File
	if path := configPath(args); path != "" {
		var err error
		if file, err = ReadConfig(path); err != nil {
			return nil, nil, fmt.Errorf("configuration: %w", err)
		}
		file.app = All(cli)
		options = append(options, kong.Resolvers(file))
	}
	var ctx *kong.Context
	var err error
	others := otherCommands(cli, args)
	if others != nil {
		ctx, err = parse(cli, args, append(slices.Clip(options), others)...)
	}
	if others == nil || err != nil { // the parser's errors name commands and flags that are similar
		ctx, err = parse(cli, args, options...)
	}
	if err != nil {
		var pe *kong.ParseError
		if errors.As(err, &pe) {
			return nil, nil, misuse(pe)
		}
		return nil, nil, err
	}
	return ctx, file, nil
}

func parse(cli any, args []string, options ...kong.Option) (*kong.Context, error) {
	parser, err := newParser(cli, options...)
	if err != nil {
		return nil, err
	}
	return parser.Parse(args)
}

func newParser(cli any, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(cli, append(options,
		kong.Name("krater"),
		kong.Description("Serves large mixture-of-experts language models on one ordinary machine."),
		kong.PostBuild(func(k *kong.Kong) error { nameEnvironment(k.Model.Node); return nil }),
		kong.UsageOnError(),
		kong.Help(printHelp),
		kong.NamedMapper("model", kong.MapperFunc(locateModel)),
	)...)
}

// otherCommands leaves all commands out of a parser but the one that args begins with. Making a parser of
// every flag of every command takes longer than most commands do, and krater setup parses at every key.
// It is nil if args begins with anything else.
func otherCommands(cli any, args []string) kong.Option {
	if len(args) == 0 {
		return nil
	}
	t, found := reflect.TypeOf(cli).Elem(), false
	var others []string
	for f := range t.Fields() {
		if _, command := f.Tag.Lookup("cmd"); !command {
			continue
		}
		if strings.ToLower(f.Name) == args[0] {
			found = true
		} else {
			others = append(others, f.Name)
		}
	}
	if !found || len(others) == 0 {
		return nil
	}
	return kong.IgnoreFields("^" + regexp.QuoteMeta(t.Name()) + `\.(` + strings.Join(others, "|") + ")$")
}

// models has the models that All returned, as functions by type.
var models sync.Map

// All returns the model of every command, to be read only. cli is as for Parse, and only its type matters.
func All(cli any) *kong.Application {
	t := reflect.TypeOf(cli).Elem()
	made, _ := models.LoadOrStore(t, sync.OnceValue(func() *kong.Application {
		parser, err := newParser(reflect.New(t).Interface())
		if err != nil {
			panic(err)
		}
		return parser.Model
	}))
	return made.(func() *kong.Application)()
}

// misuse describes what is wrong with a command line, and names the help page of the command.
func misuse(pe *kong.ParseError) error {
	text, page := pe.Error(), "krater"
	node := pe.Context.Selected()
	if node != nil {
		page = strings.TrimSpace(node.FullPath())
	}
	if rest, ok := strings.CutPrefix(text, "unexpected argument "); ok {
		word := strings.Split(rest, ",")[0]
		switch meant := ForeignCommands[word]; {
		case node == nil && meant != "":
			text = fmt.Sprintf("there is no command %s: %s", word, meant)
		case node == nil || len(node.Children) > 0:
			text = "there is no command " + strings.Replace(rest, ", did you mean", "; did you mean", 1)
		case NamesModel(word):
			text += ": a model is named with --model"
		}
	}
	if meant := flagMeant(pe.Context.Model, pe.Context.Args, text); meant != "" {
		text = meant
	}
	if path := pathMissing.FindStringSubmatch(text); path != nil {
		if _, err := source.Locate(asGiven(path[1] + path[2])); err != nil {
			text = err.Error()
		}
	}
	text = strings.Replace(text, ": stat ", ": ", 1) // the name of the failed system call does not help
	return fmt.Errorf("%s (see %s --help)", text, page)
}

// pathMissing matches the parser's message about a missing folder of models.
var pathMissing = regexp.MustCompile(`^\[<folders> \.\.\.\]: (?:stat (.*): [^:]*|"(.*)" exists but is not a directory)$`)

// locateModel reads the value of a flag that names a model. The flag gets the model's path.
func locateModel(ctx *kong.DecodeContext, target reflect.Value) error {
	var word string
	if err := ctx.Scan.PopValueInto("model", &word); err != nil {
		return err
	}
	if word == "" { // the default
		return nil
	}
	if strings.HasPrefix(word, "~") {
		word = kong.ExpandPath(word)
	}
	path, err := source.Locate(word)
	if err == nil {
		target.SetString(kong.ExpandPath(path))
	}
	return err
}

// configLine is one setting as PrintConfig shows it.
type configLine struct{ name, value, source string }

// width returns the number of columns of the name and the value.
func (l *configLine) width() int {
	return utf8.RuneCountInString(l.name) + utf8.RuneCountInString(l.value)
}

// PrintConfig writes every effective setting of the chosen command and its source, in the form of a
// configuration file that gives the same settings again.
func PrintConfig(w io.Writer, ctx *kong.Context, file *File) error {
	var lines []configLine
	width := 0
	for _, path := range ctx.Path {
		for _, f := range path.Flags {
			switch f.Name {
			case "help", "config", "print-config":
				continue
			}
			// Flow style keeps a list on one line.
			value, err := yaml.MarshalWithOptions(ctx.FlagValue(f), yaml.Flow(true))
			if err != nil {
				return err
			}
			l := configLine{f.Name, strings.TrimSpace(string(value)), sourceOf(ctx, file, f)}
			width = max(width, l.width())
			lines = append(lines, l)
		}
	}
	slices.SortFunc(lines, func(a, b configLine) int { return strings.Compare(a.name, b.name) })
	lines = slices.CompactFunc(lines, func(a, b configLine) bool { return a.name == b.name })
	for _, l := range lines {
		pad := strings.Repeat(" ", width-l.width())
		if _, err := fmt.Fprintf(w, "%s: %s%s  # %s\n", l.name, l.value, pad, l.source); err != nil {
			return err
		}
	}
	return nil
}

// sourceOf names the source of a flag's value.
func sourceOf(ctx *kong.Context, file *File, f *kong.Flag) string {
	for _, p := range ctx.Path {
		if p.Flag == f && !p.Resolved {
			return "flag --" + f.Name
		}
	}
	if _, set := os.LookupEnv(EnvName(f.Name)); set {
		return "environment " + EnvName(f.Name)
	}
	if file != nil && file.used[f.Name] {
		return "file " + file.Path
	}
	return "default"
}
