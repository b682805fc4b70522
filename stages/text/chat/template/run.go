package template

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// Bounds of one render. A step is one call of a function of this package, or
// the handling of 1 KB, or of 16 list items, by one.
const (
	DefaultSteps  = 10_000_000 // a few seconds
	DefaultOutput = 64 << 20   // bytes written, and bytes of one string
	maxDepth      = 100        // of macro calls and recursive loops
	turnCost      = 8          // steps of one turn of a loop: a scope is made
	maxRange      = 100_000    // of range(), as Jinja2's sandbox has it
	lookEvery     = 4096       // steps between looks at the context
)

// Config is what a render needs beside its variables. The zero value is valid.
type Config struct {
	Now    func() time.Time // for strftime_now; nil: time.Now
	Steps  int              // 0: DefaultSteps
	Output int              // 0: DefaultOutput
	Memory int              // bytes of strings made one after another; 0: 128 times Output
	Ctx    context.Context  // the render ends with its error when it ends; nil: it does not
}

// Program is a compiled template. It is immutable and safe for concurrent use.
type Program struct {
	engine *jinja.Template
	used   []string
	names  map[string]bool
}

// Compile compiles the source of a template. The error is a *SyntaxError, or
// tells that the source is too long or not UTF-8.
func Compile(source string) (*Program, error) {
	canonical, p, err := rewrite(source)
	if err != nil {
		return nil, err
	}
	engine, err := jinja.Compile(canonical)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	prog := &Program{engine: engine, names: p.names}
	for name := range p.used {
		prog.used = append(prog.used, name)
	}
	return prog, nil
}

// Mentions tells whether the template names the identifier, as a variable, an
// attribute or a string.
func (p *Program) Mentions(name string) bool { return p.names[name] }

// Reserved tells whether a variable of this name would hide something that
// templates rely on.
func Reserved(name string) bool {
	return strings.HasPrefix(name, prefix) || globals[name] != nil ||
		name == "joiner" || name == "cycler" || constants[name] != "" || isKeyword(name)
}

// Run renders the template. The values of vars are not changed and may be
// shared. The result carries marks where a value of vars did; see Unmark. The
// error is a *Raised, a *Fault, or wraps ErrLimit or what the context ended with.
func (p *Program) Run(vars map[string]jinja.Value, c Config) (string, error) {
	r := &run{now: c.Now, steps: c.Steps, output: c.Output}
	if r.now == nil {
		r.now = time.Now
	}
	if r.steps == 0 {
		r.steps = DefaultSteps
	}
	if r.output == 0 {
		r.output = DefaultOutput
	}
	r.widest, r.memory, r.ctx = r.output, c.Memory, c.Ctx
	if r.memory == 0 {
		r.memory = 128 * r.output
	}
	data := make(map[string]jinja.Value, len(vars)+len(globals)+len(p.used))
	for name, v := range vars {
		data[name] = v
	}
	for name, f := range globals {
		data[name] = r.bind(name, f)
	}
	for _, name := range p.used {
		data[prefix+name] = r.bind(name, lookup(name))
	}
	return r.render(p.engine, data)
}

// render runs the engine. It is foreign code that runs foreign templates: its
// panics, of which none is known, must not take the server down.
func (r *run) render(engine *jinja.Template, data map[string]jinja.Value) (out string, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = "", fmt.Errorf("%w: %v", errEngine, p)
		}
	}()
	if out, err = engine.RenderValues(data); err != nil {
		return "", r.cause(err)
	}
	return out, nil
}

// run is the state of one render.
type run struct {
	now    func() time.Time
	steps  int // left
	output int // bytes left to write
	memory int // bytes of strings that may still be made
	widest int // bytes one string may have
	depth  int // of macro calls
	ctx    context.Context
	since  int // steps since ctx was looked at
}

// args are the arguments of a call.
type args struct {
	pos []jinja.Value
	kw  map[string]jinja.Value
}

// at is argument i, counted from 0, or the one called name; the second result
// is false where there is neither.
func (a args) at(i int, name string) (jinja.Value, bool) {
	if i < len(a.pos) {
		return a.pos[i], true
	}
	v, ok := a.kw[name]
	return v, ok
}

func (a args) or(i int, name string, def jinja.Value) jinja.Value {
	if v, ok := a.at(i, name); ok {
		return v
	}
	return def
}

func (a args) truth(i int, name string, def bool) bool {
	return a.or(i, name, jinja.NewBool(def)).IsTruthy()
}

// function is an operation of the runtime.
type function func(r *run, a args) (jinja.Value, error)

// lookup finds what a name of the canonical form stands for.
func lookup(name string) function {
	if f := core[name]; f != nil {
		return f
	}
	if rest, ok := strings.CutPrefix(name, "f_"); ok {
		return filters[rest]
	}
	test := tests[strings.TrimPrefix(name, "t_")]
	return func(r *run, a args) (jinja.Value, error) {
		ok, err := test(r, a)
		return jinja.NewBool(ok), err
	}
}

// bind makes a callable of the engine that counts its work.
func (r *run) bind(name string, f function) jinja.Value {
	return jinja.NewCallable(name, func(pos []jinja.Value, kw map[string]jinja.Value) (jinja.Value, error) {
		cost := 1
		for _, v := range pos {
			cost += weight(v)
		}
		if err := r.spend(cost); err != nil {
			return jinja.Undefined(), err
		}
		v, err := f(r, args{pos, kw})
		if err != nil {
			return jinja.Undefined(), err
		}
		return v, r.spend(weight(v))
	})
}

// weight is the cost of handling v once, its items not looked into.
func weight(v jinja.Value) int {
	switch {
	case v.IsString():
		return len(v.AsString()) / 1024
	case v.IsList():
		return v.AsList().Len() / 16
	case v.IsDict():
		return v.AsDict().Len() / 16
	}
	return 0
}

func (r *run) spend(n int) error {
	if r.steps -= n; r.steps < 0 {
		return fmt.Errorf("%w: it does too much work", ErrLimit)
	}
	if r.since += n; r.since < lookEvery || r.ctx == nil {
		return nil
	}
	r.since = 0
	return r.ctx.Err()
}

// made checks a string that an operation is about to make.
func (r *run) made(n int) error {
	if r.memory -= n; n > r.widest || r.memory < 0 {
		return fmt.Errorf("%w: it makes too much text", ErrLimit)
	}
	return nil
}

// str is the value of a new string, checked against the budget.
func (r *run) str(s string) (jinja.Value, error) {
	return jinja.NewString(s), r.made(len(s))
}
