package template

import (
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

func upper(s string) string { return mapParts(s, cases.Upper(language.Und).String) }
func lower(s string) string { return mapParts(s, cases.Lower(language.Und).String) }

// letters maps the runes of s one by one. first is true for the first rune, and for one after a
// rune for which ends is true.
func letters(s string, ends func(rune) bool, f func(r rune, first bool) string) string {
	first := true
	return mapParts(s, func(part string) string {
		var b strings.Builder
		for _, r := range part {
			b.WriteString(f(r, first))
			first = ends(r)
		}
		return b.String()
	})
}

func never(rune) bool { return false }

func titled(r rune, first bool) string {
	if first {
		return string(unicode.ToTitle(r))
	}
	return string(unicode.ToLower(r))
}

func capitalize(s string) string { return letters(s, never, titled) }

func isCased(r rune) bool { return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) }

// title is str.title: a word begins after a character that has no case.
func title(s string) string {
	return letters(s, func(r rune) bool { return !isCased(r) }, titled)
}

// titleWords returns the filter title: words begin after spaces and brackets.
func titleWords(s string) string {
	return letters(s, func(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) },
		func(r rune, first bool) string {
			if first {
				return string(unicode.ToUpper(r))
			}
			return string(unicode.ToLower(r))
		})
}

func swapcase(s string) string {
	return letters(s, never, func(r rune, _ bool) string {
		if unicode.IsUpper(r) {
			return string(unicode.ToLower(r))
		}
		return upper(string(r))
	})
}

var htmlEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;")

func escape(s string) string { return mapParts(s, htmlEscapes.Replace) }

func isAlpha(r rune) bool   { return unicode.IsLetter(r) }
func isDecimal(r rune) bool { return unicode.IsDigit(r) }
func isNumeric(r rune) bool { return unicode.IsNumber(r) }
func isAlnum(r rune) bool   { return unicode.IsLetter(r) || unicode.IsNumber(r) }
