// The work of a stream: launches, copies, fills, and graphs of them.
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "emu_math.h"
#include "race.h"

using namespace kr_emu;

typedef Function *CUfunction;


static void *address(CUdeviceptr p) { return reinterpret_cast<void *>(p); }

int Node::run() const {
	if (kind != KERNEL) race_complete();
	switch (kind) {
	case KERNEL: {
		std::vector<void *> params;
		const unsigned char *b = reinterpret_cast<const unsigned char *>(blob.data());
		for (size_t i = 0; i < kernel->sizes.size(); i++) {
			const unsigned char *p = b + kernel->offsets[i];
			params.push_back(const_cast<unsigned char *>(p));
			void *v;
			memcpy(&v, p, kernel->pointers[i] ? sizeof v : 0);
			if (kernel->pointers[i] && v && place(v, 1, gpu) == Place::NONE) {
				fprintf(stderr, "cuda emulator: kernel %s: argument %zu is %p, %s\n", kernel->name, i, v, describe(v).c_str());
				return ILLEGAL_ADDRESS;
			}
		}
		Launch l{};
		l.kernel = kernel, l.params = params.data();
		l.grid = grid, l.block = block, l.shared = shared, l.pdl = pdl;
		race_launch(l);
		int r = kr_emu::run(l);
		race_ended(l);
		return r;
	}
	case COPY:
		if (peer && peer_fault(*this)) return 0;
		memmove(dst, stage.empty() ? src : stage.data(), bytes);
		return 0;
	case FILL:
		for (size_t i = 0; flags > 1 && i < bytes; i++) memcpy(static_cast<unsigned char *>(dst) + i * flags, &value, flags);
		if (flags == 1 && !value && clear_pages(dst, bytes)) return 0;
		if (flags == 1) memset(dst, (int)value, bytes);
		return 0;
	case HOST: host(user); return 0;
	case WRITE: __atomic_store_n(static_cast<uint32_t *>(dst), value, __ATOMIC_SEQ_CST); return 0;
	case WAIT:
		for (int64_t end = clock64() + (int64_t)(settings().timeout * 1e9); clock64() < end; usleep(20)) {
			demand_all();
			uint32_t v = __atomic_load_n(static_cast<uint32_t *>(dst), __ATOMIC_SEQ_CST);
			bool there = flags == 0 ? (int32_t)(v - value) >= 0 : flags == 1 ? v == value : flags == 2 ? (v & value) != 0 : ~(v | value) != 0;
			if (there) return 0;
		}
		return LAUNCH_TIMEOUT;
	case EMPTY: return 0;
	}
	return CUDA_ERROR_UNKNOWN;
}

#define STREAM(s)                                              \
	if (!is_stream(s)) return CUDA_ERROR_INVALID_HANDLE;         \
	s = stream(s)

// --- launches

static CUresult launch(CUfunction f, dim3 grid, dim3 block, unsigned shared, bool pdl, CUstream s, void **params, void **extra) {
	ENTER("cuLaunchKernel");
	STREAM(s);
	if (!f || f->gpu != s->gpu) return CUDA_ERROR_INVALID_HANDLE;
	Kernel &kernel = f->kernel;
	if (extra) return CUDA_ERROR_NOT_SUPPORTED;
	uint64_t threads = (uint64_t)block.x * block.y * block.z;
	bool ok = grid.x && grid.y && grid.z && threads && threads <= kernel.threadsMax && block.x <= 1024 && block.y <= 1024 && block.z <= 64 &&
	          grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535 && shared <= kernel.sharedMax && (params || kernel.sizes.empty());
	if (!ok) {
		fprintf(stderr, "cuda emulator: kernel %s: grid (%u,%u,%u) block (%u,%u,%u) shared %u: at most %u threads, %u bytes\n", kernel.name, grid.x, grid.y, grid.z,
		        block.x, block.y, block.z, shared, kernel.threadsMax, kernel.sharedMax);
		return CUDA_ERROR_INVALID_VALUE;
	}
	Node n;
	n.kind = Node::KERNEL, n.kernel = &kernel, n.grid = grid, n.block = block, n.shared = shared, n.pdl = pdl;
	size_t last = kernel.sizes.size();
	n.blob.resize(last ? (kernel.offsets[last - 1] + kernel.sizes[last - 1] + 7) / 8 : 0);
	for (size_t i = 0; i < last; i++) memcpy(reinterpret_cast<unsigned char *>(n.blob.data()) + kernel.offsets[i], params[i], kernel.sizes[i]);
	return submit(s, std::move(n));
}
KR_API cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **params, void **extra) {
	return launch(f, dim3(gx, gy, gz), dim3(bx, by, bz), shared, false, s, params, extra);
}
KR_API cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
	bool pdl = false;
	for (unsigned i = 0; i < c->numAttrs; i++) {
		if (c->attrs[i].id == 6) {
			pdl = c->attrs[i].value.allowed != 0;
		} else if (c->attrs[i].id != 0) {
			return CUDA_ERROR_NOT_SUPPORTED;
		}
	}
	return launch(f, dim3(c->gridDimX, c->gridDimY, c->gridDimZ), dim3(c->blockDimX, c->blockDimY, c->blockDimZ), c->sharedMemBytes, pdl, c->hStream, params, extra);
}

