package actors

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"krater/kernels/device"
	"krater/scheduler/heat"
	"krater/scheduler/routing"
)

// TestRecorder: layers and pieces of batches that come in any order, from several goroutines, make the batches that
// the routers chose for, generated rows apart. Batches of which a layer never comes are forgotten.
func TestRecorder(t *testing.T) {
	const layers, experts, topK, batches, rows = 3, 8, 2, 400, 5
	shape := heat.Shape{Layers: []int32{0, 2, 3}, Experts: experts, TopK: topK}
	got := map[string]int{}
	add := func(into map[string]int, b *routing.Batch) {
		into[fmt.Sprint(b.Decode, b.Rows, b.IDs)]++
	}
	rec := newRecorder(shape, func(b *routing.Batch) { add(got, b) })
	want := map[string]int{}
	ids := make([][]int32, layers) // of all batches, [rows, topK] each
	r := rand.New(rand.NewPCG(4, 4))
	generated := make([]int, batches)
	for b := range batches {
		generated[b] = r.IntN(rows + 1)
		whole := make([]uint16, rows*layers*topK)
		for l := range layers {
			for row := range rows {
				for k, e := range r.Perm(experts)[:topK] {
					ids[l] = append(ids[l], int32(e))
					whole[(row*layers+l)*topK+k] = uint16(e)
				}
			}
		}
		cut := generated[b] * layers * topK
		if cut > 0 {
			add(want, &routing.Batch{Decode: true, Rows: generated[b], IDs: whole[:cut]})
		}
		if cut < len(whole) {
			add(want, &routing.Batch{Rows: rows - generated[b], IDs: whole[cut:]})
		}
	}
	for first := 0; first < batches; first += 50 { // that are in flight
		var groups sync.WaitGroup
		for l := range layers {
			groups.Go(func() {
				for b := first; b < first+50; b++ {
					s, own := routedStep{uint64(b), rows, generated[b]}, ids[l][b*rows*topK:][:rows*topK]
					if b%2 == 0 {
						rec.chosen(s, l, own)
						continue
					}
					for piece := range slices.Chunk(own, 2*topK) { // two rows at a time
						rec.work(s, l, len(piece)/topK, workOf(piece))
					}
				}
			})
		}
		groups.Wait()
	}
	if len(got) != len(want) {
		t.Fatalf("%d different batches, want %d", len(got), len(want))
	}
	for key, n := range want {
		if got[key] != n {
			t.Fatalf("batch %v: %d times, want %d", []byte(key), got[key], n)
		}
	}
	for b := range uint64(2 * recordingsMost) {
		rec.chosen(routedStep{batches + b, rows, 0}, 0, ids[0][:rows*topK])
	}
	if len(rec.open) != recordingsMost || len(rec.ids) != recordingsMost {
		t.Errorf("%d batches wait, at most %d may", len(rec.open), recordingsMost)
	}
}

// workOf lists choices [rows, topK] by expert.
func workOf(ids []int32) (work []device.ExpertRows) {
	by := map[int32][]int32{}
	for i, e := range ids {
		by[e] = append(by[e], int32(i))
	}
	for e, list := range by {
		work = append(work, device.ExpertRows{Expert: e, Assign: list})
	}
	return work
}
