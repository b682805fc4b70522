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
	{`\b(hang|hangs|hung) on\b`, "depend on", 1},
	{`\bthe same of\b`, "say what it is, in full", 1},
	{`\banother name:`, "alias of", 0},
	{`\bis of how many\b`, "counts in one of every N", 0},
	{`\bfrom how many\b`, "the number from which", 0},
	{`\b(has|have|had) (the|its|their|an?) \w+ (be|not be|take|do)\b`, "makes, causes", 0},
	{`\b(can|cannot|could|to) be had\b`, "is available", 0},
	{`\bis for who(ever)?\b`, "name who", 0},
	{`\b(whoever|somebody|someone)\b`, "name who: the caller, the client, the scheduler", 3},
	{`\b(a|one) (row|block|launch|message|copy) a (row|token|layer|step|batch|expert)\b`, "one per", 1},
	{`\btells (if|whether)\b`, "reports whether", 0},
	{`\b(is|are) what\b`, "say what it is", 205},
	{`\bare those (of|that|which)\b`, "name them again", 6},
	{`\bon (its|their) way\b`, "in flight", 1},
	{`\bso many\b`, "n, or the given number of", 0},
	{`\b(a|the|one|each|every|no) cards?\b|\bcard's\b`, "GPU", 14},
}

func phraseLimits() []limit {
	var all []limit
	for _, p := range phrases {
		all = append(all, limit{p.name(), p.max, 0})
	}
	return all
}

func (p phrase) name() string { return "phrase " + p.pattern + " (write: " + p.instead + ")" }

// lineStart is the end of a line of prose and the comment mark of the next one.
var lineStart = regexp.MustCompile(`\s*\n\s*(?://+|#+|\*|>|\|)?\s*`)

// countPhrases adds what text has of each phrase, within a line or across lines.
func countPhrases(text string, counts map[string]int) {
	text = strings.ToLower(lineStart.ReplaceAllString(text, " "))
	for i, p := range phrases {
		counts[p.name()] += len(phrasePatterns[i].FindAllString(text, -1))
	}
}

var phrasePatterns = func() (all []*regexp.Regexp) {
	for _, p := range phrases {
		all = append(all, regexp.MustCompile(p.pattern))
	}
	return all
}()
