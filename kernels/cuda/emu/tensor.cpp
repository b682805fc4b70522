// Matrix instructions: the layouts of fragments and tiles, and plain products over them.
//
// Fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane 4g+c of a warp has
//   a0 (g, 2c..) a1 (g+8, 2c..) a2 (g, 2c+8..) a3 (g+8, 2c+8..)   pairs along k
//   b0 (k 2c.., n g) b1 (k 2c+8.., n g)
//   c0 c1 (g, 2c..) c2 c3 (g+8, 2c..)
// and for int8, k32, four bytes where two bf16 stand.
#include <string.h>

#include "emu_math.h"
#include "emu.h"
#include "race.h"

namespace kr_emu {

// --- ldmatrix

struct Load {
	uint32_t *r;
	uint32_t at;
	int count;
	bool trans;
};

static void combine_ldmatrix(void *const *args, uint32_t) {
	int count = static_cast<Load *>(args[0])->count;
	bool trans = static_cast<Load *>(args[0])->trans;
	for (int m = 0; m < count; m++) {
		const unsigned char *rows[8];
		for (int r = 0; r < 8; r++) {
			uint32_t at = static_cast<Load *>(args[8 * m + r])->at;
			rows[r] = shared_at(at, 16, 16, "ldmatrix");
			race_shared(self() - self()->lane + 8 * m + r, at, 16, false, "ldmatrix reads");
		}
		for (int l = 0; l < 32; l++) {
			Load *t = static_cast<Load *>(args[l]);
			int g = l / 4, c = l % 4;
			if (!trans) {
				memcpy(&t->r[m], rows[g] + 4 * c, 4);
				continue;
			}
			uint16_t lo, hi;
			memcpy(&lo, rows[2 * c] + 2 * g, 2);
			memcpy(&hi, rows[2 * c + 1] + 2 * g, 2);
			t->r[m] = lo | (uint32_t)hi << 16;
		}
	}
}

void ldmatrix(uint32_t *r, uint32_t at, int count, bool trans) {
	static const char *const names[2][2] = {{"ldmatrix_x2", "ldmatrix_x4"}, {"ldmatrix_x2_trans", "ldmatrix_x4_trans"}};
	Load l{r, at, count, trans};
	meet(0xffffffffu, combine_ldmatrix, &l, names[trans][count == 4]);
}

// --- products of a warp: a [16][K], b [K][N] in rows of N, c [16][N]

// value gives what 16 bits are as a number: bf16_f32 or f16_f32.
template <float (*value)(uint32_t)> static void a_16(float *a, const uint32_t *r, int lane) {
	int g = lane / 4, c = lane % 4;
	for (int i = 0; i < 4; i++) {
		float *p = a + (g + 8 * (i & 1)) * 16 + 2 * c + 8 * (i >> 1);
		p[0] = value(r[i] & 0xffff), p[1] = value(r[i] >> 16);
	}
}
static void a_s8(int *a, const uint32_t *r, int lane) {
	int g = lane / 4, c = lane % 4;
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 4; j++) a[(g + 8 * (i & 1)) * 32 + 4 * c + 16 * (i >> 1) + j] = (signed char)(r[i] >> (8 * j));
}

// One fixed order: the products of a row are summed from k = 0 up, then added to c. n is a
// multiple of 8; four rows by eight columns are summed in registers.
template <typename T, int K> static void product(T *sum, const T *a, const T *b, int n) {
	typedef T Eight __attribute__((vector_size(8 * sizeof(T))));
	for (int j = 0; j < n; j += 8)
		for (int i = 0; i < 16; i += 4) {
			Eight s[4] = {};
			for (int k = 0; k < K; k++) {
				Eight row;
				memcpy(&row, b + k * n + j, sizeof row);
				for (int r = 0; r < 4; r++) s[r] += a[(i + r) * K + k] * row;
			}
			for (int r = 0; r < 4; r++) memcpy(sum + (i + r) * n + j, &s[r], sizeof s[r]);
		}
}

// d of all lanes: quads of (g, 2c..) and (g+8, 2c..) for every 8 columns.
template <typename T> static void scatter(T *d, const T *sum, int n, int lane) {
	int g = lane / 4, c = lane % 4;
	for (int j = 0; j < n / 8; j++) {
		const T *p = sum + g * n + 8 * j + 2 * c, *q = p + 8 * n;
		d[4 * j] += p[0], d[4 * j + 1] += p[1], d[4 * j + 2] += q[0], d[4 * j + 3] += q[1];
	}
}

struct Mma {
	void *c;
	const uint32_t *a;
	uint32_t b0, b1;
};

