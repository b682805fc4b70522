package main

import (
	"strings"
	"testing"
)

// TestRanks: answers have the bits that they have on one rank, on one to four of the processor
// and of a simulated device, wherever its experts are computed.
func TestRanks(t *testing.T) {
	list := company(6, 9, 2, 21, 70, 5)
	var want []said
	for i, args := range [][]string{
		nil, {"--ranks", "2"}, {"--ranks", "3", "--prefill-chunk", "16", "--prefill-share", "7"}, {"--pp-partition", "1,3,2,1", "--max-seqs", "3"},
		{"--device", "hostsim", "--ranks", "2"}, {"--device", "hostsim", "--pp-partition", "4,3", "--layer-groups", "3", "--decode-strategy", "lru", "--expert-vram", "64KiB"},
		{"--device", "hostsim", "--ranks", "4", "--prefill-strategy", "chunked", "--decode-strategy", "cpu_only"},
		{"--device", "cpu,hostsim"}, {"--device", "hostsim,cpu,hostsim,cpu", "--decode-strategy", "learned", "--expert-vram", "64KiB"},
		{"--device", "hostsim,cpu", "--vram", "96MiB,0"},
	} {
		x := tableFor(t, args...)
		if i == 0 {
			want = x.alone(t, list)
		}
		if who := differences(want, x.together(t, list, false)); who != nil {
			t.Errorf("%q: requests %v are answered something else than on one rank", args, who)
		}
	}
}

// TestRanksRefused by name.
func TestRanksRefused(t *testing.T) {
	for _, x := range []struct{ args, want string }{
		{"--ranks 8", "--ranks 8: the model has 7 layers"},
		{"--pp-partition 1,1,1,1,1,1,1,1", "--ranks 8: the model has 7 layers"},
		{"--ranks=-1", "--ranks -1"},
		{"--ranks 2 --pp-partition 3,2,2", "--ranks 2: --pp-partition names 3"},
		{"--pp-partition 3,3", "--pp-partition: load: ranks of [3 3] layers hold 6, the model has 7"},
		{"--pp-partition 7,1", "rank 0 cannot have 7"},
		{"--layer-groups 8", "--layer-groups 8: the model has 7 layers"},
	} {
		args := append([]string{"run", "--max-tokens", "1"}, strings.Fields(x.args)...)
		if o := krater(t, "", append(args, "Hello")...); o.status == 0 || !strings.Contains(o.err, x.want) {
			t.Errorf("%s: status %d, %q, want %q", x.args, o.status, o.err, x.want)
		}
	}
}
