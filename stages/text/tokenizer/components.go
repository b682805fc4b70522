package tokenizer

import (
	"encoding/json/jsontext"
	"unicode/utf8"
)

// maxNesting bounds how deep Sequences may lie in each other.
const maxNesting = 4

// component is any normalizer, pre-tokenizer, decoder or post-processor of a tokenizer.json: all
// fields that one of them has.
type component struct {
	Type string `json:"type"`

	Normalizers   []jsontext.Value `json:"normalizers"` // of a Sequence
	PreTokenizers []jsontext.Value `json:"pretokenizers"`
	Decoders      []jsontext.Value `json:"decoders"`
	Processors    []jsontext.Value `json:"processors"`

	Pattern          *pattern `json:"pattern"` // Split, Replace
	Behavior         string   `json:"behavior"`
	Invert           bool     `json:"invert"`
	Content          string   `json:"content"` // Replace, Strip
	Prepend          string   `json:"prepend"`
	StripLeft        bool     `json:"strip_left"`
	StripRight       bool     `json:"strip_right"`
	IndividualDigits bool     `json:"individual_digits"`
	AddPrefixSpace   *bool    `json:"add_prefix_space"` // ByteLevel, Metaspace
	UseRegex         *bool    `json:"use_regex"`
	Replacement      string   `json:"replacement"` // Metaspace
	PrependScheme    *string  `json:"prepend_scheme"`
	Split            *bool    `json:"split"`
	Start            int      `json:"start"` // Strip
	Stop             int      `json:"stop"`

	Single        []templatePiece            `json:"single"` // TemplateProcessing
	SpecialTokens map[string]templateSpecial `json:"special_tokens"`
}

