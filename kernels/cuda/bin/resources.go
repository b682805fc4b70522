package bin

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// Resources are a kernel's registers and memory, as the assembler reports them.
type Resources struct {
	Kernel, Arch, Source string // Source: the .cu file, without its ending
	Registers            int    // per thread
	Stack                int    // bytes per thread
	SpillStores          int    // bytes per thread
	SpillLoads           int
	Shared               int  // static shared memory, bytes per block
	Serialized           bool // its wgmma wait for one another, because the assembler could not overlap them
}

const resourcesHead = "# Made by `make cuda-kernels`; do not edit.\n" +
	"# kernel architecture source registers stack spill-stores spill-loads shared serialized\n"

// FormatResources returns the text of RESOURCES; it sorts rows.
func FormatResources(rows []Resources) string {
	slices.SortFunc(rows, func(a, b Resources) int {
		return strings.Compare(a.Source+" "+a.Kernel+" "+a.Arch, b.Source+" "+b.Kernel+" "+b.Arch)
	})
	var b strings.Builder
	b.WriteString(resourcesHead)
	for _, r := range rows {
		fmt.Fprintf(&b, "%s %s %s %d %d %d %d %d %t\n", r.Kernel, r.Arch, r.Source,
			r.Registers, r.Stack, r.SpillStores, r.SpillLoads, r.Shared, r.Serialized)
	}
	return b.String()
}

// ParseResources reads the text of FormatResources.
func ParseResources(text []byte) ([]Resources, error) {
	var rows []Resources
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		var r Resources
		_, err := fmt.Sscan(line, &r.Kernel, &r.Arch, &r.Source, &r.Registers, &r.Stack,
			&r.SpillStores, &r.SpillLoads, &r.Shared, &r.Serialized)
		if err != nil {
			return nil, fmt.Errorf("RESOURCES line %d: %w", n, err)
		}
		rows = append(rows, r)
	}
	return rows, lines.Err()
}
