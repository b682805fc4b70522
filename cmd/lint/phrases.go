package main

import (
	"regexp"
	"strings"
)

// phrase is a wording that is always wrong, with what to write instead. max is the number of uses
// that remain; it may only fall.
type phrase struct {
	pattern, instead string
	max              int
}

var phrases = []phrase{
	{`\b(hang|hangs|hung) on\b`, "depend on", 0},
	{`\bthe same of\b`, "say what it is, in full", 0},
	{`\banother name:`, "alias of", 0},
	{`\bis of how many\b`, "counts in one of every N", 0},
	{`\bfrom how many\b`, "the number from which", 0},
	{`\b(has|have|had) (the|its|their|an?) \w+ (be|not be|take|do)\b`, "makes, causes", 0},
	{`\b(can|cannot|could|to) be had\b`, "is available", 0},
	{`\bis for who(ever)?\b`, "name who", 0},
	{`\b(whoever|somebody|someone)['.,;: ]`, "name who: the caller, the client, the scheduler", 0},
	{`\b(a|one) (row|block|launch|message|copy) a (row|token|layer|step|batch|expert)\b`, "one per", 0},
	{`\btells (if|whether)\b`, "reports whether", 0},
	{`\b(is|are) what\b`, "say what it is", 0},
	{`\bare those (of|that|which)\b`, "name them again", 0},
	{`\bon (its|their) way\b`, "in flight", 0},
	{`\bso many\b`, "n, or the given number of", 0},
	{`\b(a|the|one|each|every|no) cards?\b|\bcard's\b`, "GPU", 0},
}

func phraseLimits() []limit {
	var all []limit
	for _, p := range phrases {
		all = append(all, limit{p.name(), p.max, 0})
	}
	return all
}

func (p phrase) name() string { return "phrase " + p.pattern + " (write: " + p.instead + ")" }

// countPhrases adds what text has of each phrase, within a line or across lines. A phrase is looked for only
// where one of its first words is.
func countPhrases(text string, counts map[string]int) {
	text = joined(strings.ToLower(text))
	ends := make([]int, len(phrases))
	for at := 0; at < len(text); {
		if !wordByte(text[at]) {
			at++
			continue
		}
		end := at + 1
		for end < len(text) && wordByte(text[end]) {
			end++
		}
		for _, i := range phrasesBy[text[at:end]] {
			if at < ends[i] {
				continue
			}
			if found := phrasePatterns[i].FindStringIndex(text[at:]); found != nil {
				counts[phrases[i].name()]++
				ends[i] = at + found[1]
			}
		}
		at = end
	}
}

// joined is text as one line, without the comment marks at the starts of its lines.
func joined(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "//"):
			line = strings.TrimLeft(line, "/")
		case strings.HasPrefix(line, "#"):
			line = strings.TrimLeft(line, "#")
		case line != "" && strings.Contains("*>|", line[:1]):
			line = line[1:]
		}
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line)
			b.WriteByte(' ')
		}
	}
	return b.String()
}

func wordByte(c byte) bool { return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' }

var (
	phrasePatterns []*regexp.Regexp     // at the start of a text
	phrasesBy      = map[string][]int{} // by each of their first words
	firstWords     = regexp.MustCompile(`(?:^|\|)\\b\(?([a-z|]+)`)
)

func init() {
	for i, p := range phrases {
		phrasePatterns = append(phrasePatterns, regexp.MustCompile("^(?:"+p.pattern+")"))
		for _, first := range firstWords.FindAllStringSubmatch(p.pattern, -1) {
			for _, word := range strings.Split(first[1], "|") {
				phrasesBy[word] = append(phrasesBy[word], i)
			}
		}
	}
}
