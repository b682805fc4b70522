package machine

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limits are the limits of this process's control groups; 0: no limit.
type Limits struct {
	Memory int64   `json:"memory"` // the smallest limit on the way from the process's group to the root
	Used   int64   `json:"used"`   // memory in use; pages of files count as free because they can be dropped. If a parent group has less room, Used is raised to match
	CPUs   float64 `json:"cpus"`   // processors' worth of time
}

// noLimit is where v1's "no limit", the largest multiple of a page, begins.
const noLimit = 1 << 60

// limits looks through both versions of control groups: a hybrid system has memory in one of them.
func (t tree) limits() Limits {
	var l Limits
	groups, mounts := t.text("proc/self/cgroup"), t.text("proc/self/mountinfo")
	for line := range strings.Lines(groups) {
		// hierarchy:controllers:path, controllers empty in version 2.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		kinds := strings.Split(parts[1], ",")
		switch {
		case parts[1] == "":
			t.climb(mounts, "cgroup2", "", parts[2], func(folder string) { t.limitsV2(&l, folder) })
		case slices.Contains(kinds, "memory"):
			t.climb(mounts, "cgroup", "memory", parts[2], func(folder string) {
				stat := t.text(folder + "/memory.stat")
				// A container does not see the groups above its own, but the smallest limit among
				// them.
				limit := least(limitBytes(t.line(folder+"/memory.limit_in_bytes")), limitBytes(strconv.FormatInt(statBytes(stat, "hierarchical_memory_limit"), 10)))
				l.memory(limit, t.number(folder+"/memory.usage_in_bytes"), statBytes(stat, "total_active_file")+statBytes(stat, "total_inactive_file"))
			})
		case slices.Contains(kinds, "cpu"):
			t.climb(mounts, "cgroup", "cpu", parts[2], func(folder string) {
				l.cpus(t.line(folder+"/cpu.cfs_quota_us"), t.line(folder+"/cpu.cfs_period_us"))
			})
		}
	}
	return l
}

func (t tree) limitsV2(l *Limits, folder string) {
	stat := t.text(folder + "/memory.stat")
	l.memory(limitBytes(t.line(folder+"/memory.max")), t.number(folder+"/memory.current"), statBytes(stat, "active_file")+statBytes(stat, "inactive_file"))
	quota, period, _ := strings.Cut(t.line(folder+"/cpu.max"), " ")
	l.cpus(quota, period)
}

// memory adds a group with a limit. The available memory is the least room of all groups.
func (l *Limits) memory(limit, used, droppable int64) {
	if limit <= 0 {
		return
	}
	room := limit - max(0, used-droppable)
	if l.Memory > 0 {
		room = min(room, l.Memory-l.Used)
	}
	l.Memory = least(l.Memory, limit)
	l.Used = max(0, l.Memory-room)
}

func (l *Limits) cpus(quota, period string) {
	q, err := strconv.ParseInt(quota, 10, 64)
	p, err2 := strconv.ParseInt(period, 10, 64)
	if err != nil || err2 != nil || q <= 0 || p <= 0 {
		return
	}
	if n := float64(q) / float64(p); l.CPUs == 0 || n < l.CPUs {
		l.CPUs = n
	}
}

// limitBytes reads a limit; "max" and version 1's huge number are none. A limit of 0 exists, but
// nothing can run under it.
func limitBytes(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || n >= noLimit {
		return 0
	}
	return n
}

// statBytes finds "name value" in memory.stat.
func statBytes(text, name string) int64 {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil || n < 0 {
				return 0
			}
			return n
		}
	}
	return 0
}

// climb visits the folder of a group and the mounted ones above it. kind is the file system's type;
// controller is the option that a mount of version 1 must have.
func (t tree) climb(mounts, kind, controller, group string, visit func(folder string)) {
	root, point := mountOf(mounts, kind, controller)
	if point == "" {
		return
	}
	// In a container the group is named from the host's root, of which only a part is mounted; a
	// group outside of it is seen at the mount point only.
	rel, ok := strings.CutPrefix(path.Clean("/"+group), strings.TrimSuffix(root, "/"))
	if !ok || rel != "" && rel[0] != '/' {
		rel = ""
	}
	for rel != "" && rel != "/" {
		visit(path.Join(point, rel))
		rel = path.Dir(rel)
	}
	visit(point)
}

// mountOf finds a control group mount in /proc/self/mountinfo: its root within the hierarchy and
// where it is, as a path of the tree.
func mountOf(mounts, kind, controller string) (root, point string) {
	for line := range strings.Lines(mounts) {
		// 36 35 98:0 ROOT POINT options [tags] - TYPE source SUPER-OPTIONS
		before, after, ok := strings.Cut(line, " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 5 || len(tail) < 3 || tail[0] != kind {
			continue
		}
		if controller != "" && !slices.Contains(strings.Split(tail[2], ","), controller) {
			continue
		}
		return head[3], strings.TrimPrefix(path.Clean(head[4]), "/")
	}
	return "", ""
}
