// The driver behind the exported functions: the types of its interface, written from the public
// documentation as far as needed, and the objects that handles point to.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fiber.h"
#include "registry.h"

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_IMAGE = 200,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
	CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
	CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
	CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
	CUDA_ERROR_CAPTURED_EVENT = 907,
	CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
	CUDA_ERROR_UNKNOWN = 999,
};

struct CUlaunchAttribute {
	int id; // 6: programmatic stream serialization
	char pad[4];
	union {
		int allowed;
		char room[64];
	} value;
};
struct CUlaunchConfig {
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	struct CUstream_st *hStream;
	CUlaunchAttribute *attrs;
	unsigned numAttrs;
};
struct CUgraphExecUpdateResultInfo {
	int result;
	void *errorNode, *errorFromNode;
};

#define KR_API extern "C" __attribute__((visibility("default"))) CUresult

namespace kr_emu {

// --- device.cpp

// A kernel of a module that a GPU has loaded.
struct Gpu;
struct Function {
	Kernel kernel;
	Gpu *gpu;
};
// A GPU, its one context, and its one module, which has all kernels.
struct Gpu {
	int index = 0;
	std::atomic<int> sticky{0};      // its first unrecoverable error; 0 if there is none
	std::atomic<int> retained{0};
	std::atomic<uint32_t> peers{0};  // bit i: its work may use the memory of GPU i
	uint64_t used = 0;               // bytes; under the lock of memory.cpp
	std::deque<Function> functions;
	struct CUstream_st *none = nullptr; // the default stream
	char module = 0;                 // its address is the handle
};
Gpu *current();         // the GPU whose context is the calling thread's; null: it has none
Gpu *gpu_at(int i);     // null: there is no such GPU
Gpu *of(CUcontext c);   // null: it is no context

// --- memory.cpp

enum class Place { NONE, DEVICE, PINNED };
// place says what kind of memory the n bytes at p are; NONE also if only a part is of one kind,
// or if it is memory of another GPU than g, unless g is null or has access to it.
Place place(const void *p, size_t n, const Gpu *g);
Gpu *owner(const void *p); // the GPU whose memory p is in, null for none
// clear_pages zeroes n bytes of the GPU's memory without touching their pages, which makes a large
// cache of which little is used cheap. It does nothing and returns false if that is not possible.
bool clear_pages(void *p, size_t n);
void free_everything(Gpu *g); // all its allocations

// --- work in streams: one operation, as data, so that a graph can hold it

struct Node {
	enum Kind { KERNEL, COPY, FILL, HOST, WRITE, WAIT, EMPTY } kind = EMPTY;
	Kernel *kernel = nullptr;
	dim3 grid, block;
	uint32_t shared = 0;
	bool pdl = false;
	std::vector<uint64_t> blob;       // arguments, at the kernel's offsets
	void *dst = nullptr;
	const void *src = nullptr;
	std::vector<unsigned char> stage; // copy of a pageable source
	size_t bytes = 0;                 // COPY; FILL: elements
	uint32_t value = 0;               // FILL, WRITE, WAIT
	uint32_t flags = 0;               // WAIT; FILL: element size
	void (*host)(void *) = nullptr;
	void *user = nullptr;
	Gpu *gpu = nullptr;               // of the stream
	bool peer = false;                // a COPY that cuMemcpyPeerAsync asked for
	int run() const;                  // 0 or a CUresult
};

struct Graph {
	std::vector<Node> nodes; // in an order that respects all edges
};

struct Capture { // of one or, through events, several streams
	Graph graph;
	struct CUstream_st *origin = nullptr;
	int mode = 0;
	bool invalid = false;
	std::vector<struct CUstream_st *> streams;
};

} // namespace kr_emu

struct CUevent_st {
	kr_emu::Gpu *gpu;
	std::mutex m;
	std::condition_variable c;
	uint64_t recorded = 0, reached = 0;
	struct CUstream_st *at = nullptr; // the latest record: in which stream, at which place
	uint64_t place = 0;
	int64_t time = 0;
	bool timed = true;
	std::shared_ptr<kr_emu::Capture> capture; // the latest record was in it
	struct CUstream_st *from = nullptr;
	uint64_t ops = 0;
};

// A stream: a queue, and the thread that works through it.
struct CUstream_st {
	CUstream_st(kr_emu::Gpu *gpu, unsigned flags, int priority);
	~CUstream_st();
	uint64_t push(std::function<int()> f); // the place in the queue, from 1
	void drain();     // waits until all that is queued now has run
	bool idle();
	kr_emu::Gpu *const gpu;
	unsigned flags;
	int priority;

	std::mutex m;
	std::condition_variable more, done;
	std::deque<std::function<int()>> queue;
	uint64_t pushed = 0, ran = 0, allowed = 0; // allowed: how far KR_EMU_LAZY lets it go
	bool ending = false;
	// capture
	std::shared_ptr<kr_emu::Capture> capture;
	uint64_t ops = 0; // captured so far
	bool joined = false;

  private:
	void loop();
	std::thread thread;
};
typedef CUstream_st *CUstream;
typedef CUevent_st *CUevent;
struct CUgraph_st : kr_emu::Graph {};
struct CUgraphExec_st {
	std::mutex m;
	std::shared_ptr<const kr_emu::Graph> graph;
};

namespace kr_emu {

// entered starts every call: it returns 0, or the error that the call must return. It counts for
// KR_EMU_FAIL.
int entered(const char *call);
#define ENTER(call)                                  \
	if (int bad_ = kr_emu::entered(call)) return bad_

// stream returns the object of a handle: null is the default stream of the current context.
CUstream stream(CUstream s);
// synchronise waits for all streams of a GPU; null: of every GPU.
void synchronise(const Gpu *g);
// demand serves KR_EMU_LAZY: the host waits for the work of stream s up to a place in its queue.
void demand(CUstream s, uint64_t upto);
void demand_all(); // a stream waits for memory, which any other may write
bool is_stream(CUstream s);
// peer_fault does what a faulty link makes of a peer copy, and reports whether the copy is then
// over: see KR_EMU_PEER.
bool peer_fault(const Node &n);
// For a call that a recording thread must not make. It returns 0 or the error; the capture is then
// invalid.
int not_while_capturing();
// submit queues n on s, or records it.
int submit(CUstream s, Node &&n);

} // namespace kr_emu