// --- copies and fills

enum Way { UNIFIED, HTOD, DTOH, DTOD };

// allowed reports whether the two ends are of the kinds that the call requires.
static bool allowed(Way way, const void *dst, const void *src, size_t n, const Gpu *g) {
	Place d = place(dst, n, g), s = place(src, n, g);
	bool toDevice = d != Place::NONE, fromDevice = s != Place::NONE; // pinned memory has a GPU address, too
	switch (way) {
	case HTOD: return d == Place::DEVICE && s != Place::DEVICE;
	case DTOH: return s == Place::DEVICE && d != Place::DEVICE;
	case DTOD: return toDevice && fromDevice;
	case UNIFIED: return (toDevice || !owner(dst)) && (fromDevice || !owner(src));
	}
	return false;
}

static CUresult copy(Way way, void *dst, const void *src, size_t bytes, CUstream s, bool wait) {
	ENTER("cuMemcpy");
	if (!bytes) return 0;
	if (!is_stream(s)) return CUDA_ERROR_INVALID_HANDLE;
	if (!allowed(way, dst, src, bytes, stream(s)->gpu)) {
		fprintf(stderr, "cuda emulator: copy of %zu bytes from %p (%s) to %p (%s)\n", bytes, src, describe(src).c_str(), dst, describe(dst).c_str());
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (wait) {
		if (int bad = not_while_capturing()) return bad;
	}
	STREAM(s);
	Node n;
	n.kind = Node::COPY, n.dst = dst, n.src = src, n.bytes = bytes;
	if (!wait && !s->capture) { // pageable memory: the driver copies it aside, or waits
		if (place(src, bytes, nullptr) == Place::NONE) n.stage.assign(static_cast<const unsigned char *>(src), static_cast<const unsigned char *>(src) + bytes);
		wait = place(dst, bytes, nullptr) == Place::NONE;
	}
	CUresult r = submit(s, std::move(n));
	if (r || !wait) return r;
	s->drain();
	return s->gpu->sticky;
}
KR_API cuMemcpyHtoD_v2(CUdeviceptr d, const void *s, size_t n) { return copy(HTOD, address(d), s, n, nullptr, true); }
KR_API cuMemcpyDtoH_v2(void *d, CUdeviceptr s, size_t n) { return copy(DTOH, d, address(s), n, nullptr, true); }
KR_API cuMemcpyDtoD_v2(CUdeviceptr d, CUdeviceptr s, size_t n) { return copy(DTOD, address(d), address(s), n, nullptr, true); }
KR_API cuMemcpy(CUdeviceptr d, CUdeviceptr s, size_t n) { return copy(UNIFIED, address(d), address(s), n, nullptr, true); }
KR_API cuMemcpyHtoDAsync_v2(CUdeviceptr d, const void *s, size_t n, CUstream st) { return copy(HTOD, address(d), s, n, st, false); }
KR_API cuMemcpyDtoHAsync_v2(void *d, CUdeviceptr s, size_t n, CUstream st) { return copy(DTOH, d, address(s), n, st, false); }
KR_API cuMemcpyDtoDAsync_v2(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream st) { return copy(DTOD, address(d), address(s), n, st, false); }
KR_API cuMemcpyAsync(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream st) { return copy(UNIFIED, address(d), address(s), n, st, false); }

static CUresult fill(CUdeviceptr p, uint32_t v, unsigned size, size_t n, CUstream s, bool wait) {
	ENTER("cuMemset");
	if (!n) return 0;
	if (!is_stream(s)) return CUDA_ERROR_INVALID_HANDLE;
	if (p % size || place(address(p), n * size, stream(s)->gpu) == Place::NONE) {
		fprintf(stderr, "cuda emulator: fill of %zu bytes at %p (%s)\n", n * size, address(p), describe(address(p)).c_str());
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (wait) {
		if (int bad = not_while_capturing()) return bad;
	}
	STREAM(s);
	Node k;
	k.kind = Node::FILL, k.dst = address(p), k.value = v, k.flags = size, k.bytes = n;
	CUresult r = submit(s, std::move(k));
	if (r || !wait) return r;
	s->drain();
	return s->gpu->sticky;
}
KR_API cuMemsetD8_v2(CUdeviceptr p, unsigned char v, size_t n) { return fill(p, v, 1, n, nullptr, true); }
KR_API cuMemsetD16_v2(CUdeviceptr p, unsigned short v, size_t n) { return fill(p, v, 2, n, nullptr, true); }
KR_API cuMemsetD32_v2(CUdeviceptr p, unsigned v, size_t n) { return fill(p, v, 4, n, nullptr, true); }
KR_API cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) { return fill(p, v, 1, n, s, false); }
KR_API cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) { return fill(p, v, 2, n, s, false); }
KR_API cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) { return fill(p, v, 4, n, s, false); }

