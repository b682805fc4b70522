package tokenizer

import "encoding/json/jsontext"

// templatePiece is an element of TemplateProcessing's single: the text itself or a special token.
type templatePiece struct {
	Sequence *struct {
		ID string `json:"id"`
	}
	SpecialToken *struct {
		ID string `json:"id"`
	}
}

// templateSpecial is the ids of a special token of a template.
type templateSpecial struct {
	IDs []int32 `json:"ids"`
}

// postProcessor returns the ids in front of and after those of a text. Templates for pairs of texts
// are not needed here.
func (f *file) postProcessor(t *Tokenizer) (prefix, suffix []int32, err error) {
	const part = "post_processor"
	list, err := flatten(part, f.parts[part], func(c component) []jsontext.Value { return c.Processors }, maxNesting)
	if err != nil {
		return nil, nil, err
	}
	seen := false
	for _, c := range list {
		switch c.Type {
		case "ByteLevel": // only moves offsets
		case "TemplateProcessing":
			if seen {
				// The reference treats the output of the first as a pair of texts.
				return nil, nil, unsupported(part, "two templates")
			}
			seen = true
			if prefix, suffix, err = c.template(part, t); err != nil {
				return nil, nil, err
			}
		default:
			return nil, nil, unsupported(part, "%q", c.Type)
		}
	}
	return prefix, suffix, nil
}

func (c component) template(part string, t *Tokenizer) (before, after []int32, err error) {
	seen := false
	for _, p := range c.Single {
		switch {
		case p.Sequence != nil && p.SpecialToken == nil && p.Sequence.ID == "A" && !seen:
			seen = true
		case p.SpecialToken != nil && p.Sequence == nil:
			s, ok := c.SpecialTokens[p.SpecialToken.ID]
			if !ok {
				return nil, nil, malformed(part, "special_tokens lacks %q", p.SpecialToken.ID)
			}
			for _, id := range s.IDs {
				if _, ok := t.tokenText(id); !ok {
					return nil, nil, malformed(part, "no token has the id %d of %q", id, p.SpecialToken.ID)
				}
			}
			if seen {
				after = append(after, s.IDs...)
			} else {
				before = append(before, s.IDs...)
			}
		default:
			return nil, nil, unsupported(part, "a template that is not special tokens around one text")
		}
	}
	if !seen {
		return nil, nil, unsupported(part, "a template without the text")
	}
	return before, after, nil
}
