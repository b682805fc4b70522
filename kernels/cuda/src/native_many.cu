// Products of many tokens with blocks of files: 128 rows of weights with a tile of up to 128 tokens
// of one expert. Weights are unpacked in shared memory, 64 columns at a time, and rounded to bfloat16
// once, while the 64 columns before are multiplied: by wgmma, before Hopper by mma.sync. Activations
// come by asynchronous copies, two steps ahead. A sum runs over the columns in order.
//
// Operands lie in rows of 128 bytes, whose 16-byte unit u is at unit u ^ row%8. With TO_HIDDEN the
// rows of gate and up take turns by 8, so that a thread has both sums of a feature.
#include "native.cuh"

enum { THREADS = 256, ROWS = 128, TN = 128, STAGES = 3, A_BYTES = ROWS * 128, X_BYTES = TN * 128, SLOTS_AT = 2 * A_BYTES + STAGES * X_BYTES };

// The product of 64 columns: the warp's 16 rows with all tokens.
KR_DEV void multiply(float (&d)[TN / 2], uint32_t a, uint32_t x) {
	const int lane = threadIdx.x % 32;
#ifdef KR_HOPPER
	const uint64_t da = wgmma_desc(a + threadIdx.x / 128 * (64 * 128)), dx = wgmma_desc(x);
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < 4; k++) wgmma_ss<TN>(d, da + 2 * k, dx + 2 * k);
	wgmma_commit();
#else
	float(&sums)[TN / 8][4] = reinterpret_cast<float(&)[TN / 8][4]>(d);
	const uint32_t row = threadIdx.x / 32 * 16 + lane % 16, token = lane / 16 * 8 + lane % 8;
#pragma unroll
	for (int k = 0; k < 4; k++) {
		uint32_t w[4], b[4];
		ldmatrix_x4(w, a + row * 128 + (((2 * k + lane / 16) ^ (row & 7)) << 4));
#pragma unroll
		for (int n = 0; n < TN / 16; n++) {
			ldmatrix_x4(b, x + (n * 16 + token) * 128 + (((2 * k + lane / 8 % 2) ^ (token & 7)) << 4));
			mma_bf16(sums[2 * n], w, b[0], b[1]);
			mma_bf16(sums[2 * n + 1], w, b[2], b[3]);
		}
	}
#endif
}
// Waits for the product.
KR_DEV void finish() {
#ifdef KR_HOPPER
	wgmma_wait<0>();
#endif
}

template <class T> KR_DEV void many(const Job &j, unsigned char *shared) {
	int *slots = reinterpret_cast<int *>(shared + SLOTS_AT);
	uint32_t *table = reinterpret_cast<uint32_t *>(slots + TN);
	fill<T>(table);
	pdl_wait();
	pdl_launch();
	const Tile t = tile_of(j);
	if (t.count < 1) return;
	const int tid = threadIdx.x, hidden = j.mode == TO_HIDDEN, bands = j.bands(), half = bands / 2, steps = (j.groups + 1) / 2;
	if (tid < TN) slots[tid] = tid < t.count ? slot_of(j, t, tid) : -1;
	if (T::TABLE > 0) __syncthreads();

	// The thread's part of the weights: of band `part` of 8, 4 rows and 8 columns of one of two groups.
	const int part = tid / 32, side = tid / 16 % 2, q = tid / 4 % 4, c = tid % 4;
	const int band = hidden ? part / 4 * half + min(4 * (int)blockIdx.x + part % 4, half - 1) : min(8 * (int)blockIdx.x + part, bands - 1);
	const uint8_t *v = j.values_of<T>(t.expert, band), *s = j.small_of<T>(t.expert, band);
	const int row = hidden ? part % 4 * 32 + q / 2 * 16 + q % 2 * 4 + part / 4 * 8 : part * 16 + 4 * q; // the first of four
	const int unit = 4 * side + c;
	typename T::Raw raw;
	typename T::Head head;
	auto load = [&](int k) {
		if (2 * k + side < j.groups) T::load(raw, v, s, 2 * k + side, q, c);
	};
	auto unpack = [&](int k) {
		unsigned char *a = shared + k % 2 * A_BYTES;
		const int group = 2 * k + side;
		if (T::HEAD && group % T::GROUPS < 2) T::open(head, raw);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint32_t w[4] = {0, 0, 0, 0};
			if (group < j.groups) weights<T>(w, raw, head, i, c, group, table);
			const int r = row + i;
			*reinterpret_cast<uint4 *>(a + r * 128 + ((unit ^ (r & 7)) << 4)) = make_uint4(w[0], w[1], w[2], w[3]);
		}
	};
	// The thread's units of the activations: unit tid%8 of every 32nd token. Past the last token that
	// token is copied again.
	const uint4 *x = reinterpret_cast<const uint4 *>(j.x);
	uint32_t at[TN * 8 / THREADS];
	const uint32_t to = tid / 8 * 128 + ((tid % 8 ^ (tid / 8 & 7)) << 4), ring = smem_u32(shared) + 2 * A_BYTES;