// --- graphs

KR_API cuGraphInstantiateWithFlags(CUgraphExec_st **x, CUgraph_st *g, unsigned long long) {
	ENTER("cuGraphInstantiate");
	if (int bad = not_while_capturing()) return bad;
	if (!g) return CUDA_ERROR_INVALID_HANDLE;
	*x = new CUgraphExec_st;
	(*x)->graph = std::make_shared<Graph>(*g);
	return 0;
}
KR_API cuGraphLaunch(CUgraphExec_st *x, CUstream s) {
	ENTER("cuGraphLaunch");
	STREAM(s);
	if (!x) return CUDA_ERROR_INVALID_HANDLE;
	if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	std::shared_ptr<const Graph> g;
	{
		std::lock_guard<std::mutex> k(x->m);
		g = x->graph;
	}
	s->push([g] {
		for (const Node &n : g->nodes)
			if (int r = n.run()) return r;
		return 0;
	});
	return 0;
}
KR_API cuGraphUpload(CUgraphExec_st *x, CUstream s) {
	ENTER("cuGraphUpload");
	return x && is_stream(s) ? 0 : CUDA_ERROR_INVALID_HANDLE;
}
KR_API cuGraphExecUpdate_v2(CUgraphExec_st *x, CUgraph_st *g, CUgraphExecUpdateResultInfo *info) {
	ENTER("cuGraphExecUpdate");
	if (!x || !g) return CUDA_ERROR_INVALID_HANDLE;
	std::lock_guard<std::mutex> k(x->m);
	const std::vector<Node> &a = x->graph->nodes, &b = g->nodes;
	int result = a.size() != b.size() ? 2 : 0;             // topology
	for (size_t i = 0; !result && i < a.size(); i++) {
		if (a[i].kind != b[i].kind) result = 3;            // type of a node
		if (!result && a[i].kind == Node::KERNEL && a[i].pdl != b[i].pdl) result = 2; // another kind of edge
	}
	if (info) *info = {result, nullptr, nullptr};
	if (result) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	x->graph = std::make_shared<Graph>(*g);
	return 0;
}
KR_API cuGraphExecDestroy(CUgraphExec_st *x) {
	if (!x) return CUDA_ERROR_INVALID_HANDLE;
	delete x; // a launch in progress holds the graph
	return 0;
}
KR_API cuGraphDestroy(CUgraph_st *g) {
	if (!g) return CUDA_ERROR_INVALID_HANDLE;
	delete g;
	return 0;
}
KR_API cuGraphGetNodes(CUgraph_st *g, void **nodes, size_t *n) {
	ENTER("cuGraphGetNodes");
	if (!g) return CUDA_ERROR_INVALID_HANDLE;
	size_t room = *n;
	*n = g->nodes.size();
	if (!nodes) return 0;
	for (size_t i = 0; i < room; i++) nodes[i] = i < *n ? &g->nodes[i] : nullptr;
	return 0;
}
KR_API cuGraphNodeGetType(void *node, int *type) {
	static const int types[] = {0, 1, 2, 3, 12, 12, 5};
	*type = types[static_cast<Node *>(node)->kind];
	return 0;
}
