package native

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"krater/kernels/tensor/grid"
)

var update = flag.Bool("update", false, "write src/grids.cuh")

// TestGrids: the kernels have the tables of package grid. With -update it writes them.
func TestGrids(t *testing.T) {
	const path = "../src/grids.cuh"
	var b strings.Builder
	b.WriteString(`// Written by go test ./kernels/cuda/native -update, from kernels/tensor/grid: four values a word.
//
// The grids are tables of ggml (https://github.com/ggml-org/llama.cpp), copyright (c) 2023 Georgi
// Gerganov, under the MIT licence. Its text is in the file NOTICE.
#pragma once
#include "kr.cuh"
`)
	for _, g := range []struct {
		name string
		*grid.Grid
	}{{"iq2_xxs", grid.IQ2_XXS}, {"iq2_xs", grid.IQ2_XS}, {"iq3_xxs", grid.IQ3_XXS}, {"iq3_s", grid.IQ3_S}} {
		words := len(g.Values) / 4
		fmt.Fprintf(&b, "\nstatic __device__ const uint32_t grid_%s[%d] = {", g.name, words)
		for i := range words {
			w := uint32(0)
			for j, v := range g.Values[4*i : 4*i+4] {
				if v < 0 || v > 127 || v != float32(uint32(v)) {
					t.Fatalf("%s: %v is no value of 7 bits", g.name, v)
				}
				w |= uint32(v) << (8 * j)
			}
			if i%12 == 0 {
				b.WriteString("\n\t")
			}
			fmt.Fprintf(&b, "0x%08x,", w)
		}
		b.WriteString("\n};\n")
	}
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != b.String() {
		t.Errorf("%s is not what the grids give: run go test ./kernels/cuda/native -update (%v)", path, err)
	}
}