template <float (*value)(uint32_t)> static void combine_mma(void *const *args, uint32_t) {
	float a[256], b[128], sum[128];
	for (int l = 0; l < 32; l++) {
		Mma *m = static_cast<Mma *>(args[l]);
		int g = l / 4, c = l % 4;
		a_16<value>(a, m->a, l);
		const uint32_t pairs[2] = {m->b0, m->b1};
		for (int i = 0; i < 2; i++) b[(2 * c + 8 * i) * 8 + g] = value(pairs[i] & 0xffff), b[(2 * c + 8 * i + 1) * 8 + g] = value(pairs[i] >> 16);
	}
	product<float, 16>(sum, a, b, 8);
	for (int l = 0; l < 32; l++) scatter(static_cast<float *>(static_cast<Mma *>(args[l])->c), sum, 8, l);
}

static void combine_mma_s8(void *const *args, uint32_t) {
	int a[512], b[256], sum[128];
	for (int l = 0; l < 32; l++) {
		Mma *m = static_cast<Mma *>(args[l]);
		int g = l / 4, c = l % 4;
		a_s8(a, m->a, l);
		for (int j = 0; j < 4; j++) {
			b[(4 * c + j) * 8 + g] = (signed char)(m->b0 >> (8 * j));
			b[(4 * c + 16 + j) * 8 + g] = (signed char)(m->b1 >> (8 * j));
		}
	}
	product<int, 32>(sum, a, b, 8);
	for (int l = 0; l < 32; l++) scatter(static_cast<int *>(static_cast<Mma *>(args[l])->c), sum, 8, l);
}

void mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
	Mma m{c, a, b0, b1};
	meet(0xffffffffu, combine_mma<bf16_f32>, &m, "mma_bf16");
}
void mma_f16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
	Mma m{c, a, b0, b1};
	meet(0xffffffffu, combine_mma<f16_f32>, &m, "mma_f16");
}
void mma(int *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
	Mma m{c, a, b0, b1};
	meet(0xffffffffu, combine_mma_s8, &m, "mma_s8");
}

// --- wgmma

// Row r, byte x of a tile in shared memory that a descriptor describes, 128-byte swizzle
// (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"): atoms of 8 rows of
// 128 bytes, in which address bits 4-6 are combined with bits 7-9. The start may lie
// within an atom, so the swizzle goes by the address.
struct Tile {
	uint32_t start, lead, stride; // bytes
	explicit Tile(uint64_t d) {
		start = (uint32_t)(d & 0x3fff) << 4;
		lead = (uint32_t)(d >> 16 & 0x3fff) << 4;
		stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
		if (d >> 62 != 1) fail(LAUNCH_FAILED, "wgmma: descriptor %016llx is not of a 128-byte swizzle", (unsigned long long)d);
		if (start % 1024 >= 128) fail(LAUNCH_FAILED, "wgmma: a tile at shared byte %d does not begin at a multiple of 1024", (int)(start - SHARED_BASE));
		if (d >> 49 & 7) fail(LAUNCH_FAILED, "wgmma: descriptor %016llx has a base offset", (unsigned long long)d);
	}
	// The 16 bytes at unit u (0..1 beyond start) of row r, K-major: rows are m or n.
	const unsigned char *row(int r, int u) const { return unit(start + r / 8 * stride + r % 8 * 128 + 16 * u); }
	// The 16 bytes of columns n..n+7 of row k, MN-major: rows of 64 columns are k.
	const unsigned char *column(int k, int n) const { return unit(start + n / 64 * lead + k / 8 * stride + k % 8 * 128 + n % 64 * 2); }

  private:
	static const unsigned char *unit(uint32_t at) {
		at ^= at >> 3 & 0x70;
		// Descriptors have 18 bits of address, SHARED_BASE included: no wrap below 256 KB.
		const unsigned char *p = shared_at(at, 16, 16, "wgmma");
		race_shared(self(), at, 16, false, "wgmma reads");
		const Written &w = worker()->written[(at - SHARED_BASE) / 16];
		if (w.by && w.at >= worker()->threads[w.by - 1].fenceAt && w.at >= self()->fenceSyncAt) {
			fail(LAUNCH_FAILED, "wgmma reads shared byte %u, which thread %u wrote by cp.async and did not fence_async", at - SHARED_BASE, w.by - 1);
		}
		return p;
	}
};

template <float (*value)(uint32_t)> static void rows_16(float *a, const Tile &t, int first) { // [16][16]
	for (int r = 0; r < 16; r++)
		for (int u = 0; u < 2; u++) {
			uint16_t v[8];
			memcpy(v, t.row(first + r, u), 16);
			for (int i = 0; i < 8; i++) a[r * 16 + 8 * u + i] = value(v[i]);
		}
}

