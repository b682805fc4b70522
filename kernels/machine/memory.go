package machine

import (
	"os"
	"strings"
)

// Memory is the whole machine's, whatever a container allows.
type Memory struct {
	Total     int64 `json:"total"`     // MemTotal
	Free      int64 `json:"free"`      // MemFree
	Available int64 `json:"available"` // MemAvailable: free, or can be freed without swapping
}

func (t tree) memory() Memory {
	info := t.text("proc/meminfo")
	return Memory{Total: parseKB(info, "MemTotal"), Free: parseKB(info, "MemFree"), Available: parseKB(info, "MemAvailable")}
}

// Resident returns the memory this process holds in RAM, 0 if the system does not tell.
func Resident() int64 { return parseKB(tree{os.DirFS("/")}.text("proc/self/status"), "VmRSS") }

// HugePages are the pools of large pages and the mode of transparent ones.
type HugePages struct {
	GiB  Pool   `json:"1gib"`
	MiB2 Pool   `json:"2mib"`
	THP  string `json:"thp"` // "always", "madvise", "never"; "" where the kernel has none
}

// Pool is a reserve of pages of one size.
type Pool struct {
	Pages int64 `json:"pages"`
	Free  int64 `json:"free"`
}

func (t tree) hugePages() HugePages {
	pool := func(kb string) Pool {
		folder := "sys/kernel/mm/hugepages/hugepages-" + kb + "kB"
		return Pool{Pages: t.number(folder + "/nr_hugepages"), Free: t.number(folder + "/free_hugepages")}
	}
	return HugePages{GiB: pool("1048576"), MiB2: pool("2048"), THP: chosen(t.line("sys/kernel/mm/transparent_hugepage/enabled"))}
}

// chosen returns the word in brackets of "always [madvise] never".
func chosen(line string) string {
	_, rest, _ := strings.Cut(line, "[")
	word, _, ok := strings.Cut(rest, "]")
	if !ok {
		return ""
	}
	return word
}
