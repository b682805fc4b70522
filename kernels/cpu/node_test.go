package cpu_test

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/machine"
	"krater/kernels/tensor"
)

// fakes are made-up nodes as in machine.ParseTopology.
func fakes(t testing.TB, topology string) []cpu.Node {
	t.Helper()
	made, err := machine.ParseTopology(topology)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := cpu.NodesOf(&machine.Machine{}, made, 0)
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

var topologies = []string{"1x1", "1x3", "2x1", "2x2", "4x1", "4x2", "1x3,1x1", "2x2,1x1"}

// goroutine returns the number of the calling goroutine.
func goroutine() string {
	var stack [64]byte
	return string(bytes.Fields(stack[:runtime.Stack(stack[:], false)])[1])
}

// TestNodeLoopsStayOnTheirWorkers: the loops of a node have workers of their own, as many as the
// node has threads, and the caller of one of several only waits. The first node's last thread is
// the caller of loops over all.
func TestNodeLoopsStayOnTheirWorkers(t *testing.T) {
	for _, topology := range topologies {
		d, _ := open(t, cpu.Options{Nodes: fakes(t, topology)})
		threads, caller := d.NodeThreads(), goroutine()
		all := map[string]int{} // the node of a goroutine
		total := 0
		for node, n := range threads {
			total += n
			workers := n
			if node == 0 && len(threads) > 1 {
				workers = max(1, n-1)
			}
			for range 50 {
				seen := meet(workers, func(f func(int)) { d.NodeRun(node, workers, f) })
				if waits := len(threads) > 1 && (node > 0 || n > 1); seen[caller] == waits || len(seen) != workers {
					t.Fatalf("%s: %d goroutines in a loop of node %d, the caller is one: %v", topology, len(seen), node, seen[caller])
				}
				for id := range seen {
					if other, ok := all[id]; ok && other != node && id != caller {
						t.Fatalf("%s: a worker of node %d in a loop of node %d", topology, other, node)
					}
					all[id] = node
				}
			}
		}
		if seen := meet(total, func(f func(int)) { d.Team().Run(total, f) }); len(seen) != total || !seen[caller] {
			t.Errorf("%s: %d goroutines in a loop over all", topology, len(seen))
		}
		all[caller] = 0
		if d.Team().Threads() != total || len(all) != total || d.Nodes() != len(threads) {
			t.Errorf("%s: %d goroutines for %d threads of %d nodes", topology, len(all), d.Team().Threads(), d.Nodes())
		}
		if d.Workers() != nil {
			t.Errorf("%s: threads of made-up nodes are bound", topology)
		}
	}
}

// meet lets parts of a loop wait for one another, so that each has a goroutine of its own, and
// gives these.
func meet(parts int, run func(f func(int))) map[string]bool {
	var mu sync.Mutex
	var begun sync.WaitGroup
	begun.Add(parts)
	seen := map[string]bool{}
	run(func(int) {
		mu.Lock()
		seen[goroutine()] = true
		mu.Unlock()
		begun.Done()
		begun.Wait()
	})
	return seen
}

// TestThreadsNeverMoreThanCores: experts on every node, as pools run them, beside loops over all on
// one caller.
func TestThreadsNeverMoreThanCores(t *testing.T) {
	for _, topology := range []string{"2x2", "4x2", "1x3,1x1"} {
		d, _ := open(t, cpu.Options{Nodes: fakes(t, topology)})
		var running, most atomic.Int32
		part := func(int) {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			runtime.Gosched()
			running.Add(-1)
		}
		var pools sync.WaitGroup
		for node := range d.Nodes() {
			pools.Go(func() {
				for range 300 {
					d.NodeRun(node, 9, part)
				}
			})
		}
		for range 300 {
			d.Team().Run(9, part)
		}
		pools.Wait()
		if n := int(most.Load()); n > d.Team().Threads() || n < 2 {
			t.Errorf("%s: %d parts at once on %d threads", topology, n, d.Team().Threads())
		}
	}
}

// TestNodesAreBitwiseEqual: operators give the same bits on all threads, on those of a node and
// without nodes, also several at once.
func TestNodesAreBitwiseEqual(t *testing.T) {
	plain, s := open(t, cpu.Options{Threads: 1})
	step := newStep(plain, s)
	step.run()
	want := slices.Clone(step.out.F32s())
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	for i, topology := range topologies {
		for _, share := range []bool{false, true} {
			if testing.Short() && share != (i%2 > 0) {
				continue // every second topology shares
			}
			d, s := open(t, cpu.Options{Nodes: fakes(t, topology)})
			if share {
				d.ShareEverything()
			}
			streams := []device.Stream{s}
			for node := range d.Nodes() {
				s, err := d.NewNodeStream(node)
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, s)
			}
			var wg sync.WaitGroup
			for i, s := range streams {
				step := newStep(d, s)
				wg.Go(func() {
					for range rounds {
						step.run()
						if err := kerneltest.SameBits(step.out.F32s(), want); err != nil {
							t.Errorf("%s, stream %d: %v", topology, i, err)
							return
						}
					}
				})
			}
			wg.Wait()
		}
	}
}

