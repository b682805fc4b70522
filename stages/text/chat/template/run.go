package template

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of one render. A step is one variable, operation or statement, or the handling of 1 KB, or
// of 16 list items, by one.
const (
	DefaultSteps  = 10_000_000 // a few seconds
	DefaultOutput = 64 << 20   // bytes written, and bytes of one string
	maxDepth      = 100        // of macro calls and recursive loops
	maxCompared   = 1000       // levels of lists and dicts in a comparison
	turnCost      = 8          // steps of one turn of a loop or call of a macro
	maxRange      = 100_000    // of range(), as Jinja2's sandbox has it
	lookEvery     = 4096       // steps between looks at the context
)

// Config is the settings of a render besides its variables. The zero value is valid.
type Config struct {
	Now    func() time.Time // for strftime_now; nil: time.Now
	Steps  int              // 0: DefaultSteps
	Output int              // 0: DefaultOutput
	Memory int              // bytes of strings made one after another; 0: 128 times Output
	Ctx    context.Context  // the render ends with its error when it ends; nil: it does not
}

// Program is a compiled template. It is immutable and safe for concurrent use.
type Program struct {
	body  block
	ids   map[string]int // the variables, numbered
	names map[string]bool
}

// Compile compiles the source of a template. The error is a *SyntaxError, or says that the source
// is too long or not UTF-8.
func Compile(source string) (*Program, error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("chat template: %d bytes, the limit is %d", len(source), maxSource)
	}
	if !utf8.ValidString(source) {
		return nil, errors.New("chat template: not valid UTF-8")
	}
	var prog *Program
	err := caught(func() {
		src := normalize(source)
		p := &parser{src: src, toks: lex(src), ids: map[string]int{}, names: map[string]bool{}, special: map[string]bool{}}
		body, _ := p.body()
		prog = &Program{body: body, ids: p.ids, names: p.names}
	})
	return prog, err
}

// caught calls f and returns the error that f panics with. Nearly everything in this package can
// meet an error of a template; it is a panic up to here. A fault of the package itself must not
// take the server down: templates are programs of strangers.
func caught(f func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			err = fmt.Errorf("%w: %w", errPanic, p)
		case error:
			err = p
		default:
			panic(p)
		}
	}()
	f()
	return nil
}

// Mentions reports whether the template names the identifier, as a variable, an attribute or a
// string.
func (p *Program) Mentions(name string) bool { return p.names[name] }

// Reserved reports whether a variable of this name would hide something that templates rely on.
func Reserved(name string) bool {
	_, global := globals[name]
	_, constant := constants[name]
	return global || constant || isKeyword(name)
}

// Run renders the template. The values of vars are not changed and may be shared. The result
// carries the marks of values of vars; see Unmark. The error is a *Raised or a *Fault, or wraps
// ErrLimit or the context's error.
func (p *Program) Run(vars map[string]Value, c Config) (string, error) {
	r := &run{now: c.Now, steps: c.Steps, output: c.Output, memory: c.Memory, ctx: c.Ctx}
	if r.now == nil {
		r.now = time.Now
	}
	if r.steps == 0 {
		r.steps = DefaultSteps
	}
	if r.output == 0 {
		r.output = DefaultOutput
	}
	if r.memory == 0 {
		r.memory = 128 * r.output
	}
	r.widest, r.look = r.output, r.steps-lookEvery
	r.vars = make([]Value, len(p.ids))
	for name, id := range p.ids {
		v, ok := vars[name]
		if !ok {
			v = globals[name]
		}
		r.vars[id] = v
	}
	r.root = &frame{run: r, out: new(strings.Builder)}
	if err := caught(func() { p.body.run(r.root) }); err != nil {
		return "", err
	}
	return r.root.out.String(), nil
}

