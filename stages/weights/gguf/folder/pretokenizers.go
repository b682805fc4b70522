package folder

// preTokenizer is how a byte-level tokenizer prepares text, by the name that llama.cpp gives to it.
type preTokenizer struct {
	nfc          bool     // text is brought into Unicode's normal form C
	digits       bool     // each digit is a piece
	split        []string // patterns whose matches are pieces, one after the other
	last         bool     // digits come after the patterns
	gpt2         bool     // the rest is split as GPT-2 does
	ignoreMerges bool     // a piece that is a token is that token, whatever the merges give
	addBOS       bool     // the beginning token is added if the file does not say whether
}

// The patterns, as the releases' tokenizer.json have them.
const (
	splitLlama3   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	splitQwen2    = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	splitQwen35   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	splitO200k    = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	splitTekken   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	splitDigits3  = `\p{N}{1,3}`
	splitCJK      = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
	splitDeepSeek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
	// Kimi K2 has classes without Han characters, which this syntax writes as a look ahead.
	splitKimi = `\p{Han}+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// DeepSeek's first tokenizer: letters that have upper and lower case (the release lists those of
	// an earlier Unicode), the punctuation of ASCII, its wide forms, quotes and some of East Asia, and
	// that region's letters.
	splitCased  = `\s?[\p{Lu}\p{Ll}\p{Lt}]+`
	splitPunct  = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
	splitEast   = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
	splitSpaces = `\s+$`
)

// preTokenizers are by llama.cpp's names.
var preTokenizers = map[string]preTokenizer{
	"llama-bpe":        {split: []string{splitLlama3}, ignoreMerges: true, addBOS: true},
	"llama3":           {split: []string{splitLlama3}, ignoreMerges: true, addBOS: true},
	"llama-v3":         {split: []string{splitLlama3}, ignoreMerges: true, addBOS: true},
	"smaug-bpe":        {split: []string{splitLlama3}},
	"dbrx":             {split: []string{splitLlama3}},
	"glm4":             {split: []string{splitLlama3}},
	"chatglm-bpe":      {split: []string{splitLlama3}},
	"qwen2":            {split: []string{splitQwen2}, nfc: true},
	"deepseek-r1-qwen": {split: []string{splitQwen2}, nfc: true},
	"qwen35":           {split: []string{splitQwen35}, nfc: true},
	"gpt-4o":           {split: []string{splitO200k}, ignoreMerges: true},
	"llama4":           {split: []string{splitO200k}, ignoreMerges: true},
	"minimax-m2":       {split: []string{splitO200k}},
	"tekken":           {split: []string{splitTekken}, ignoreMerges: true, addBOS: true},
	"kimi-k2":          {split: []string{splitKimi}},
	"deepseek-llm":     {split: []string{`[\r\n]`, splitCased, splitPunct, splitSpaces, splitEast}, digits: true, last: true},
	"deepseek-coder":   {split: []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, splitEast}, digits: true, last: true},
	"deepseek-v3":      {split: []string{splitDigits3, splitCJK, splitDeepSeek}},
	"olmo":             {gpt2: true, nfc: true},
	"gpt-2":            {gpt2: true},
	"starcoder":        {gpt2: true, digits: true},
	"refact":           {gpt2: true, digits: true},
	"codeshell":        {gpt2: true, digits: true},
	"smollm":           {gpt2: true, digits: true},
}

// object is a part of a tokenizer.json.
type object = map[string]any

// normalizer returns the part of that name.
func (p preTokenizer) normalizer() any {
	if p.nfc {
		return object{"type": "NFC"}
	}
	return nil
}

// steps returns the part pre_tokenizer.
func (p preTokenizer) steps() any {
	digits := object{"type": "Digits", "individual_digits": true}
	var list []object
	if p.digits && !p.last {
		list = append(list, digits)
	}
	for _, s := range p.split {
		list = append(list, object{"type": "Split", "pattern": object{"Regex": s}, "behavior": "Isolated", "invert": false})
	}
	if p.last {
		list = append(list, digits)
	}
	return object{"type": "Sequence", "pretokenizers": append(list, object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": p.gpt2})}
}
