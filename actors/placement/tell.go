package placement

import (
	"fmt"
	"strings"

	"krater/scheduler/dispatch"
)

// TellFalls describes falls, with one line for each phase: the strategy in use, the strategies tried
// before it, and why the last of these does not fit.
//
//	prefill: layer_grouped:8 instead of persistent, layer_grouped:2 to :7: layer_grouped:7: no room: ...
func TellFalls(falls []Fall) (lines []string) {
	for phase := range dispatch.Phases {
		var tried []string
		var last *Fall
		for i := range falls {
			if falls[i].Phase == phase {
				last = &falls[i]
				tried = append(tried, last.From)
			}
		}
		if last != nil {
			lines = append(lines, fmt.Sprintf("%s: %s instead of %s: %v", phase, last.To, runs(tried), last.Why))
		}
	}
	return lines
}

// runs lists names, those that differ only in what is behind the last colon, three and more of them, by
// the first and the last.
func runs(names []string) string {
	var parts []string
	for from := 0; from < len(names); {
		stem := stemOf(names[from])
		to := from + 1
		for to < len(names) && stem != "" && stemOf(names[to]) == stem {
			to++
		}
		if to-from > 2 {
			parts = append(parts, names[from]+" to "+strings.TrimPrefix(names[to-1], stem))
		} else {
			parts = append(parts, names[from:to]...)
		}
		from = to
	}
	return strings.Join(parts, ", ")
}

// stemOf returns the part of a name before its last colon, "" if it has no colon.
func stemOf(name string) string {
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		return name[:i]
	}
	return ""
}
