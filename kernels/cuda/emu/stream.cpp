// Streams and events. A stream has a thread, so that work runs while the host continues, as on a
// GPU. The default stream waits for all streams that are not created as non-blocking.
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "driver.h"
#include "emu_math.h"
#include "race.h"

namespace kr_emu {

namespace {
struct Streams {
	std::mutex m;
	std::vector<CUstream> all;
};
Streams &streams() {
	static Streams *s = new Streams;
	return *s;
}
std::vector<CUstream> every() {
	std::lock_guard<std::mutex> k(streams().m);
	return streams().all;
}
thread_local std::vector<std::shared_ptr<Capture>> recording; // by this thread
} // namespace

CUstream stream(CUstream s) {
	if (reinterpret_cast<uintptr_t>(s) > 2) return s;
	static std::mutex m;
	std::lock_guard<std::mutex> k(m);
	Gpu *g = current() ? current() : gpu_at(0);
	if (!g->none) g->none = new CUstream_st(g, 0, 0); // legacy and per-thread default stream alike
	return g->none;
}

bool is_stream(CUstream s) {
	if (reinterpret_cast<uintptr_t>(s) <= 2) return true;
	std::lock_guard<std::mutex> k(streams().m);
	return std::find(streams().all.begin(), streams().all.end(), s) != streams().all.end();
}

void demand(CUstream s, uint64_t upto) {
	if (!settings().lazy) return;
	std::lock_guard<std::mutex> k(streams().m);
	auto &all = streams().all;
	if (std::find(all.begin(), all.end(), s) == all.end()) return; // it ran to its end
	std::lock_guard<std::mutex> q(s->m);
	s->allowed = std::max(s->allowed, upto);
	s->more.notify_all();
}

void demand_all() {
	if (!settings().lazy) return;
	std::lock_guard<std::mutex> k(streams().m);
	for (CUstream s : streams().all) {
		std::lock_guard<std::mutex> q(s->m);
		s->allowed = s->pushed;
		s->more.notify_all();
	}
}

void synchronise(const Gpu *g) {
	for (CUstream s : every())
		if (!g || s->gpu == g) s->drain();
}

int not_while_capturing() {
	for (auto &c : recording)
		if (c->mode != 2) { // relaxed allows it
			c->invalid = true;
			return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return 0;
}

} // namespace kr_emu

using namespace kr_emu;

CUstream_st::CUstream_st(Gpu *gpu, unsigned flags, int priority) : gpu(gpu), flags(flags), priority(priority) {
	thread = std::thread(&CUstream_st::loop, this);
	std::lock_guard<std::mutex> k(streams().m);
	streams().all.push_back(this);
}

CUstream_st::~CUstream_st() {
	{
		std::lock_guard<std::mutex> k(streams().m);
		auto &all = streams().all;
		all.erase(std::find(all.begin(), all.end(), this));
	}
	{
		std::lock_guard<std::mutex> k(m);
		ending = true;
		allowed = pushed;
	}
	more.notify_all();
	thread.join();
}

void CUstream_st::loop() {
	stream_thread();
	std::unique_lock<std::mutex> k(m);
	for (;;) {
		if (queue.empty() || (settings().lazy && ran >= allowed)) {
			if (ending && queue.empty()) return;
			more.wait(k);
			continue;
		}
		std::function<int()> f = std::move(queue.front());
		queue.pop_front();
		k.unlock();
		if (!gpu->sticky)
			if (int r = f()) {
				int none = 0;
				gpu->sticky.compare_exchange_strong(none, r);
			}
		f = nullptr;
		k.lock();
		ran++;
		done.notify_all();
	}
}

uint64_t CUstream_st::push(std::function<int()> f) {
	if (this == gpu->none) {
		for (CUstream s : every())
			if (s != this && s->gpu == gpu && !(s->flags & 1)) s->drain();
	} else if (!(flags & 1) && gpu->none) {
		gpu->none->drain();
	}
	uint64_t at;
	{
		std::lock_guard<std::mutex> k(m);
		queue.push_back(std::move(f));
		at = ++pushed;
	}
	more.notify_one();
	return at;
}

void CUstream_st::drain() {
	std::unique_lock<std::mutex> k(m);
	uint64_t to = pushed;
	allowed = std::max(allowed, to);
	more.notify_all();
	done.wait(k, [&] { return ran >= to; });
	race_complete();
}

bool CUstream_st::idle() {
	std::lock_guard<std::mutex> k(m);
	allowed = pushed;
	more.notify_all();
	return ran == pushed;
}

namespace kr_emu {
int submit(CUstream s, Node &&n) {
	n.gpu = s->gpu;
	if (s->capture) {
		Capture &c = *s->capture;
		if (c.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		c.graph.nodes.push_back(std::move(n));
		s->ops++;
		s->joined = false;
		return 0;
	}
	auto p = std::make_shared<Node>(std::move(n));
	s->push([p] { return p->run(); });
	return 0;
}
} // namespace kr_emu

// --- streams

#define STREAM(s)                                              \
	if (!is_stream(s)) return CUDA_ERROR_INVALID_HANDLE;         \
	s = stream(s)

KR_API cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority) {
	ENTER("cuStreamCreate");
	stream(nullptr);
	*s = new CUstream_st(current(), flags, priority);
	return 0;
}
KR_API cuStreamCreate(CUstream *s, unsigned flags) { return cuStreamCreateWithPriority(s, flags, 0); }
KR_API cuStreamDestroy_v2(CUstream s) {
	if (!is_stream(s) || s == nullptr) return CUDA_ERROR_INVALID_HANDLE;
	delete s; // runs what is queued
	return 0;
}
KR_API cuStreamSynchronize(CUstream s) {
	ENTER("cuStreamSynchronize");
	STREAM(s);
	if (s->capture) {
		s->capture->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	s->drain();
	return s->gpu->sticky;
}
KR_API cuStreamQuery(CUstream s) {
	ENTER("cuStreamQuery");
	STREAM(s);
	if (s->capture) {
		s->capture->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	bool idle = s->idle();
	return s->gpu->sticky ? (int)s->gpu->sticky : idle ? 0 : CUDA_ERROR_NOT_READY;
}
KR_API cuStreamGetFlags(CUstream s, unsigned *flags) {
	STREAM(s);
	*flags = s->flags;
	return 0;
}
KR_API cuStreamGetPriority(CUstream s, int *priority) {
	STREAM(s);
	*priority = s->priority;
	return 0;
}
KR_API cuCtxSynchronize() {
	ENTER("cuCtxSynchronize");
	if (int bad = not_while_capturing()) return bad;
	synchronise(current());
	return current()->sticky;
}
KR_API cuLaunchHostFunc(CUstream s, void (*f)(void *), void *user) {
	ENTER("cuLaunchHostFunc");
	STREAM(s);
	Node n;
	n.kind = Node::HOST, n.host = f, n.user = user;
	return submit(s, std::move(n));
}
KR_API cuStreamWriteValue32_v2(CUstream s, CUdeviceptr at, uint32_t v, unsigned) {
	ENTER("cuStreamWriteValue32");
	STREAM(s);
	Node n;
	n.kind = Node::WRITE, n.dst = reinterpret_cast<void *>(at), n.value = v;
	if (at % 4 || place(n.dst, 4, s->gpu) == Place::NONE) return CUDA_ERROR_INVALID_VALUE;
	return submit(s, std::move(n));
}
KR_API cuStreamWaitValue32_v2(CUstream s, CUdeviceptr at, uint32_t v, unsigned flags) {
	ENTER("cuStreamWaitValue32");
	STREAM(s);
	Node n;
	n.kind = Node::WAIT, n.dst = reinterpret_cast<void *>(at), n.value = v, n.flags = flags & 3;
	if (at % 4 || place(n.dst, 4, s->gpu) == Place::NONE) return CUDA_ERROR_INVALID_VALUE;
	return submit(s, std::move(n));
}

// --- events

KR_API cuEventCreate(CUevent *e, unsigned flags) {
	ENTER("cuEventCreate");
	*e = new CUevent_st;
	(*e)->gpu = current();
	(*e)->timed = !(flags & 2);
	return 0;
}
KR_API cuEventDestroy_v2(CUevent e) {
	if (!e) return CUDA_ERROR_INVALID_HANDLE;
	{
		std::unique_lock<std::mutex> k(e->m);
		demand(e->at, e->place);
		e->c.wait(k, [&] { return e->reached >= e->recorded || e->gpu->sticky; });
	}
	synchronise(nullptr); // nobody still waits for it in a stream
	delete e;
	return 0;
}
KR_API cuEventRecord(CUevent e, CUstream s) {
	ENTER("cuEventRecord");
	STREAM(s);
	if (!e || e->gpu != s->gpu) return CUDA_ERROR_INVALID_HANDLE;
	if (s->capture) {
		e->capture = s->capture, e->from = s, e->ops = s->ops;
		return 0;
	}
	e->capture = nullptr;
	uint64_t number;
	{
		std::lock_guard<std::mutex> k(e->m);
		number = ++e->recorded;
	}
	uint64_t place = s->push([e, number] {
		std::lock_guard<std::mutex> k(e->m);
		e->reached = std::max(e->reached, number);
		e->time = clock64();
		e->c.notify_all();
		return 0;
	});
	std::lock_guard<std::mutex> k(e->m);
	e->at = s, e->place = place;
	return 0;
}
KR_API cuEventRecordWithFlags(CUevent e, CUstream s, unsigned) { return cuEventRecord(e, s); }
KR_API cuEventQuery(CUevent e) {
	ENTER("cuEventQuery");
	if (!e) return CUDA_ERROR_INVALID_HANDLE;
	if (e->capture) return CUDA_ERROR_CAPTURED_EVENT;
	std::lock_guard<std::mutex> k(e->m);
	demand(e->at, e->place);
	return e->reached >= e->recorded ? 0 : CUDA_ERROR_NOT_READY;
}
KR_API cuEventSynchronize(CUevent e) {
	ENTER("cuEventSynchronize");
	if (!e) return CUDA_ERROR_INVALID_HANDLE;
	if (e->capture) return CUDA_ERROR_CAPTURED_EVENT;
	std::unique_lock<std::mutex> k(e->m);
	demand(e->at, e->place);
	uint64_t to = e->recorded;
	while (e->reached < to && !e->gpu->sticky) e->c.wait_for(k, std::chrono::milliseconds(20));
	return e->gpu->sticky;
}
KR_API cuEventElapsedTime(float *ms, CUevent a, CUevent b) {
	ENTER("cuEventElapsedTime");
	if (!a || !b || a->gpu != b->gpu || !a->timed || !b->timed || !a->recorded || !b->recorded) return CUDA_ERROR_INVALID_HANDLE;
	std::scoped_lock k(a->m, b->m);
	if (a->reached < a->recorded || b->reached < b->recorded) return CUDA_ERROR_NOT_READY;
	*ms = (float)((double)(b->time - a->time) * 1e-6);
	return 0;
}
KR_API cuEventElapsedTime_v2(float *ms, CUevent a, CUevent b) { return cuEventElapsedTime(ms, a, b); }
KR_API cuStreamWaitEvent(CUstream s, CUevent e, unsigned) {
	ENTER("cuStreamWaitEvent");
	STREAM(s);
	if (!e) return CUDA_ERROR_INVALID_HANDLE;
	if (e->capture) {
		if (!s->capture) { // the stream joins the recording
			s->capture = e->capture;
			s->ops = 0;
			s->joined = true; // nothing of its own yet
			e->capture->streams.push_back(s);
		} else if (s->capture != e->capture) {
			return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
		}
		if (e->from != s && e->from->ops == e->ops) e->from->joined = true;
		return 0;
	}
	if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	uint64_t to, place;
	CUstream at;
	{
		std::lock_guard<std::mutex> k(e->m);
		to = e->recorded, at = e->at, place = e->place;
	}
	s->push([e, to, at, place] {
		demand(at, place);
		std::unique_lock<std::mutex> k(e->m);
		while (e->reached < to && !e->gpu->sticky) e->c.wait_for(k, std::chrono::milliseconds(20));
		return 0;
	});
	return 0;
}

// --- capture

KR_API cuStreamBeginCapture_v2(CUstream s, int mode) {
	ENTER("cuStreamBeginCapture");
	if (reinterpret_cast<uintptr_t>(s) <= 2) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	STREAM(s);
	if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	s->capture = std::make_shared<Capture>();
	s->capture->origin = s;
	s->capture->mode = mode;
	s->ops = 0;
	recording.push_back(s->capture);
	return 0;
}
KR_API cuStreamEndCapture(CUstream s, CUgraph_st **graph) {
	int refused = entered("cuStreamEndCapture"); // it ends all the same
	STREAM(s);
	*graph = nullptr;
	std::shared_ptr<Capture> c = s->capture;
	if (!c || c->origin != s) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	bool joined = true;
	for (CUstream o : c->streams) {
		joined = joined && o->joined;
		o->capture = nullptr;
	}
	s->capture = nullptr;
	recording.erase(std::remove(recording.begin(), recording.end(), c), recording.end());
	if (refused) return refused;
	if (c->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	*graph = new CUgraph_st;
	(*graph)->nodes = std::move(c->graph.nodes);
	return 0;
}
KR_API cuStreamIsCapturing(CUstream s, int *status) {
	STREAM(s);
	*status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
	return 0;
}
KR_API cuStreamGetCaptureInfo_v2(CUstream s, int *status, uint64_t *id, void *, void *, void *) {
	STREAM(s);
	if (id) *id = reinterpret_cast<uint64_t>(s->capture.get());
	return cuStreamIsCapturing(s, status);
}