#pragma unroll
	for (int i = 0; i < TN * 8 / THREADS; i++)
		at[i] = (uint32_t)(slot_of(j, t, min(tid / 8 + i * (THREADS / 8), t.count - 1)) / j.divisor) * (uint32_t)(j.x_stride / 8) + tid % 8;
	auto copy = [&](int k) {
		if (k < steps) {
			const bool in = 8 * k + tid % 8 < 4 * j.groups;
#pragma unroll
			for (int i = 0; i < TN * 8 / THREADS; i++)
				cp_async16(ring + k % STAGES * X_BYTES + to + i * (THREADS / 8 * 128), in ? x + (at[i] + 8u * (uint32_t)k) : x, in);
		}
		cp_async_commit();
	};
	copy(0);
	copy(1);
	load(0);
	unpack(0);
	load(1);
	float d[TN / 2];
#pragma unroll
	for (int i = 0; i < TN / 2; i++) d[i] = 0.f;
	for (int k = 0; k < steps; k++) {
		cp_async_wait<1>();
#ifdef KR_HOPPER
		fence_async();
#endif
		__syncthreads(); // also: step k-1, whose stages are overwritten, is multiplied
		multiply(d, smem_u32(shared) + k % 2 * A_BYTES, ring + k % STAGES * X_BYTES);
		copy(k + 2);
		if (k + 1 < steps) {
			unpack(k + 1);
			load(k + 2);
		}
		finish();
	}
#ifdef KR_HOPPER
	wgmma_done(d);
#endif
	// The lane's sums: rows g and g+8 of its warp's 16, tokens 8i+2*(lane%4) and the next.
	const int lane = tid % 32, g = lane / 4, block = 8 * blockIdx.x + tid / 32;
	const int lo = hidden ? 8 * block + g : 16 * block + g, hi = hidden ? j.rows / 2 + lo : lo + 8, width = hidden ? j.rows / 2 : j.rows;
	const float *bias = j.bias ? j.bias_of(t.expert) : 0;
	const float bias_lo = bias && lo < width ? bias[lo] : 0.f, bias_hi = bias && hi < j.rows ? bias[hi] : 0.f;
#pragma unroll
	for (int i = 0; i < TN / 4; i++) {
		const int slot = slots[i / 2 * 8 + 2 * (lane % 4) + i % 2];
		if (slot < 0) continue;
		const float a = d[i / 2 * 4 + i % 2] + bias_lo, b = d[i / 2 * 4 + i % 2 + 2] + bias_hi;
		if (hidden) {
			if (lo < width) j.put(slot, lo, j.act(a, b));
			continue;
		}
		if (lo < width) j.put(slot, lo, a);
		if (hi < width) j.put(slot, hi, b);
	}
}

#ifdef KR_HOPPER
#define BLOCKS 2
#else
#define BLOCKS 1 // shared memory has room for one
#endif
#define X(name, T)                                      \
	KR_KERNEL(256, BLOCKS) kr_native_##name##_many(JOB_ARGS) { \
		KR_SHARED(unsigned char, shared);               \
		const Job job = JOB;                            \
		many<T>(job, shared);                           \
	}                                                   \
	KR_EXPORT(kr_native_##name##_many)
ALL_ENCODINGS(X)
#undef X
