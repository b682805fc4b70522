package actors

import (
	"slices"
	"sync"

	"krater/actors/msg"
	"krater/kernels/device"
	"krater/scheduler/heat"
	"krater/scheduler/routing"
)

// recordingsMost is how many batches a recorder waits for at a time: more than are ever in flight. Of a
// batch that is lost some layers never come.
const recordingsMost = 256

// recorder joins the choices of a batch's layers, which come from different groups, and hands on each
// batch that is complete. All of its methods are safe for concurrent use; write is called by one
// goroutine at a time.
type recorder struct {
	shape heat.Shape
	write func(*routing.Batch)

	mu   sync.Mutex
	open map[uint64]*recording
	ids  []uint64 // of open, the oldest first
}

// recording is a batch of which some layers are missing.
type recording struct {
	ids       []uint16 // [rows, layers, top_k]
	seen      []int    // [layers] rows that have come
	generated int      // of the rows, which come first
	left      int      // rows of all layers that are missing
}

func newRecorder(shape heat.Shape, write func(*routing.Batch)) *recorder {
	return &recorder{shape: shape, write: write, open: map[uint64]*recording{}}
}

// of returns the recording of a batch with that many rows.
func (r *recorder) of(id uint64, rows, generated int) *recording {
	if rec := r.open[id]; rec != nil {
		return rec
	}
	if len(r.ids) == recordingsMost {
		delete(r.open, r.ids[0])
		r.ids = r.ids[1:]
	}
	layers := len(r.shape.Layers)
	rec := &recording{ids: make([]uint16, rows*layers*r.shape.TopK), seen: make([]int, layers), generated: generated, left: rows * layers}
	r.open[id] = rec
	r.ids = append(r.ids, id)
	return rec
}

// routedStep describes a batch: its number, its rows, and how many of them are generated.
type routedStep struct {
	id              uint64
	rows, generated int
}

// stepOf describes a batch whose generated rows come first.
func stepOf(b *msg.Batch) routedStep {
	s := routedStep{id: b.ID, rows: b.Step.Total()}
	for i := range b.Step.Spans {
		if !b.Step.Spans[i].Decode {
			break
		}
		s.generated += b.Step.Spans[i].Len
	}
	return s
}

// work notes the routed work of the next rows of a layer, the index'th with experts.
func (r *recorder) work(s routedStep, index, rows int, work []device.ExpertRows) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.of(s.id, s.rows, s.generated)
	k := r.shape.TopK
	for i := range work {
		for _, a := range work[i].Assign {
			row := rec.seen[index] + int(a)/k
			rec.ids[(row*len(r.shape.Layers)+index)*k+int(a)%k] = uint16(work[i].Expert)
		}
	}
	r.took(s.id, rec, index, rows)
}

// chosen notes the choices [rows, top_k] of all rows of a layer.
func (r *recorder) chosen(s routedStep, index int, ids []int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.of(s.id, s.rows, s.generated)
	k := r.shape.TopK
	for i, e := range ids {
		rec.ids[(i/k*len(r.shape.Layers)+index)*k+i%k] = uint16(e)
	}
	r.took(s.id, rec, index, s.rows)
}

// took counts rows of a layer, and hands on a complete batch. r.mu is held.
func (r *recorder) took(id uint64, rec *recording, index, rows int) {
	rec.seen[index] += rows
	if rec.left -= rows; rec.left > 0 {
		return
	}
	delete(r.open, id)
	i := slices.Index(r.ids, id)
	r.ids = slices.Delete(r.ids, i, i+1)
	cut := rec.generated * len(r.shape.Layers) * r.shape.TopK
	if rec.generated > 0 {
		r.write(&routing.Batch{Decode: true, Rows: rec.generated, IDs: rec.ids[:cut]})
	}
	if n := len(rec.ids) - cut; n > 0 {
		r.write(&routing.Batch{Rows: n / (len(r.shape.Layers) * r.shape.TopK), IDs: rec.ids[cut:]})
	}
}
