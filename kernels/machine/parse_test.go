package machine

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestParseList(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "\n": nil, "0": {0}, "0-3\n": {0, 1, 2, 3}, "8,0-1,1, 5": {0, 1, 5, 8}, "65535": {65535},
	} {
		if got, err := parseList(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-", "1-", "3-1", "a", "0,", "65536", "0-99999999999", "-1", "+1", "0-65535,0-65535", "1-2-3"} {
		if got, err := parseList(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestParseKB(t *testing.T) {
	for text, want := range map[string]int64{
		"MemTotal: 12 kB\n": 12 << 10, "Node 3 MemTotal:   7 kB": 7 << 10, "XMemTotal: 1 kB\nMemTotal: 2 kB\nMemTotal: 3 kB\n": 2 << 10,
		"": 0, "MemTotal: 12\n": 0, "MemTotal: -1 kB\n": 0, "MemTotal: 12 MB\n": 0, "MemTotal: 99999999999999999 kB\n": 0, "Node ": 0,
	} {
		if got := parseKB(text, "MemTotal"); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestParseTopology(t *testing.T) {
	got, err := ParseTopology("2x3, 1x1")
	want := []Node{{ID: 0, CPUs: []int{0, 1, 2}}, {ID: 1, CPUs: []int{3, 4, 5}}, {ID: 2, CPUs: []int{6}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "2", "x", "0x4", "4x0", "1x1025", "65x1", "2x8,", "32x1,33x1", "-1x2", "1x2x3", "99999999999x1", "1x1,1 x1"} {
		if got, err := ParseTopology(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		} else if !strings.Contains(err.Error(), "topology") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzParse: no text makes a parser fail, and what is accepted is within bounds.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"0-3,8\n", "2x8,1x4", "MemTotal: 5 kB\n", "0::/a/b\n", mountV2, "processor : 3\n", "always [never]", "16", "max 100000"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if ids, err := parseList(text); err == nil {
			if !slices.IsSorted(ids) || len(ids) > cpuMax || len(ids) > 0 && (ids[0] < 0 || ids[len(ids)-1] >= cpuMax) {
				t.Errorf("list %v", ids)
			}
		}
		if n := parseKB(text, "MemTotal"); n < 0 {
			t.Errorf("%d bytes", n)
		}
		if nodes, err := ParseTopology(text); err == nil {
			next := 0
			for i, n := range nodes {
				for _, id := range n.CPUs {
					if id != next {
						t.Fatalf("processor %d of node %d, want %d", id, i, next)
					}
					next++
				}
			}
			if len(nodes) < 1 || len(nodes) > fakeNodesMax || next < 1 {
				t.Errorf("%d nodes, %d processors", len(nodes), next)
			}
		}
		tree := files{}
		for path := range gpuHost() {
			tree[path] = text
		}
		tree["proc/self/cgroup"], tree["proc/self/mountinfo"] = text, mountV2+mountV1
		tree["sys/fs/cgroup/memory.max"], tree["sys/fs/cgroup/cpu.max"], tree["sys/fs/cgroup/memory.current"] = text, text, text
		m := tree.read()
		if m.Total() < 0 || m.Available() < 0 || m.Limits.CPUs < 0 || m.CPU.Cores > cpuMax || m.NodesPerSocket() < 0 {
			t.Errorf("%+v", m)
		}
	})
}

// TestParseFeatures: an instruction set counts where its kernels can run.
func TestParseFeatures(t *testing.T) {
	const wide = "avx2 fma bmi2 f16c avx512f avx512bw avx512dq avx512vl"
	for flags, want := range map[string]string{
		"": "none", "avx2 fma": "none", "avx2 bmi2": "none", "avx2 fma bmi2": "none", "avx2 fma bmi2 f16c": "AVX2", "avx2 fma bmi2 f16c avx_vnni": "AVX2, AVX-VNNI", "avx_vnni": "none", wide: "AVX2, AVX-512", "avx2 fma bmi2 f16c avx512_vnni avx512f": "AVX2",
		wide + " avx512_vnni amx_tile amx_int8 amx_bf16": "AVX2, AVX-512, VNNI, AMX INT8, AMX BF16", wide + " amx_int8": "AVX2, AVX-512",
	} {
		if got := parseFeatures(flags).String(); got != want {
			t.Errorf("%q: %s, want %s", flags, got, want)
		}
	}
}
