package main

import (
	"fmt"
	"strconv"
	"strings"

	"krater/kernels/cuda/bin"
)

// parse reads what the assembler said of each kernel (ptxas -v):
//
//	ptxas info    : Compiling entry function 'kr_x' for 'sm_90a'
//	ptxas info    : Function properties for kr_x
//	    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//	ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem, 400 bytes cmem[0]
//
// and, somewhere, "Potential Performance Loss: wgmma.mma_async instructions are
// serialized due to ... in the function 'kr_x'".
func parse(said, source, arch string) ([]bin.Resources, error) {
	var rows []bin.Resources
	serialized := map[string]bool{}
	for line := range strings.Lines(said) {
		switch {
		case strings.Contains(line, "Compiling entry function"):
			rows = append(rows, bin.Resources{Kernel: quoted(line), Arch: arch, Source: source})
		case strings.Contains(line, "instructions are serialized"):
			serialized[lastQuoted(line)] = true
		case len(rows) == 0:
		case strings.Contains(line, "bytes stack frame"):
			r := &rows[len(rows)-1]
			r.Stack = before(line, " bytes stack frame")
			r.SpillStores = before(line, " bytes spill stores")
			r.SpillLoads = before(line, " bytes spill loads")
		case strings.Contains(line, "Used "):
			r := &rows[len(rows)-1]
			r.Registers = before(line, " registers")
			r.Shared = before(line, " bytes smem")
		}
	}
	// A file of kernels for Hopper has no kernels for compute_80.
	if len(rows) == 0 && (arch == bin.Hopper || !strings.Contains(said, " bytes gmem")) {
		return nil, fmt.Errorf("no kernel in what the assembler says:\n%s", said)
	}
	for i := range rows {
		r := &rows[i]
		if r.Registers == 0 {
			return nil, fmt.Errorf("the assembler does not say how many registers %s has", r.Kernel)
		}
		r.Serialized = serialized[r.Kernel]
	}
	return rows, nil
}

// before returns the number before the given text, 0 if the text does not occur.
func before(line, what string) int {
	head, _, ok := strings.Cut(line, what)
	if !ok {
		return 0
	}
	digits := head[strings.LastIndexAny(head, " \t,")+1:]
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// quoted returns the first word in quotes, lastQuoted the last.
func quoted(line string) string {
	_, after, _ := strings.Cut(line, "'")
	name, _, _ := strings.Cut(after, "'")
	return name
}

func lastQuoted(line string) string {
	parts := strings.Split(line, "'")
	if len(parts) < 3 {
		return ""
	}
	return parts[len(parts)-2]
}
