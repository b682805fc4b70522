package tokenizer

import (
	"maps"
	"slices"
)

// AddedTexts returns the texts of all added tokens, sorted. A template may turn them into tokens; a
// client's text may not.
func (t *Tokenizer) AddedTexts() []string { return slices.Sorted(maps.Keys(t.added)) }