// run is the state of one render.
type run struct {
	now    func() time.Time
	steps  int // left
	output int // bytes left to write
	memory int // bytes of strings that may still be made
	widest int // bytes one string may have
	depth  int // of macro calls
	levels int // of lists and dicts in the comparison at hand
	ctx    context.Context
	look   int     // steps left when ctx is looked at next
	vars   []Value // of the template's own scope, by number
	root   *frame  // that scope
}

// frame is a scope: of the template, of one turn of a loop, of a macro's call, of a block.
type frame struct {
	*run
	out    *strings.Builder // what the scope writes to
	parent *frame           // nil: the template's own, whose variables are run.vars
	vars   []variable
	few    [3]variable // where vars begins
}

type variable struct {
	id    int
	value Value
}

func (f *frame) child() *frame {
	c := &frame{run: f.run, out: f.out, parent: f}
	c.vars = c.few[:0]
	return c
}

// buffered returns a child that writes to a separate text.
func (f *frame) buffered() *frame {
	c := f.child()
	c.out = new(strings.Builder)
	return c
}

// get returns a variable of this scope, or of those around it.
func (f *frame) get(id int) Value {
	for ; f.parent != nil; f = f.parent {
		for i := range f.vars {
			if f.vars[i].id == id {
				return f.vars[i].value
			}
		}
	}
	return f.run.vars[id]
}

// set assigns a variable of this scope.
func (f *frame) set(id int, v Value) {
	if f.parent == nil {
		f.run.vars[id] = v
		return
	}
	for i := range f.vars {
		if f.vars[i].id == id {
			f.vars[i].value = v
			return
		}
	}
	f.vars = append(f.vars, variable{id, v})
}

// write adds to the scope's text.
func (f *frame) write(s string) {
	if f.output -= len(s); f.output < 0 {
		panic(limit("it writes too much text"))
	}
	f.out.WriteString(s)
	f.spend(1 + len(s)/1024)
}

// args are the arguments of a call.
type args struct {
	pos []Value
	kw  *Dict // nil: none
}

// at is argument i, counted from 0, or the one called name; the second result is false where there
// is neither.
func (a args) at(i int, name string) (Value, bool) {
	if i < len(a.pos) {
		return a.pos[i], true
	}
	return a.kw.Get(name)
}

func (a args) or(i int, name string, def Value) Value {
	if v, ok := a.at(i, name); ok {
		return v
	}
	return def
}

func (a args) truth(i int, name string, def bool) bool {
	return a.or(i, name, NewBool(def)).IsTruthy()
}

// function is a function, or a filter, whose first argument is the value.
type function func(r *run, a args) Value

// apply calls a function and counts its work.
func (r *run) apply(f function, a args) Value {
	cost := 1
	for _, v := range a.pos {
		cost += weight(v)
	}
	r.spend(cost)
	v := f(r, a)
	r.spend(weight(v))
	return v
}

// weight returns the cost of handling v once, its items not looked into.
func weight(v Value) int {
	switch v := v.v.(type) {
	case string:
		return len(v) / 1024
	case *List:
		return len(v.Items) / 16
	case *Dict:
		return len(v.Keys) / 16
	}
	return 0
}

// spend takes steps from the budget and looks at the context now and then.
func (r *run) spend(n int) {
	if r.steps -= n; r.steps < 0 {
		panic(limit("it does too much work"))
	}
	if r.ctx == nil || r.steps > r.look {
		return
	}
	r.look = r.steps - lookEvery
	if err := r.ctx.Err(); err != nil {
		panic(err)
	}
}

// deeper enters a macro or a recursive loop; leaving it lowers depth again.
func (r *run) deeper() {
	if r.depth++; r.depth > maxDepth {
		panic(limit("its macros nest too deeply"))
	}
	r.spend(turnCost)
}

// made checks a string that an operation is about to make.
func (r *run) made(n int) {
	if r.memory -= n; n > r.widest || r.memory < 0 {
		panic(limit("it makes too much text"))
	}
}

// str returns the value of a new string, checked against the budget.
func (r *run) str(s string) Value {
	r.made(len(s))
	return NewString(s)
}
