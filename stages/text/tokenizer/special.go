package tokenizer

import (
	"maps"
	"slices"
)

// AddedTexts returns the texts of all added tokens, sorted: what a template, but no text of a
// client, may turn into a token of its own.
func (t *Tokenizer) AddedTexts() []string { return slices.Sorted(maps.Keys(t.added)) }