func TestNodeStreamDoesNotAllocate(t *testing.T) {
	d, _ := open(t, cpu.Options{Nodes: fakes(t, "2x2")})
	d.ShareEverything()
	for node := range d.Nodes() {
		s, err := d.NewNodeStream(node)
		if err != nil {
			t.Fatal(err)
		}
		step := newStep(d, s)
		step.run()
		if n := testing.AllocsPerRun(20, step.run); n != 0 {
			t.Errorf("node %d: %v allocations a step", node, n)
		}
	}
}

// TestNodeScratchGrows in its place: what is outgrown is given back.
func TestNodeScratchGrows(t *testing.T) {
	const hidden, inner = 64, 96
	d, _ := open(t, cpu.Options{Nodes: fakes(t, "2x2")})
	d.ShareEverything()
	s, err := d.NewNodeStream(1)
	if err != nil {
		t.Fatal(err)
	}
	e, _ := newExpert(d, 1, hidden, inner, tensor.BF16, tensor.BF16)
	for rows := 1; rows <= 100; rows++ {
		x, y := make([]float32, rows*hidden), make([]float32, rows*hidden)
		d.FFN(s, f32s(d, y, rows, hidden), f32s(d, x, rows, hidden), e)
		if held, mapped := d.Scratch(), d.NodeScratch(); held != mapped || held == 0 {
			t.Fatalf("%d rows: %d bytes held, %d mapped", rows, held, mapped)
		}
	}
}

