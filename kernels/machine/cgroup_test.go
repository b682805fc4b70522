package machine

import "testing"

const gib = 1 << 30

// mounts of the two versions, as in /proc/self/mountinfo.
const (
	mountV2 = "25 30 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)

// limitCases are files of a machine, and the limits that they say.
var limitCases = map[string]struct {
	files files
	want  Limits
}{
	"none": {files{}, Limits{}},
	// Kubernetes and Docker with a namespace of control groups: the group is "/".
	"v2, own root": {files{
		"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mountV2,
		"sys/fs/cgroup/memory.max": "4294967296\n", "sys/fs/cgroup/memory.current": "2147483648\n",
		"sys/fs/cgroup/memory.stat": "anon 5\nfile 7\ninactive_anon 3\ninactive_file 1073741824\n",
		"sys/fs/cgroup/cpu.max":     "150000 100000\n",
	}, Limits{4 * gib, gib, 1.5}},
	// A service under systemd: the smallest limit above it holds.
	"v2, nested": {files{
		"proc/self/cgroup": "0::/system.slice/krater.service/sub\n", "proc/self/mountinfo": mountV2,
		"sys/fs/cgroup/system.slice/krater.service/sub/memory.max": "max\n",
		"sys/fs/cgroup/system.slice/krater.service/memory.max":     "8589934592\n",
		"sys/fs/cgroup/system.slice/krater.service/memory.current": "1000\n",
		"sys/fs/cgroup/system.slice/memory.max":                    "17179869184\n",
		"sys/fs/cgroup/system.slice/memory.current":                "9000\n",
		"sys/fs/cgroup/system.slice/cpu.max":                       "max 100000\n",
	}, Limits{8 * gib, 1000, 0}},
	"v1": {files{
		"proc/self/cgroup":    "9:name=systemd:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/jobs/7\n0::/\n",
		"proc/self/mountinfo": mountV1 + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes": "9223372036854771712\n",
		"sys/fs/cgroup/memory/jobs/memory.limit_in_bytes":   "2147483648\n",
		"sys/fs/cgroup/memory/jobs/memory.usage_in_bytes":   "500\n",
		"sys/fs/cgroup/memory/jobs/memory.stat":             "inactive_file 1\ntotal_inactive_file 600\n",
		"sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_quota_us": "400000\n", "sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_period_us": "100000\n",
		"sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us": "100000\n",
	}, Limits{2 * gib, 0, 4}},
	// The page cache is free, however often its pages were used.
	"v1, page cache": {files{
		"proc/self/cgroup": "4:memory:/\n", "proc/self/mountinfo": mountV1,
		"sys/fs/cgroup/memory/memory.limit_in_bytes": "629145600\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "500000000\n",
		"sys/fs/cgroup/memory/memory.stat": "active_file 1\ninactive_file 2\ntotal_active_file 470000000\ntotal_inactive_file 20000000\n",
	}, Limits{629145600, 10000000, 0}},
	"v2, page cache": {files{
		"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mountV2,
		"sys/fs/cgroup/memory.max": "629145600\n", "sys/fs/cgroup/memory.current": "500000000\n",
		"sys/fs/cgroup/memory.stat": "active_file 470000000\ninactive_file 20000000\n",
	}, Limits{629145600, 10000000, 0}},
	// A group above may have less room than the one with the smallest limit.
	"v2, a full group above": {files{
		"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": mountV2,
		"sys/fs/cgroup/a/b/memory.max": "4000\n", "sys/fs/cgroup/a/b/memory.current": "1000\n",
		"sys/fs/cgroup/a/memory.max": "9000\n", "sys/fs/cgroup/a/memory.current": "8900\n", "sys/fs/cgroup/a/memory.stat": "active_file 50\ninactive_file 350\n",
	}, Limits{4000, 3500, 0}},
	"v2, a full group below": {files{
		"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": mountV2,
		"sys/fs/cgroup/a/b/memory.max": "9000\n", "sys/fs/cgroup/a/b/memory.current": "8900\n",
		"sys/fs/cgroup/a/memory.max": "4000\n", "sys/fs/cgroup/a/memory.current": "200\n",
	}, Limits{4000, 3900, 0}},
	// A container sees its own group, and the least limit of those above it.
	"v1, a limit above": {files{
		"proc/self/cgroup": "4:memory:/docker/abc\n", "proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "10\n",
		"sys/fs/cgroup/memory/memory.stat": "hierarchical_memory_limit 1073741824\n",
	}, Limits{gib, 10, 0}},
	// Docker without a namespace: the group's name is the host's, the mount
	// begins at the container.
	"v1, part of the host": {files{
		"proc/self/cgroup":                             "4:memory:/docker/abc\n",
		"proc/self/mountinfo":                          "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes":   "1073741824\n",
		"sys/fs/cgroup/memory/memory.usage_in_bytes":   "10\n",
		"sys/fs/cgroup/memory/docker/abc/memory.limit": "1\n",
	}, Limits{gib, 10, 0}},
	"v2, outside of the mount": {files{
		"proc/self/cgroup": "0::/other\n", "proc/self/mountinfo": "25 30 0:22 /ot /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/memory.max": "1073741824\n",
	}, Limits{gib, 0, 0}},
	"rubbish": {files{
		"proc/self/cgroup": "0::/\n0:x\n:::\n", "proc/self/mountinfo": mountV2 + "a b\n - \n",
		"sys/fs/cgroup/memory.max": "-5\n", "sys/fs/cgroup/cpu.max": "0 0\n", "sys/fs/cgroup/memory.stat": "inactive_file -3\n",
	}, Limits{}},
}

func TestLimits(t *testing.T) {
	for name, x := range limitCases {
		if got := x.files.read().Limits; got != x.want {
			t.Errorf("%s: %+v, want %+v", name, got, x.want)
		}
	}
}

// TestContainerIsTheMachine: a limit counts as the machine's memory; one above it does not.
func TestContainerIsTheMachine(t *testing.T) {
	host := Memory{Total: 64 * gib, Free: gib, Available: 60 * gib}
	for _, x := range []struct {
		memory           Memory
		limits           Limits
		total, available int64
	}{
		{host, Limits{}, 64 * gib, 60 * gib},
		{host, Limits{Memory: 8 * gib, Used: 3 * gib}, 8 * gib, 5 * gib},
		{host, Limits{Memory: 8 * gib, Used: 9 * gib}, 8 * gib, 1},
		{host, Limits{Memory: 128 * gib, Used: 3 * gib}, 64 * gib, 60 * gib},
		{Memory{Total: 64 * gib, Available: gib}, Limits{Memory: 8 * gib}, 8 * gib, gib},
		{Memory{}, Limits{Memory: 8 * gib, Used: gib}, 8 * gib, 7 * gib},
	} {
		m := &Machine{Memory: x.memory, Limits: x.limits}
		if m.Total() != x.total || m.Available() != x.available {
			t.Errorf("%+v %+v: total %d, available %d", x.memory, x.limits, m.Total(), m.Available())
		}
	}
}
