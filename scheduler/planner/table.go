package planner

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// String returns the plan as a table for people.
func (p *Plan) String() string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for i := range p.Devices {
		b := &p.Devices[i]
		fmt.Fprintf(w, "%s\tbytes\tsize\tshare\t\n", b.Name)
		for _, c := range b.Components {
			fmt.Fprintf(w, "  %s\t%d\t%s\t%s\t%s\n", c.Name, c.Bytes, Size(c.Bytes), b.percent(c.Bytes), c.Detail)
		}
		fmt.Fprintf(w, "  total\t%d\t%s\t%s\t%s\n", b.Planned, Size(b.Planned), b.percent(b.Planned), b.Verdict())
	}
	w.Flush()
	// Cells that are empty at a line's end leave their padding.
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// percent formats bytes as a percentage of the device's memory.
func (b *Budget) percent(bytes int64) string {
	if b.Total == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(bytes)/float64(b.Total))
}

// Verdict says in words whether the components fit.
func (b *Budget) Verdict() string {
	switch {
	case b.Total == 0:
		return "of an unknown size"
	case !b.Fits():
		return fmt.Sprintf("DOES NOT FIT: over %.0f %% of %s", 100*RefuseShare, Size(b.Total))
	case b.Tight():
		return fmt.Sprintf("fits %s, but only %s is free now", Size(b.Total), Size(b.Available))
	case b.Available > 0:
		return fmt.Sprintf("fits: %s free of %s", Size(b.Available), Size(b.Total))
	}
	return "fits: " + Size(b.Total)
}

// Size formats bytes with a binary unit, such as 1.5 GiB.
func Size(bytes int64) string {
	const units = "KMGTPE"
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	v, unit := float64(bytes)/1024, 0
	// 1023.95 would be written as 1024.0.
	for v >= 1023.95 && unit < len(units)-1 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, units[unit])
}

// Count writes "1 core", "2 cores".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "ch") {
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