static void combine_s8(void *const *args, const Product &p, int warp) {
	static thread_local int b[32 * 256], sum[16 * 256];
	Tile tile(p.db);
	int n = p.n, a[512];
	for (int j = 0; j < n; j++)
		for (int u = 0; u < 2; u++) {
			const unsigned char *x = tile.row(j, u);
			for (int i = 0; i < 16; i++) b[(16 * u + i) * n + j] = (signed char)x[i];
		}
	if (p.shared) {
		Tile t(p.da);
		for (int r = 0; r < 16; r++)
			for (int u = 0; u < 2; u++) {
				const unsigned char *x = t.row(16 * warp + r, u);
				for (int i = 0; i < 16; i++) a[r * 32 + 16 * u + i] = (signed char)x[i];
			}
	} else {
		for (int l = 0; l < 32; l++) a_s8(a, static_cast<Product *>(args[l])->a, l);
	}
	product<int, 32>(sum, a, b, n);
	for (int l = 0; l < 32; l++) scatter(static_cast<int *>(static_cast<Product *>(args[l])->d), sum, n, l);
}

template <float (*value)(uint32_t)> static void combine_16(void *const *args, const Product &p, int warp) {
	static thread_local float b[16 * 256], sum[16 * 256];
	Tile tile(p.db);
	int n = p.n;
	float a[256];
	if (p.trans) {
		for (int k = 0; k < 16; k++)
			for (int j = 0; j < n; j += 8) {
				uint16_t v[8];
				memcpy(v, tile.column(k, j), 16);
				for (int i = 0; i < 8; i++) b[k * n + j + i] = value(v[i]);
			}
	} else {
		for (int j = 0; j < n; j++)
			for (int u = 0; u < 2; u++) {
				uint16_t v[8];
				memcpy(v, tile.row(j, u), 16);
				for (int i = 0; i < 8; i++) b[(8 * u + i) * n + j] = value(v[i]);
			}
	}
	if (p.shared) {
		rows_16<value>(a, Tile(p.da), 16 * warp);
	} else {
		for (int l = 0; l < 32; l++) a_16<value>(a, static_cast<Product *>(args[l])->a, l);
	}
	product<float, 16>(sum, a, b, n);
	for (int l = 0; l < 32; l++) scatter(static_cast<float *>(static_cast<Product *>(args[l])->d), sum, n, l);
}

static void combine_wgmma(void *const *args, uint32_t) {
	const Product &p = *static_cast<Product *>(args[0]);
	for (int l = 1; l < 32; l++) {
		const Product &q = *static_cast<Product *>(args[l]);
		if (q.n != p.n || q.db != p.db || q.da != p.da || q.shared != p.shared || q.trans != p.trans || q.format != p.format)
			fail(LAUNCH_FAILED, "wgmma: lane %d has another shape or descriptor than lane 0", l);
	}
	int warp = (int)(self()->index / 32 % 4);
	switch (p.format) {
	case Format::bf16: return combine_16<bf16_f32>(args, p, warp);
	case Format::f16: return combine_16<f16_f32>(args, p, warp);
	case Format::s8: return combine_s8(args, p, warp);
	}
}

void wgmma_fence() { self()->fenced = true; }

void wgmma(const Product &p) {
	Thread *t = self();
	if (!t->fenced) fail(LAUNCH_FAILED, "wgmma without a wgmma_fence before it");
	if (t->index / 128 * 128 + 128 > worker()->total) fail(LAUNCH_FAILED, "wgmma in a warpgroup that is not whole");
	worker()->wgmmas[t->index / 32] += t->lane == 0;
	if (p.n % 8 || p.n > 256) fail(LAUNCH_FAILED, "wgmma of width %d", p.n);
	if (settings().early) {
		Product q = p;
		meet(0xffffffffu, combine_wgmma, &q, "wgmma");
		return;
	}
	t->products.push_back(p);
}

void wgmma_commit() {
	Thread *t = self();
	for (size_t i = t->products.size(); i > 0 && t->products[i - 1].group == OPEN; i--) t->products[i - 1].group = t->productGroups;
	t->productGroups++;
}

void wgmma_wait(uint32_t left) {
	Thread *t = self();
	size_t n = 0;
	while (n < t->products.size() && t->products[n].group != OPEN && t->products[n].group + left < t->productGroups) n++;
	for (size_t i = 0; i < n; i++) meet(0xffffffffu, combine_wgmma, &t->products[i], "wgmma");
	t->products.erase(t->products.begin(), t->products.begin() + n);
}

} // namespace kr_emu
