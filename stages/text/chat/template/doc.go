// Package template runs Jinja chat templates with the semantics of Python's Jinja2 as transformers
// sets it up. That is trim_blocks, lstrip_blocks, loop controls, the generation tag, and an
// immutable sandbox.
//
// Compile reads a template by Jinja2's lexical and grammar rules and turns each expression and
// statement into a Go closure; Run calls them. A render raises where Python raises, counts its work
// against a budget, and carries marks: bytes that say which characters of a string came from a
// client (mark.go). The template cannot see marks, so they change no branch and no text. They
// survive slicing, splitting, replacing and joining, and finally show which ranges of the prompt
// are a client's words.
package template
