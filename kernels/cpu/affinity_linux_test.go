package cpu_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"krater/kernels/cpu"
)

// onProcessors are nodes of one real processor each: all of memory node 0, which every machine has.
func onProcessors(t testing.TB, most int) []cpu.Node {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	var nodes []cpu.Node
	for id := 0; id < 1024 && len(nodes) < most; id++ {
		if set.IsSet(id) {
			nodes = append(nodes, cpu.Node{CPUs: []int{id}})
		}
	}
	return nodes
}

// TestWorkersAreBound: the system itself says where a node's workers may run, and goroutines on
// other threads keep all processors.
func TestWorkersAreBound(t *testing.T) {
	nodes := onProcessors(t, 8)
	if len(nodes) < 2 {
		t.Skip("one processor")
	}
	if n := len(nodes) - 1; n > 1 { // the last node has two
		nodes[n-1].CPUs = append(nodes[n-1].CPUs, nodes[n].CPUs...)
		nodes = nodes[:n]
	}
	d, s := open(t, cpu.Options{Nodes: nodes})
	d.ShareEverything()
	newStep(d, s).run()
	if d.Notices() != nil {
		t.Fatalf("%v", d.Notices())
	}
	workers := d.Workers()
	if len(workers) != d.Team().Threads()-1 {
		t.Fatalf("%d workers beside the caller for %d threads", len(workers), d.Team().Threads())
	}
	for _, w := range workers {
		cpus, err := w.CPUs()
		if err != nil || !slices.Equal(cpus, nodes[w.Node].CPUs) {
			t.Errorf("a worker of node %d may run on %v, want %v (%v)", w.Node, cpus, nodes[w.Node].CPUs, err)
		}
	}
	// Every thread that runs a part of a loop is there.
	for node, n := range d.NodeThreads() {
		if node == 0 && n == 1 {
			continue // its thread is the caller, which is nobody's
		}
		d.NodeRun(node, 4, func(int) {
			cpus, err := cpu.Worker{}.CPUs()
			if err != nil || !slices.Equal(cpus, nodes[node].CPUs) {
				t.Errorf("a part of node %d runs on %v (%v)", node, cpus, err)
			}
		})
	}
	var all unix.CPUSet
	_ = unix.SchedGetaffinity(0, &all)
	var wg sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			runtime.Gosched()
			if cpus, err := (cpu.Worker{}).CPUs(); err != nil || len(cpus) != all.Count() {
				t.Errorf("a goroutine may run on %v, the process on %d processors", cpus, all.Count())
			}
		})
	}
	wg.Wait()
}

// TestBoundThreadsEnd with their device: no thread with a mask of its own is left to others.
func TestBoundThreadsEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 5 {
		d, err := cpu.New(cpu.Options{Nodes: onProcessors(t, 4)})
		if err != nil {
			t.Fatal(err)
		}
		workers := d.Workers()
		if len(workers) != d.Team().Threads()-1 {
			t.Fatalf("%d bound threads of %d", len(workers), d.Team().Threads())
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		for _, w := range workers {
			if w.Thread == os.Getpid() {
				continue // the first thread of a process waits for its end; no goroutine runs on it again
			}
			for i := 0; alive(w.Thread); i++ {
				if i == 1_000_000 {
					t.Fatalf("thread %d is there after Close", w.Thread)
				}
				runtime.Gosched()
			}
		}
	}
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 1_000_000 {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		runtime.Gosched()
	}
}

// alive reports whether a thread of this process has not ended.
func alive(thread int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/stat", thread))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(status), ") ")
	return !strings.HasPrefix(state, "X") && !strings.HasPrefix(state, "Z")
}

// TestProcessorsAreChecked: a processor this process may not use is named.
func TestProcessorsAreChecked(t *testing.T) {
	d, err := cpu.New(cpu.Options{Nodes: []cpu.Node{{CPUs: []int{8191}}}})
	if err == nil {
		d.Close()
		t.Fatal("accepted")
	}
	if !strings.Contains(err.Error(), "may not run on processor 8191") {
		t.Error(err)
	}
}

// TestPagesAreWhereTheyBelong looks at real memory of node 0.
func TestPagesAreWhereTheyBelong(t *testing.T) {
	nodes := onProcessors(t, 2)
	d, _ := open(t, cpu.Options{Nodes: nodes})
	for node := range nodes {
		b, err := d.AllocOn(node, 33<<20+5)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Free()
		small, err := d.AllocOn(node, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer small.Free()
		p, err := d.PlacementOn(node, b, small)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %v", p, d.Notices())
		if p.Bytes != 33<<20+6 || p.Node != 0 {
			t.Errorf("%+v", p)
		}
		if p.Notice != "" {
			t.Skipf("the system does not tell where pages are: %s", p.Notice)
		}
		// 8449 pages and one: every third.
		if p.Looked != 2817 || p.Right != p.Looked || p.Absent != 0 {
			t.Errorf("%+v", p)
		}
	}
	// Memory that nobody has touched is nowhere, and is said to be.
	fresh, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Free()
	if p, _ := d.PlacementOn(0, fresh); p.Looked != 256 || p.Absent != 256 || p.Right != 0 || !strings.Contains(p.String(), "256 not in memory") {
		t.Errorf("%+v", p)
	}
}

// TestNodeThatIsNotThere: memory is had all the same, and both the refusal and the wrong place are
// told.
func TestNodeThatIsNotThere(t *testing.T) {
	const id = 999
	nodes := onProcessors(t, 1)
	nodes[0].ID = id
	d, _ := open(t, cpu.Options{Nodes: nodes})
	b, err := d.AllocOn(0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	if n := d.Notices(); len(n) != 1 || !strings.Contains(n[0], "not bound to node 999") || !strings.Contains(n[0], "mbind") {
		t.Errorf("%v", n)
	}
	p, err := d.PlacementOn(0, b)
	if err != nil || p.Right != 0 || p.Node != id || (p.Looked != 256) == (p.Notice == "") {
		t.Errorf("%+v, %v", p, err)
	}
}
