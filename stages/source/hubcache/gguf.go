package hubcache

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrSeveral: several models match.
var ErrSeveral = errors.New("there are several")

// series is a model in GGUF files: one file, or all its parts.
type series struct {
	name  string // without .gguf and the number of the part, with its folder
	parts int    // by the files' names; 1: no parts
	files []string
}

var partName = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})$`)

// gguf groups the .gguf files among names by model. It skips vision towers and importance matrices.
func gguf(names []string) (all []*series) {
	at := map[string]*series{}
	for _, name := range slices.Sorted(slices.Values(names)) {
		base := strings.ToLower(path.Base(name))
		if !strings.HasSuffix(base, ".gguf") || strings.Contains(base, "mmproj") || strings.Contains(base, "imatrix") {
			continue
		}
		stem, parts := name[:len(name)-len(".gguf")], 1
		if m := partName.FindStringSubmatch(stem); m != nil {
			stem = m[1]
			parts, _ = strconv.Atoi(m[3]) // five digits
		}
		key := fmt.Sprint(stem, " ", parts)
		if at[key] == nil {
			at[key] = &series{name: stem, parts: parts}
			all = append(all, at[key])
		}
		at[key].files = append(at[key].files, name)
	}
	return all
}

// fit rates how well a quantisation matches the name of the series, from 0 (not at all) to 3 (the full name). Case is ignored.
func (s *series) fit(quant string) int {
	base, folder := strings.ToLower(path.Base(s.name)), strings.ToLower(path.Base(path.Dir(s.name)))
	q := strings.ToLower(quant)
	// An underscore does not end a word on the right: "Q4_K" must not match "Q4_K_M".
	word := regexp.MustCompile(`(^|[-._])` + regexp.QuoteMeta(q) + `($|[-.])`)
	switch {
	case base == q:
		return 3
	case folder == q, strings.HasSuffix(base, q) && word.MatchString(base[max(0, len(base)-len(q)-1):]):
		return 2
	case word.MatchString(base):
		return 1
	}
	return 0
}

// labels returns short names of series that Select accepts: their names without the common prefix.
func labels(all []*series) []string {
	common := path.Base(all[0].name)
	for _, s := range all {
		base := path.Base(s.name)
		n := 0
		for n < min(len(common), len(base)) && common[n] == base[n] {
			n++
		}
		common = common[:n]
	}
	cut := strings.LastIndexAny(common, "-.") + 1
	var names []string
	for _, s := range all {
		names = append(names, cmp.Or(path.Base(s.name)[cut:], path.Base(s.name)))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Quants lists the quantisations among the names of a model's files.
func Quants(names []string) []string {
	all := gguf(names)
	if len(all) == 0 {
		return nil
	}
	return labels(all)
}

// labelsMost bounds the names in an error.
const labelsMost = 40

func oneOf(names []string) string {
	more := ""
	if n := len(names) - labelsMost; n > 0 {
		names, more = names[:labelsMost], fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(names, ", ") + more
}

// Select returns the .gguf files of a quantisation among the names of a model's files, with all parts in order. "" selects the
// only one. It fails if several match or a part is missing.
func Select(names []string, quant string) ([]string, error) {
	all := gguf(names)
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: there are no .gguf files", ErrAbsent)
	}
	var best []*series
	level := 1
	for _, s := range all {
		fit := 1
		if quant != "" {
			fit = s.fit(quant)
		}
		if fit > level {
			best, level = nil, fit
		}
		if fit == level {
			best = append(best, s)
		}
	}
	switch len(best) {
	case 0:
		return nil, fmt.Errorf("%w: no .gguf file is %s; there are %s", ErrAbsent, quant, oneOf(labels(all)))
	case 1:
	default:
		what := "quantisations"
		if quant != "" {
			what += " called " + quant
		}
		var full []string
		for _, s := range best {
			full = append(full, path.Base(s.name))
		}
		if quant == "" {
			full = labels(best)
		}
		return nil, fmt.Errorf("%w %s; name one of them behind the colon: %s", ErrSeveral, what, oneOf(full))
	}
	s := best[0]
	if len(s.files) != s.parts {
		return nil, fmt.Errorf("%w: of %s there are %d of %d parts", ErrUnfinished, s.name, len(s.files), s.parts)
	}
	return s.files, nil
}