// pattern is one of a literal text and a regular expression.
type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// flatten reads a part with its Sequences, nil and null included, as a list.
func flatten(part string, v jsontext.Value, inner func(component) []jsontext.Value, depth int) ([]component, error) {
	if len(v) == 0 || v.Kind() == 'n' {
		return nil, nil
	}
	var c component
	if err := decode(part, v, &c); err != nil {
		return nil, err
	}
	if c.Type != "Sequence" {
		return []component{c}, nil
	}
	if depth == 0 {
		return nil, unsupported(part, "Sequences nested more than %d deep", maxNesting)
	}
	var out []component
	for _, v := range inner(c) {
		more, err := flatten(part, v, inner, depth-1)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

// finder returns the finder of a Split or Replace.
func (c component) finder(part string) (finder, error) {
	p := c.Pattern
	switch {
	case p == nil || (p.String == nil) == (p.Regex == nil):
		return nil, malformed(part, "%s needs a pattern that is a String or a Regex", c.Type)
	case p.Regex != nil:
		f, err := newFinder(*p.Regex)
		if err != nil {
			return nil, partError(part, err)
		}
		return f, nil
	case *p.String == "":
		return nil, unsupported(part, "%s with an empty pattern", c.Type)
	}
	return literal(*p.String), nil
}

func (f *file) normalizers() ([]normalizer, error) {
	const part = "normalizer"
	list, err := flatten(part, f.parts[part], func(c component) []jsontext.Value { return c.Normalizers }, maxNesting)
	if err != nil {
		return nil, err
	}
	var out []normalizer
	for _, c := range list {
		switch c.Type {
		case "NFC":
			out = append(out, formNFC)
		case "NFD":
			out = append(out, formNFD)
		case "NFKC":
			out = append(out, formNFKC)
		case "NFKD":
			out = append(out, formNFKD)
		case "Lowercase":
			out = append(out, lowercaser{})
		case "Strip":
			out = append(out, stripper{c.StripLeft, c.StripRight})
		case "Prepend":
			out = append(out, prepender{c.Prepend})
		case "Replace":
			find, err := c.finder(part)
			if err != nil {
				return nil, err
			}
			if text, ok := find.(literal); ok {
				out = append(out, literalReplacer{string(text), c.Content})
			} else {
				out = append(out, regexReplacer{find, c.Content})
			}
		default:
			return nil, unsupported(part, "%q", c.Type)
		}
	}
	return out, nil
}

func (f *file) preTokenizers() ([]preTokenizer, error) {
	const part = "pre_tokenizer"
	list, err := flatten(part, f.parts[part], func(c component) []jsontext.Value { return c.PreTokenizers }, maxNesting)
	if err != nil {
		return nil, err
	}
	var out []preTokenizer
	for i, c := range list {
		var p preTokenizer
		switch c.Type {
		case "Split":
			find, err := c.finder(part)
			if err != nil {
				return nil, err
			}
			b, ok := behaviors[c.Behavior]
			if !ok {
				return nil, unsupported(part, "Split with the behavior %q", c.Behavior)
			}
			p = splitter{find, b, c.Invert}
		case "Digits":
			p = digitSplitter{c.IndividualDigits}
		case "ByteLevel":
			if i != len(list)-1 {
				return nil, unsupported(part, "%q after ByteLevel", list[i+1].Type)
			}
			p = byteLevelSplitter{or(c.AddPrefixSpace, true), or(c.UseRegex, true)}
		case "Metaspace":
			scheme, err := c.scheme(part)
			if err != nil {
				return nil, err
			}
			p = metaspaceSplitter{c.Replacement, scheme, or(c.Split, true)}
		default:
			return nil, unsupported(part, "%q", c.Type)
		}
		out = append(out, p)
	}
	return out, nil
}

// scheme returns the prepend_scheme of a Metaspace, for which older files have add_prefix_space.
func (c component) scheme(part string) (prefixScheme, error) {
	if utf8.RuneCountInString(c.Replacement) != 1 {
		return 0, malformed(part, "the replacement %q of Metaspace is not one character", c.Replacement)
	}
	name := or(c.PrependScheme, "always")
	if c.PrependScheme == nil && !or(c.AddPrefixSpace, true) {
		name = "never"
	}
	s, ok := prefixSchemes[name]
	if !ok {
		return 0, unsupported(part, "Metaspace with the prepend_scheme %q", name)
	}
	return s, nil
}

func (f *file) decoders() ([]decoderSpec, error) {
	const part = "decoder"
	list, err := flatten(part, f.parts[part], func(c component) []jsontext.Value { return c.Decoders }, maxNesting)
	if err != nil {
		return nil, err
	}
	var out []decoderSpec
	fused := false
	for i, c := range list {
		var d decoderSpec
		switch c.Type {
		case "ByteLevel":
			if i != 0 {
				return nil, unsupported(part, "ByteLevel after %q", list[i-1].Type)
			}
			d = byteLevelDecoder{}
		case "ByteFallback":
			if fused {
				return nil, unsupported(part, "ByteFallback after Fuse")
			}
			d = byteFallbackDecoder{}
		case "Fuse":
			d = fuseDecoder{}
		case "Replace":
			find, err := c.finder(part)
			if err != nil {
				return nil, err
			}
			text, ok := find.(literal)
			if !ok {
				return nil, unsupported(part, "Replace with a Regex")
			}
			d = replaceDecoder{string(text), c.Content}
		case "Strip":
			if utf8.RuneCountInString(c.Content) != 1 || c.Start < 0 || c.Stop < 0 {
				return nil, malformed(part, "Strip of %q, %d and %d times", c.Content, c.Start, c.Stop)
			}
			d = stripDecoder{c.Content, c.Start, c.Stop}
		case "Metaspace":
			scheme, err := c.scheme(part)
			if err != nil {
				return nil, err
			}
			d = metaspaceDecoder{c.Replacement, scheme != prefixNever}
		default:
			return nil, unsupported(part, "%q", c.Type)
		}
		out = append(out, d)
		fused = fused || c.Type == "ByteLevel" || c.Type == "Fuse"
	}
	if len(out) == 0 && len(f.parts[part]) > 0 && f.parts[part].Kind() != 'n' {
		// An empty Sequence joins the tokens with nothing between.
		return []decoderSpec{fuseDecoder{}}, nil
	}
	if len(out) == 0 {
		return []decoderSpec{joinDecoder{}}, nil
	}
	return out, nil
}

// or returns *p, or def if p is nil.
func or[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}

// endsInBytes reports whether the text reaches the model as bytes.
func endsInBytes(steps []preTokenizer) bool {
	if len(steps) == 0 {
		return false
	}
	_, ok := steps[len(steps)-1].(byteLevelSplitter)
	return ok
}

// decodesBytes reports whether the decoder takes the tokens as bytes.
func decodesBytes(specs []decoderSpec) bool {
	if len(specs) == 0 {
		return false
	}
	_, ok := specs[0].(byteLevelDecoder)
	return ok
}