func TestNodesAreChecked(t *testing.T) {
	two := []int{0, 1}
	for want, o := range map[string]cpu.Options{
		"another node's":   {Nodes: []cpu.Node{{CPUs: two, Fake: true}, {ID: 1, CPUs: []int{1}, Fake: true}}},
		"3 threads on 2":   {Nodes: []cpu.Node{{CPUs: two, Threads: 3, Fake: true}}},
		"-1 threads":       {Nodes: []cpu.Node{{CPUs: two, Threads: -1, Fake: true}}},
		"0 threads on 0":   {Nodes: []cpu.Node{{}}},
		"made-up":          {Nodes: []cpu.Node{{CPUs: two, Fake: true}, {ID: 1, CPUs: []int{2}}}},
		"NUMA node 1024":   {Nodes: []cpu.Node{{ID: 1024, CPUs: two}}},
		"NUMA node -1":     {Nodes: []cpu.Node{{ID: -1, CPUs: two}}},
		"processor 8192":   {Nodes: []cpu.Node{{CPUs: []int{8192}}}},
		"processor -1":     {Nodes: []cpu.Node{{CPUs: []int{-1}}}},
		"the nodes have 2": {Threads: 3, Nodes: []cpu.Node{{CPUs: two, Fake: true}}},
		"65 nodes":         {Nodes: make([]cpu.Node, 65)},
	} {
		d, err := cpu.New(o)
		if err == nil {
			d.Close()
			t.Errorf("%s: %+v was accepted", want, o)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	d, _ := open(t, cpu.Options{Threads: 2})
	for _, node := range []int{-1, 1} {
		if _, err := d.NewNodeStream(node); err == nil {
			t.Errorf("a stream of node %d", node)
		}
	}
	if s, err := d.NewNodeStream(0); err != nil || s.Device() != d || d.NodeThreads()[0] != 2 || d.Nodes() != 1 {
		t.Errorf("without nodes: %v, %v", d.NodeThreads(), err)
	}
}

// twoSockets is a machine with two sockets of four cores with two threads each, and memory without
// cores.
func twoSockets() *machine.Machine {
	m := &machine.Machine{Nodes: []machine.Node{
		{ID: 0, CPUs: []int{0, 1, 2, 3, 8, 9, 10, 11}}, {ID: 1, CPUs: []int{4, 5, 6, 7, 12, 13, 14, 15}}, {ID: 4, Total: 1 << 40},
	}}
	for i := range 8 {
		m.CPU.Siblings = append(m.CPU.Siblings, []int{i, i + 8})
	}
	for i := range 16 {
		m.CPU.Allowed = append(m.CPU.Allowed, i)
	}
	return m
}

func TestNodesOf(t *testing.T) {
	node := func(id, threads int, cpus ...int) cpu.Node { return cpu.Node{ID: id, Threads: threads, CPUs: cpus} }
	for name, x := range map[string]struct {
		change  func(m *machine.Machine)
		threads int
		want    []cpu.Node
	}{
		"all":   {want: []cpu.Node{node(0, 4, 0, 1, 2, 3), node(1, 4, 4, 5, 6, 7)}},
		"seven": {threads: 7, want: []cpu.Node{node(0, 4, 0, 1, 2, 3), node(1, 3, 4, 5, 6, 7)}},
		"more":  {threads: 16, want: []cpu.Node{node(0, 4, 0, 1, 2, 3), node(1, 4, 4, 5, 6, 7)}},
		"one":   {threads: 1},
		"a few allowed": {
			change: func(m *machine.Machine) { m.CPU.Allowed = []int{2, 3, 10, 11, 13} },
			want:   []cpu.Node{node(0, 2, 2, 3), node(1, 1, 13)},
		},
		"granted five and a half": {
			change: func(m *machine.Machine) { m.Limits.CPUs = 5.5 },
			want:   []cpu.Node{node(0, 3, 0, 1, 2, 3), node(1, 2, 4, 5, 6, 7)},
		},
		"granted half":  {change: func(m *machine.Machine) { m.Limits.CPUs = 0.5 }},
		"one node":      {change: func(m *machine.Machine) { m.Nodes = m.Nodes[:1] }},
		"none allowed":  {change: func(m *machine.Machine) { m.CPU.Allowed = nil }},
		"nothing known": {change: func(m *machine.Machine) { *m = machine.Machine{} }},
	} {
		m := twoSockets()
		if x.change != nil {
			x.change(m)
		}
		if got, err := cpu.NodesOf(m, nil, x.threads); err != nil || !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestMadeUpNodes: nodes that are made up share the threads.
func TestMadeUpNodes(t *testing.T) {
	for threads, want := range map[int][]int{0: {8, 8, 4}, 20: {8, 8, 4}, 10: {4, 4, 2}, 7: {3, 3, 1}, 2: {1, 1}} {
		made, _ := machine.ParseTopology("2x8,1x4")
		nodes, err := cpu.NodesOf(twoSockets(), made, threads)
		var got []int
		for _, n := range nodes {
			got = append(got, n.Threads)
			if !n.Fake {
				t.Errorf("%+v is not made up", n)
			}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%d threads: %v, %v", threads, got, err)
		}
	}
	made, _ := machine.ParseTopology("1x2")
	for _, threads := range []int{-1, 3} {
		if nodes, err := cpu.NodesOf(twoSockets(), made, threads); err == nil {
			t.Errorf("%d threads: %+v", threads, nodes)
		}
	}
	if nodes, err := cpu.NodesOf(twoSockets(), made, 0); err != nil || len(nodes) != 1 || cpu.Processors(nodes) != runtime.GOMAXPROCS(0) {
		t.Errorf("one made-up node: %+v, %v", nodes, err)
	}
	if n, low := cpu.Processors(big3(40)), runtime.GOMAXPROCS(0); n != max(low, 123) {
		t.Errorf("%d processors of the runtime for 120 threads", n)
	}
}

// big3 returns three real nodes with the given number of cores.
func big3(cores int) []cpu.Node {
	nodes := make([]cpu.Node, 3)
	for i := range nodes {
		nodes[i] = cpu.Node{ID: i, CPUs: make([]int, cores)}
	}
	return nodes
}

func BenchmarkNodeRun(b *testing.B) {
	for _, topology := range []string{"2x1", "2x2"} {
		d, _ := open(b, cpu.Options{Nodes: fakes(b, topology)})
		for _, node := range []int{0, 1} {
			b.Run(fmt.Sprintf("%s/node%d", topology, node), func(b *testing.B) {
				fn := func(int) {}
				for b.Loop() {
					d.NodeRun(node, 2, fn)
				}
			})
		}
	}
}
