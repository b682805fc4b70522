package main

import "fmt"

// limit bounds a count of what the code base has too much of.
type limit struct {
	name string
	max  int // today's count. It may only fall, to the goal: lower it whenever the count is below it.
	goal int
}

// limits are in the order in which they are printed. The phrases' are in phrases.go.
var limits = append([]limit{
	// Code that treats one kind of attention differently belongs into the mixers.
	{"kind switches", 0, 0},
	// Interfaces that a device, a stream or its operators may or may not implement. A wrapper
	// that does not forward one loses it silently.
	{"optional interfaces", 2, 2},
	// Code in package main cannot be imported, and is tested through flags only.
	{mainLines, 3626, 4000},
	{"long test functions", 0, 0},
}, phraseLimits()...)

// judge returns a line for each count and a fault for each that is over its limit.
func judge(limits []limit, counts map[string]int) (lines, faults []string) {
	for _, l := range limits {
		n := counts[l.name]
		note := ""
		if n < l.max && l.max > l.goal {
			note = fmt.Sprintf("; lower the limit in cmd/lint from %d to %d", l.max, n)
		}
		lines = append(lines, fmt.Sprintf("%s %d (goal %d%s)\n", l.name, n, l.goal, note))
		if n > l.max {
			faults = append(faults, fmt.Sprintf("%s: %d, and at most %d are allowed", l.name, n, l.max))
		}
	}
	return lines, faults
}
