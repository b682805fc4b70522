package model

import "slices"

// Generation holds the sampling values of generation_config.json, which apply if a request does not
// set them. max_new_tokens and max_length are ignored, because an answer without a limit of its own
// may fill the context.
type Generation struct {
	Temperature       float64 // 0 = greedy
	TopP              float64 // 1 = off
	TopK              int     // 0 = off
	MinP              float64 // 0 = off
	RepetitionPenalty float64 // 1 = off
	EOS               []int32 // eos_token_id, one or several; nil when absent
}

// DefaultGeneration returns the values for a model without a generation_config.json.
func DefaultGeneration() Generation {
	return Generation{Temperature: 1, TopP: 1, RepetitionPenalty: 1}
}

// ParseGeneration reads a generation_config.json. With do_sample false sampling
// is greedy, whatever the temperature. The error joins a *FieldError for each
// fault.
func ParseGeneration(generationJSON []byte) (Generation, error) {
	f, err := readFields(generationJSON)
	if err != nil {
		return Generation{}, err
	}
	g := Generation{
		Temperature:       f.floatOr("temperature", 1, 0, 100),
		TopP:              f.floatOr("top_p", 1, 0, 1),
		TopK:              max(0, f.intOr("top_k", 0, -1, maxVocab)),
		MinP:              f.floatOr("min_p", 0, 0, 1),
		RepetitionPenalty: f.floatOr("repetition_penalty", 1, 1e-3, 1e3),
		EOS:               f.ids("eos_token_id"),
	}
	if g.TopP == 0 {
		f.fail("top_p", "0 leaves no token")
	}
	if !f.boolOr("do_sample", true) {
		g.Temperature = 0
	}
	if f.failed() {
		return Generation{}, joinErrors(*f.errs, 0)
	}
	return g, nil
}

// StopIDs returns the union of the end tokens of both files and of others (the tokenizer's), each
// once, the config's first. An id outside the vocabulary cannot be produced and is left out.
func (c *Config) StopIDs(g Generation, others ...int32) []int32 {
	out := slices.Clone(c.EOS)
	for _, id := range slices.Concat(g.EOS, others) {
		if id >= 0 && int(id) < c.Vocab && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}
