package machine

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// cpuMax bounds processor and node numbers: the kernel's own limit is 8,192.
const cpuMax = 1 << 16

// parseList reads a list such as "0-3,8,10-11", as the kernel writes processors and nodes: rising,
// without doubles. "" is the empty list.
func parseList(text string) ([]int, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	var ids []int
	for part := range strings.SplitSeq(text, ",") {
		low, high, ranged := strings.Cut(part, "-")
		from, err := parseID(low)
		to := from
		if err == nil && ranged {
			to, err = parseID(high)
		}
		if err != nil || to < from {
			return nil, fmt.Errorf("%.40q is not a list of numbers such as 0-3,8", part)
		}
		if len(ids)+to-from >= cpuMax {
			return nil, fmt.Errorf("a list of over %d numbers", cpuMax)
		}
		for id := from; id <= to; id++ {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func parseID(text string) (int, error) {
	id, err := strconv.ParseUint(strings.TrimSpace(text), 10, 31)
	if err != nil || id >= cpuMax {
		return 0, fmt.Errorf("%.40q is not a number below %d", text, cpuMax)
	}
	return int(id), nil
}

// list returns a file with a list; a file that is not one is empty.
func (t tree) list(path string) []int {
	ids, err := parseList(t.text(path))
	if err != nil {
		return nil
	}
	return ids
}

// number returns a file with one number, 0 where it is not.
func (t tree) number(path string) int64 {
	n, err := strconv.ParseInt(t.line(path), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// parseKB finds a line such as "MemAvailable: 123 kB" of /proc/meminfo (or "VmRSS:" of
// /proc/self/status, also after "Node 0 ") and returns the value in bytes; 0 if there is none.
func parseKB(text, name string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "Node "); ok {
			_, line, _ = strings.Cut(rest, " ")
		}
		value, ok := strings.CutPrefix(line, name+":")
		if !ok {
			continue
		}
		fields := strings.Fields(value)
		if len(fields) != 2 || fields[1] != "kB" {
			return 0
		}
		kb, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil || kb < 0 || kb > math.MaxInt64/1024 {
			return 0
		}
		return kb * 1024
	}
	return 0
}

// field finds "name : value" or "name: value" lines as in /proc/cpuinfo.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
