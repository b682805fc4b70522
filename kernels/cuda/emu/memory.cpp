// Memory of the GPUs: every allocation is a separate mapping that ends at a protected page and is
// filled with 0xff (NaN) at first. Also pinned memory of the host.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "driver.h"

namespace kr_emu {

namespace {
struct Region {
	size_t bytes;
	void *map; // null: the host's own memory, registered
	size_t mapBytes;
	Place place;
	Gpu *gpu; // whose memory it is, or in whose context it was pinned
};
struct Memory {
	std::mutex m;
	std::map<uintptr_t, Region> regions;
};
const size_t PAGE = 4096, FILL_PIECE = 4 << 20, FILL_MAX = 256 << 20;

Memory &memory() {
	static Memory *m = new Memory;
	return *m;
}

// covering returns the region that contains p. m is held.
std::map<uintptr_t, Region>::iterator covering(Memory &m, uintptr_t p) {
	auto i = m.regions.upper_bound(p);
	if (i == m.regions.begin()) return m.regions.end();
	--i;
	return p < i->first + i->second.bytes ? i : m.regions.end();
}

// fill_lazily has pages of a region read as 0xff, each of which takes memory when it is first written
// to: most of a large region never is. It leaves small regions, and those that it cannot map, to memset.
bool fill_lazily(unsigned char *map, size_t bytes) {
	static const int file = [] {
		int f = memfd_create("cuda emulator: 0xff", MFD_CLOEXEC);
		if (f < 0 || ftruncate(f, FILL_PIECE)) return -1;
		void *p = mmap(0, FILL_PIECE, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
		if (p == MAP_FAILED) return -1;
		memset(p, 0xff, FILL_PIECE);
		munmap(p, FILL_PIECE);
		return f;
	}();
	if (file < 0 || bytes < FILL_PIECE) return false;
	for (size_t at = 0; at < bytes; at += FILL_PIECE)
		if (mmap(map + at, std::min(FILL_PIECE, bytes - at), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED) return false;
	return true;
}

void *map_region(size_t n, uint64_t align, Place place, Gpu *g) {
	size_t up = (n + align - 1) / align * align, whole = (up + PAGE - 1) / PAGE * PAGE + PAGE;
	unsigned char *map = static_cast<unsigned char *>(mmap(0, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
	if (map == MAP_FAILED) return nullptr;
	mprotect(map + whole - PAGE, PAGE, PROT_NONE);
	unsigned char *p = map + whole - PAGE - up;
	if (place == Place::DEVICE && up <= FILL_MAX && !fill_lazily(map, whole - PAGE)) memset(map, 0xff, whole - PAGE);
	Memory &m = memory();
	std::lock_guard<std::mutex> k(m.m);
	m.regions[reinterpret_cast<uintptr_t>(p)] = {n, map, whole, place, g};
	if (place == Place::DEVICE) g->used += n;
	return p;
}

// slack reports whether something was written between the end and the guard page.
bool slack_written(uintptr_t p, const Region &r) {
	if (r.place != Place::DEVICE || r.bytes > FILL_MAX) return false;
	const unsigned char *q = reinterpret_cast<unsigned char *>(p) + r.bytes, *end = static_cast<unsigned char *>(r.map) + r.mapBytes - PAGE;
	for (; q < end; q++)
		if (*q != 0xff) return true;
	return false;
}

int unmap_region(void *p, Place place) {
	Memory &m = memory();
	std::lock_guard<std::mutex> k(m.m);
	auto i = m.regions.find(reinterpret_cast<uintptr_t>(p));
	if (i == m.regions.end() || i->second.place != place || !i->second.map) return CUDA_ERROR_INVALID_VALUE;
	int r = 0;
	if (slack_written(i->first, i->second)) {
		fprintf(stderr, "cuda emulator: a write went beyond the end of the allocation of %zu bytes at %p\n", i->second.bytes, p);
		i->second.gpu->sticky = r = ILLEGAL_ADDRESS;
	}
	if (place == Place::DEVICE) i->second.gpu->used -= i->second.bytes;
	munmap(i->second.map, i->second.mapBytes);
	m.regions.erase(i);
	return r;
}
} // namespace

Place place(const void *p, size_t n, const Gpu *g) {
	Memory &m = memory();
	std::lock_guard<std::mutex> k(m.m);
	uintptr_t a = reinterpret_cast<uintptr_t>(p);
	auto i = covering(m, a);
	if (i == m.regions.end() || a + n > i->first + i->second.bytes) return Place::NONE;
	const Region &r = i->second;
	if (g && r.place == Place::DEVICE && r.gpu != g && !(g->peers >> r.gpu->index & 1)) return Place::NONE;
	return r.place;
}

Gpu *owner(const void *p) {
	Memory &m = memory();
	std::lock_guard<std::mutex> k(m.m);
	auto i = covering(m, reinterpret_cast<uintptr_t>(p));
	return i == m.regions.end() || i->second.place != Place::DEVICE ? nullptr : i->second.gpu;
}

bool clear_pages(void *p, size_t n) {
	unsigned char *start = static_cast<unsigned char *>(p), *end = start + n;
	uintptr_t first = (reinterpret_cast<uintptr_t>(start) + PAGE - 1) / PAGE * PAGE, last = reinterpret_cast<uintptr_t>(end) / PAGE * PAGE;
	if (n < PAGE * 256 || place(p, n, nullptr) != Place::DEVICE || madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED)) return false;
	memset(start, 0, first - reinterpret_cast<uintptr_t>(start));
	memset(reinterpret_cast<void *>(last), 0, reinterpret_cast<uintptr_t>(end) - last);
	return true;
}

std::string describe(const void *p) {
	Memory &m = memory();
	uintptr_t a = reinterpret_cast<uintptr_t>(p);
	char s[512];
	Dl_info d;
	if (dladdr(p, &d) && d.dli_fname) { // code: the line, if binutils are there
		snprintf(s, sizeof s, "addr2line -ispe '%s' 0x%zx 2>/dev/null", d.dli_fname, (size_t)(a - reinterpret_cast<uintptr_t>(d.dli_fbase)));
		std::string lines;
		if (FILE *f = popen(s, "r")) {
			while (fgets(s, sizeof s, f)) lines += (lines.empty() ? "" : " ") + std::string(s, strcspn(s, "\n"));
			pclose(f);
		}
		if (!lines.empty()) return lines;
		snprintf(s, sizeof s, "%s+0x%zx", d.dli_fname, (size_t)(a - reinterpret_cast<uintptr_t>(d.dli_fbase)));
		return s;
	}
	std::lock_guard<std::mutex> k(m.m);
	auto in = covering(m, a);
	if (in != m.regions.end()) {
		snprintf(s, sizeof s, "byte %zu of %s of %zu bytes", (size_t)(a - in->first), in->second.place == Place::DEVICE ? "an allocation" : "pinned memory", in->second.bytes);
		return settings().devices == 1 ? s : s + (" of GPU " + std::to_string(in->second.gpu->index));
	}
	auto i = m.regions.upper_bound(a);
	if (i != m.regions.begin()) {
		auto b = std::prev(i);
		uintptr_t end = b->first + b->second.bytes;
		if (a >= end && a - end < 1 << 20) {
			snprintf(s, sizeof s, "%zu bytes behind the end of an allocation of %zu bytes", (size_t)(a - end), b->second.bytes);
			return s;
		}
	}
	if (i != m.regions.end() && i->first - a < 1 << 20) {
		snprintf(s, sizeof s, "%zu bytes before an allocation of %zu bytes", (size_t)(i->first - a), i->second.bytes);
		return s;
	}
	return "not memory of the GPU";
}

void free_everything(Gpu *g) {
	Memory &m = memory();
	std::lock_guard<std::mutex> k(m.m);
	for (auto i = m.regions.begin(); i != m.regions.end();) {
		if (i->second.gpu != g || (i->second.place != Place::DEVICE && i->second.map)) {
			++i;
			continue;
		}
		// Memory that the host has registered belongs to the host. The GPU forgets it, because it
		// could not be unregistered while the context was lost, and the address may be reused.
		if (i->second.map) {
			munmap(i->second.map, i->second.mapBytes);
		} else if (!g->sticky) {
			fprintf(stderr, "cuda emulator: %zu bytes at %p are still registered at the end\n", i->second.bytes, reinterpret_cast<void *>(i->first));
		}
		i = m.regions.erase(i);
	}
	g->used = 0;
}

} // namespace kr_emu

using namespace kr_emu;

static CUresult allocate(CUdeviceptr *p, size_t n) {
	Gpu *g = current();
	if (!p || !n) return CUDA_ERROR_INVALID_VALUE;
	{
		Memory &m = memory();
		std::lock_guard<std::mutex> k(m.m);
		if (n > settings().memory || g->used + n > settings().memory) return CUDA_ERROR_OUT_OF_MEMORY;
	}
	void *v = map_region(n, settings().align, Place::DEVICE, g);
	*p = reinterpret_cast<CUdeviceptr>(v);
	return v ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}

KR_API cuMemAlloc_v2(CUdeviceptr *p, size_t n) {
	ENTER("cuMemAlloc");
	if (int bad = not_while_capturing()) return bad;
	return allocate(p, n);
}
KR_API cuMemFree_v2(CUdeviceptr p) {
	ENTER("cuMemFree");
	if (int bad = not_while_capturing()) return bad;
	if (!p) return 0;
	synchronise(current());
	if (current()->sticky) return current()->sticky;
	return unmap_region(reinterpret_cast<void *>(p), Place::DEVICE);
}
KR_API cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream s) {
	ENTER("cuMemAllocAsync");
	if (stream(s)->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return allocate(p, n);
}
KR_API cuMemFreeAsync(CUdeviceptr p, CUstream s) {
	ENTER("cuMemFreeAsync");
	if (stream(s)->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	stream(s)->push([p] { return unmap_region(reinterpret_cast<void *>(p), Place::DEVICE); });
	return 0;
}
KR_API cuMemGetInfo_v2(size_t *left, size_t *total) {
	ENTER("cuMemGetInfo");
	Memory &m = memory();
	std::lock_guard<std::mutex> k(m.m);
	*left = settings().memory - current()->used;
	*total = settings().memory;
	return 0;
}
KR_API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *n, CUdeviceptr p) {
	ENTER("cuMemGetAddressRange");
	Memory &m = memory();
	std::lock_guard<std::mutex> k(m.m);
	auto i = covering(m, (uintptr_t)p);
	if (i == m.regions.end()) return CUDA_ERROR_NOT_FOUND;
	if (base) *base = i->first;
	if (n) *n = i->second.bytes;
	return 0;
}

KR_API cuMemHostAlloc(void **p, size_t n, unsigned) {
	ENTER("cuMemHostAlloc");
	if (int bad = not_while_capturing()) return bad;
	if (!p || !n) return CUDA_ERROR_INVALID_VALUE;
	*p = map_region(n, 16, Place::PINNED, current());
	return *p ? 0 : CUDA_ERROR_OUT_OF_MEMORY;
}
KR_API cuMemAllocHost_v2(void **p, size_t n) { return cuMemHostAlloc(p, n, 0); }
KR_API cuMemFreeHost(void *p) {
	ENTER("cuMemFreeHost");
	synchronise(nullptr);
	return unmap_region(p, Place::PINNED);
}
KR_API cuMemHostRegister_v2(void *p, size_t n, unsigned) {
	ENTER("cuMemHostRegister");
	if (!p || !n) return CUDA_ERROR_INVALID_VALUE;
	Memory &m = memory();
	std::lock_guard<std::mutex> k(m.m);
	uintptr_t a = reinterpret_cast<uintptr_t>(p);
	auto i = m.regions.lower_bound(a);
	if (covering(m, a) != m.regions.end() || (i != m.regions.end() && i->first < a + n)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	m.regions[a] = {n, nullptr, 0, Place::PINNED, current()};
	return 0;
}
KR_API cuMemHostUnregister(void *p) {
	ENTER("cuMemHostUnregister");
	synchronise(nullptr);
	Memory &m = memory();
	std::lock_guard<std::mutex> k(m.m);
	auto i = m.regions.find(reinterpret_cast<uintptr_t>(p));
	if (i == m.regions.end() || i->second.map) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	m.regions.erase(i);
	return 0;
}
KR_API cuMemHostGetDevicePointer_v2(CUdeviceptr *d, void *p, unsigned) {
	ENTER("cuMemHostGetDevicePointer");
	if (place(p, 1, nullptr) != Place::PINNED) return CUDA_ERROR_INVALID_VALUE;
	*d = reinterpret_cast<CUdeviceptr>(p);
	return 0;
}
KR_API cuPointerGetAttribute(void *data, int what, CUdeviceptr p) {
	ENTER("cuPointerGetAttribute");
	Place at = place(reinterpret_cast<void *>(p), 1, nullptr);
	if (at == Place::NONE || what != 2) return CUDA_ERROR_INVALID_VALUE; // 2: CU_POINTER_ATTRIBUTE_MEMORY_TYPE
	*static_cast<unsigned *>(data) = at == Place::DEVICE ? 2 : 1;
	return 0;
}
