package main

import (
	"slices"
	"testing"

	"krater/kernels/cuda/bin"
)

func TestParseReadsTheAssembler(t *testing.T) {
	const said = `ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in the function 'kr_b'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'kr_a' for 'sm_90a'
ptxas info    : Function properties for kr_a
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 512 bytes smem
ptxas info    : Compile time = 18.7 ms
ptxas info    : Compiling entry function 'kr_b' for 'sm_90a'
ptxas info    : Function properties for kr_b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers
`
	got, err := parse(said, "f", bin.Hopper)
	want := []bin.Resources{
		{Kernel: "kr_a", Arch: bin.Hopper, Source: "f", Registers: 40, Stack: 16, SpillStores: 4, SpillLoads: 8, Shared: 512},
		{Kernel: "kr_b", Arch: bin.Hopper, Source: "f", Registers: 168, Serialized: true},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	if rows, err := parse("ptxas info    : 0 bytes gmem\n", "f", bin.PTX); err != nil || len(rows) != 0 {
		t.Errorf("a file without kernels for compute_80: %v, %v", rows, err)
	}
	for _, bad := range []string{"", "ptxas info    : Compiling entry function 'kr_a' for 'sm_80'\n"} {
		if rows, err := parse(bad, "f", bin.Hopper); err == nil {
			t.Errorf("%q gave %v", bad, rows)
		}
	}
}
