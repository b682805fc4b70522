package cpu

import (
	"sync/atomic"
	"unsafe"

	"krater/kernels/cpu/axpy"
	"krater/kernels/cpu/blockdot"
	"krater/kernels/cpu/btile"
	"krater/kernels/cpu/delta"
	"krater/kernels/cpu/dot"
	"krater/kernels/cpu/index"
	"krater/kernels/cpu/qdot"
	"krater/kernels/cpu/qtile"
	"krater/kernels/device"
	"krater/kernels/tensor"
)

// Stream is a device.Stream whose operators are complete when they return. It owns the scratch
// memory of its operators, so it belongs to one goroutine at a time.
type Stream struct {
	device.Immediate
	dev   *Device
	team  *Team
	lanes []*lane        // one per thread
	arena arena          // memory of one operator call that lanes share
	ahead unsafe.Pointer // what the workers were told last

	// The loop being run; see each.
	current task
	tasks   int64
	next    atomic.Int64
	part    func(int)

	norm       normTask
	sum        sumTask
	sumOf      sumOfTask
	matmul     matmulTask
	pack       packTask
	products   productsTask
	ffnUnit    ffnUnit
	ffn        ffnTask
	decode     decodeTask
	prefill    prefillTask
	choice     selectTask
	compress   compressTask
	compressed compressedTask
	pools      poolTask
	gqa        gqaTask
	gates      gateTask
	elements   elementTask
	conv       convTask
	rule       ruleTask
	gatedNorm  gatedNormTask
	streams    streamTask
	mix        mixTask
	taps       tapTask
	ngrams     ngramTask
	blockKeys  blockKeyTask
	local      localTask
	route      routeTask
	turn       ropeTask
	gate       float32 // of the row that GateRows is at
	quant      quantTask
	matmulQ    matmulQTask
	ffnQ       ffnQTask
	ffnQWide   ffnQWide
	phases     phases
}

// lane is the scratch of one thread within a Run.
type lane struct {
	arena arena
	// prepared is memory of rows that meet blocks, and of panels (quantblocks.go).
	prepared arena
	packs    []quantPack
	blocks   blockdot.Tile
	dot      dot.Tile
	axpy     axpy.Tile
	delta    delta.Tile
	taps     [delta.MaxTaps]*float32
	index    index.Tile
	keys     index.Rows // of the panel at hand
	qdot     qdot.Tile
	unit     qtile.Work
	tokens   qtile.Tokens
	floats   btile.Tile
	block    btile.Block
	weigh    btile.Weigh
	router   routerScratch
	edge     [qdot.Rows * tensor.TileRows]float32 // results of a tile that is not full
}

// task is a loop body: do handles item i with the scratch of one lane.
type task interface{ do(l *lane, i int) }

// NewStream makes a stream.
func (d *Device) NewStream() (device.Stream, error) {
	return d.newStream(d.team, func(_ []byte, n int) []byte { return alignedBytes(n) }), nil
}

// newStream makes a stream that runs on team, with scratch of alloc, which takes back the piece
// that is outgrown.
func (d *Device) newStream(team *Team, alloc func(old []byte, n int) []byte) *Stream {
	s := &Stream{dev: d, team: team}
	scratch := arena{held: &d.scratch, alloc: alloc}
	s.arena = scratch
	for range team.Threads() {
		s.lanes = append(s.lanes, &lane{arena: scratch, prepared: scratch})
	}
	s.part = s.runPart
	return s
}

// Device returns the device this stream was made by.
func (s *Stream) Device() device.Device { return s.dev }

// CopyIn copies src, dense row by row, to dst.
func (s *Stream) CopyIn(dst device.Mat, src []byte) {
	row := dst.Cols * dst.DType.Size()
	if len(src) != dst.Rows*row {
		fail("CopyIn", "%d bytes for %s", len(src), dst)
	}
	for r := range dst.Rows {
		copy(rowBytes("CopyIn", &dst, r), src[r*row:(r+1)*row])
	}
}

// CopyOut copies src, dense row by row, to dst.
func (s *Stream) CopyOut(dst []byte, src device.Mat) {
	row := src.Cols * src.DType.Size()
	if len(dst) != src.Rows*row {
		fail("CopyOut", "%d bytes for %s", len(dst), src)
	}
	for r := range src.Rows {
		copy(dst[r*row:(r+1)*row], rowBytes("CopyOut", &src, r))
	}
}

// wakeNs is the work below which no other core is woken: a hand-over to a
// parked goroutine costs tens of microseconds.
const wakeNs = 50_000

// nearNs is the same where the workers are looking for work anyway: within a step they start 1 to 3
// us after a loop was published.
const nearNs = 4_000

// shared reports whether work of ns nanoseconds is worth other cores.
func (s *Stream) shared(ns int) bool {
	return len(s.lanes) > 1 && (ns >= s.dev.wakeNs || ns >= nearNs && s.team.looking())
}

// each runs t.do for items 0..n-1 and returns when all are done. If the work is too small to share,
// one thread runs the items in rising order, otherwise the threads of the team take items in turn.
// scratch is the number of bytes of its lane's arena that an item uses. each grows the arenas first,
// so that no worker allocates.
func (s *Stream) each(t task, n, ns, scratch int) {
	lanes := s.lanes[:max(1, min(n, len(s.lanes)))]
	if !s.shared(ns) {
		lanes = lanes[:1]
	}
	if len(lanes) == 1 && !s.team.handOff || n == 0 {
		s.lanes[0].arena.reset(scratch)
		for i := range n {
			t.do(s.lanes[0], i)
		}
		return
	}
	for _, l := range lanes {
		l.arena.reset(scratch)
	}
	s.current, s.tasks = t, int64(n)
	s.next.Store(int64(len(lanes)))
	s.team.Run(len(lanes), s.part)
	s.current = nil
}

// runPart runs items on a lane: that of its own number, then the next that no lane has taken. Threads that all begin at once
// would wait for each other to count.
func (s *Stream) runPart(part int) {
	l := s.lanes[part]
	for i := int64(part); i < s.tasks; i = s.next.Add(1) - 1 {
		s.current.do(l, int(i))
		if s.next.Load() >= s.tasks {
			return
		}
	}
}

// arena is scratch handed out piece by piece and taken back as a whole. It grows to the largest
// size asked for and keeps it.
type arena struct {
	data  []float32
	raw   []byte // the same
	used  int
	held  *atomic.Int64
	alloc func(old []byte, n int) []byte
}

// clear takes everything back.
func (a *arena) clear() { a.used = 0 }

// reset is clear, and makes room for total float32 values in pieces; the padding of each piece is
// for the caller to count with piece.
func (a *arena) reset(total int) {
	a.clear()
	if total <= len(a.data) {
		return
	}
	a.held.Add(int64(total-len(a.data)) * 4)
	a.raw = a.alloc(a.raw, total*4)
	a.data = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(a.raw))), total)
}

// piece is n rounded up so that the next piece is aligned to 64 bytes.
func piece(n int) int { return (n + alignment/4 - 1) &^ (alignment/4 - 1) }

// take hands out n values, n > 0, of unknown content.
func (a *arena) take(n int) *float32 {
	p := &a.data[a.used : a.used+n][0]
	a.used += piece(n)
	return p
}

// rowAt is row r of a matrix whose rows start stride values apart.
func rowAt(base *float32, stride, r int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(base), 4*stride*r))
}

// clearF32 zeroes n values.
func clearF32(p *float32, n int) { clear(unsafe.Slice(p, n)) }
