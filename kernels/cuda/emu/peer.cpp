// Several GPUs: access to each other's memory, copies between them, and faults of these copies.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "emu_math.h"

using namespace kr_emu;

// --- KR_EMU_PEER=fault[:n], or kr_emu_peer by a test in the same process: the n-th peer copy and all
// later ones have the fault. "none" is no fault of copies: there is no access.

namespace {
struct Link {
	std::mutex m;
	std::string fault;
	long first = 1, seen = 0;
	uint64_t told = 0; // how often the fault was set
	Link() { set(getenv("KR_EMU_PEER")); }
	void set(const char *v) {
		std::string s = v ? v : "";
		size_t at = s.find(':');
		fault = s.substr(0, at);
		first = at == std::string::npos ? 1 : atol(s.c_str() + at + 1);
		seen = 0;
		told++;
	}
};
Link &link() {
	static Link *l = new Link;
	return *l;
}
bool accessible() {
	std::lock_guard<std::mutex> k(link().m);
	return link().fault != "none";
}
} // namespace

// kr_emu_peer sets the fault, and ends copies that hang. It returns how many copies there were since
// it was last set.
extern "C" __attribute__((visibility("default"))) long kr_emu_peer(const char *fault) {
	std::lock_guard<std::mutex> k(link().m);
	long seen = link().seen;
	link().set(fault);
	return seen;
}

bool kr_emu::peer_fault(const Node &n) {
	Link &l = link();
	std::unique_lock<std::mutex> k(l.m);
	if (++l.seen < l.first) return false;
	std::string fault = l.fault;
	uint64_t told = l.told;
	k.unlock();
	if (fault == "zeros") memset(n.dst, 0, n.bytes);
	if (fault == "late") usleep(5000);
	if (fault == "hang")
		for (int64_t end = clock64() + (int64_t)(settings().timeout * 1e9); clock64() < end; usleep(200)) {
			std::lock_guard<std::mutex> again(l.m);
			if (l.told != told) break;
		}
	return fault == "zeros" || fault == "stale" || fault == "hang";
}

// --- access

KR_API cuDeviceCanAccessPeer(int *can, CUdevice d, CUdevice peer) {
	if (!gpu_at(d) || !gpu_at(peer)) return CUDA_ERROR_INVALID_DEVICE;
	*can = d != peer && accessible();
	return 0;
}
KR_API cuCtxEnablePeerAccess(CUcontext c, unsigned flags) {
	ENTER("cuCtxEnablePeerAccess");
	Gpu *g = of(c);
	if (!g || g == current() || flags) return CUDA_ERROR_INVALID_VALUE;
	if (!accessible()) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	uint32_t bit = 1u << g->index;
	return current()->peers.fetch_or(bit) & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : 0;
}
KR_API cuCtxDisablePeerAccess(CUcontext c) {
	ENTER("cuCtxDisablePeerAccess");
	Gpu *g = of(c);
	if (!g) return CUDA_ERROR_INVALID_CONTEXT;
	synchronise(nullptr);
	uint32_t bit = 1u << g->index;
	return current()->peers.fetch_and(~bit) & bit ? 0 : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

// --- copies. They need no access: without it a driver copies through the host.

KR_API cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream s) {
	ENTER("cuMemcpyPeer");
	if (!is_stream(s)) return CUDA_ERROR_INVALID_HANDLE;
	if (!n) return 0;
	Node c;
	c.kind = Node::COPY, c.peer = true, c.bytes = n;
	c.dst = reinterpret_cast<void *>(dst), c.src = reinterpret_cast<void *>(src);
	Gpu *a = of(from), *b = of(to);
	bool ok = a && b && owner(c.src) == a && owner(c.dst) == b && place(c.src, n, a) == Place::DEVICE && place(c.dst, n, b) == Place::DEVICE;
	if (!ok) {
		fprintf(stderr, "cuda emulator: peer copy of %zu bytes from %p (%s) to %p (%s)\n", n, c.src, describe(c.src).c_str(), c.dst, describe(c.dst).c_str());
		return CUDA_ERROR_INVALID_VALUE;
	}
	return submit(stream(s), std::move(c));
}
