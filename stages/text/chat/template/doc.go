// Package template runs the Jinja chat templates of model folders with the
// semantics of Python's Jinja2 as transformers sets it up: trim_blocks,
// lstrip_blocks, loop controls, the generation tag, an immutable sandbox.
//
// The engine is github.com/ardanlabs/jinja. On its own it renders wrong text
// where Python raises (None + str, an attribute of an undefined name, a loop
// over None), it differs in white space and in several filters, it cannot be
// stopped, and it does not know where a character came from. So a template is
// compiled in two steps:
//
//  1. Compile parses the template by Jinja2's own lexical and grammar rules and
//     writes it again in a canonical form: white space is settled, every
//     operator, attribute, filter, test and method is a call of a function of
//     this package (add.go, attr.go, filter.go, ...).
//  2. The engine compiles the canonical form. It keeps what it does well:
//     blocks, scopes, loops, macros, namespaces, short-circuit evaluation.
//
// The functions raise where Python raises, count their work against a budget,
// and carry marks: bytes that say which characters of a string came from a
// client (mark.go). Marks are invisible to the template, so they change no
// branch and no text; they survive slicing, splitting, replacing and joining,
// and tell in the end which ranges of the prompt are a client's words.
package template
