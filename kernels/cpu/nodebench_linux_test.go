package cpu_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"krater/kernels/cpu"
	"krater/kernels/device"
	"krater/kernels/kerneltest"
	"krater/kernels/machine"
)

// halves are real nodes: the machine's, or where it has one, two of half its processors each.
func halves(b *testing.B) []cpu.Node {
	nodes, err := cpu.NodesOf(machine.Here(), nil, 0)
	if err != nil {
		b.Fatal(err)
	}
	if nodes != nil {
		return nodes
	}
	one := onProcessors(b, 1024)
	if len(one) < 2 {
		b.Skip("one processor")
	}
	nodes = make([]cpu.Node, 2)
	for i, n := range one {
		half := &nodes[2*i/len(one)]
		half.CPUs = append(half.CPUs, n.CPUs...)
	}
	return nodes
}

// decoder runs the six experts of a token on one device, in whatever way.
type decoder struct {
	name string
	step func(first int) // experts [first, first+6)
}

// plainDecoder has all threads run all experts.
func plainDecoder(b *testing.B, bank []device.QExpert, x, y []float32) decoder {
	d, s := open(b, cpu.Options{Threads: threadsOf(halves(b))})
	q, out := nodeRows(d, s, x), f32s(d, y, liteTopK, liteH)
	work := make([]device.ExpertRows, liteTopK)
	return decoder{"all", func(first int) {
		for i := range work {
			work[i] = device.ExpertRows{Expert: int32(first + i), Assign: []int32{int32(i)}}
		}
		d.ExpertsQ(s, out, q, bank, work, liteTopK)
	}}
}

// nodeDecoder has experts in the memory of nodes, each node's run by a goroutine that stays, as a
// pool is.
func nodeDecoder(b *testing.B, name string, nodes []cpu.Node, bank []device.QExpert, x, y []float32) decoder {
	d, s := open(b, cpu.Options{Nodes: nodes})
	q, out := nodeRows(d, s, x), f32s(d, y, liteTopK, liteH)
	near := make([]device.QExpert, len(bank))
	for e := range bank {
		near[e] = device.QExpert{W13: onNode(b, d, e%len(nodes), bank[e].W13), W2: onNode(b, d, e%len(nodes), bank[e].W2)}
	}
	if n := d.Notices(); n != nil {
		b.Logf("%s: %v", name, n)
	}
	var step sync.WaitGroup
	pools := make([]chan int, len(nodes))
	for node := range pools {
		pools[node] = make(chan int, 1)
		b.Cleanup(func() { close(pools[node]) })
		own, err := d.NewNodeStream(node)
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			work := make([]device.ExpertRows, 0, liteTopK)
			for first := range pools[node] {
				work = work[:0]
				for i := range liteTopK {
					if e := first + i; e%len(nodes) == node {
						work = append(work, device.ExpertRows{Expert: int32(e), Assign: []int32{int32(i)}})
					}
				}
				d.ExpertsQ(own, out, q, near, work, liteTopK)
				step.Done()
			}
		}()
	}
	return decoder{name, func(first int) {
		step.Add(len(pools))
		for _, p := range pools {
			p <- first
		}
		step.Wait()
	}}
}

func threadsOf(nodes []cpu.Node) int {
	n := 0
	for i := range nodes {
		n += len(nodes[i].CPUs)
	}
	return n
}

func nodeRows(d *cpu.Device, s device.Stream, x []float32) device.QRows {
	q, _ := device.AllocQRows(d, 1, liteH, 128)
	d.QuantizeRows(s, q, f32s(d, x, 1, liteH))
	return q
}

// onNode copies a matrix of liteBank, whose scales follow its values.
func onNode(b *testing.B, d *cpu.Device, node int, m device.QMat) device.QMat {
	buf, err := d.AllocOn(node, m.Bytes())
	if err == nil {
		err = d.CopyOn(node, buf, 0, m.Values.Host()[m.ValueAt:][:m.Bytes()])
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(buf.Free)
	m.Values, m.Scales, m.ValueAt, m.ScaleAt = buf, buf, 0, m.ValueBytes()
	return m
}

// BenchmarkNodeDecode compares tokens through experts on all threads with the same on nodes, made
// up and real, window by window in turn. GB/s of weights.
func BenchmarkNodeDecode(b *testing.B) {
	const experts = 120 // 0.5 GB
	nodes := halves(b)
	fake := slices.Clone(nodes)
	for i := range fake {
		fake[i].Fake = true
	}
	procs := runtime.GOMAXPROCS(cpu.Processors(nodes))
	b.Cleanup(func() { runtime.GOMAXPROCS(procs) })
	source, _ := open(b, cpu.Options{Threads: 1})
	bank, _ := liteBank(b, source, experts, 4, 128)
	x, y := kerneltest.Normal(kerneltest.Rand(1), liteH, 1), make([]float32, liteTopK*liteH)
	want := make([]float32, len(y))
	all := []decoder{
		plainDecoder(b, bank, x, y), nodeDecoder(b, "made up", fake, bank, x, y), nodeDecoder(b, "real", nodes, bank, x, y),
	}
	all[0].step(0)
	copy(want, y)
	for _, one := range all {
		clear(y)
		one.step(0)
		if err := kerneltest.SameBits(y, want); err != nil {
			b.Fatalf("%s: %v", one.name, err)
		}
	}
	rates := make([][]float64, len(all))
	each := bank[0].Bytes() * liteTopK
	b.ResetTimer()
	for b.Loop() {
		for i, one := range all {
			start := time.Now()
			n := 0
			for first := 0; first+liteTopK <= experts; first += liteTopK {
				one.step(first)
				n += each
			}
			rates[i] = append(rates[i], float64(n)/float64(time.Since(start).Nanoseconds()))
		}
	}
	b.Logf("%d threads on %d nodes", threadsOf(nodes), len(nodes))
	for i, one := range all {
		slices.Sort(rates[i])
		b.Log(fmt.Sprintf("%-8s", one.name), fmt.Sprintf("P50 %.1f P90 %.1f GB/s", quantile(rates[i], 0.5), quantile(rates[i], 0.9)))
	}
}
