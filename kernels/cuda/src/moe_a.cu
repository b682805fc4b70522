// Grouped products for every GPU: mma.sync with weights as the A operand and activations as the B
// operand through ldmatrix. A block of 8 warps has 256 stored rows; a warp has 32 of them and all
// tokens of the tile. So each fragment of weights, which is expensive to unpack, is multiplied
// with TN/8 fragments of activations, and each fragment of activations with two of weights.
#include "moe.cuh"

template <int BITS, int GROUP, int TN, class J> KR_DEV void grouped_a(const J &j, unsigned char *shared) {
	typedef Packed<BITS, GROUP> Weights;
	const int STAGES = 4, THREADS = 256, ROWS = 256;
	typedef Gather<TN, THREADS> Tokens;
	pdl_wait();
	pdl_launch();
	const Tile t = tile_of(j, TN);
	if (t.count < 1) return;
	int *rows = reinterpret_cast<int *>(shared + output_rows_at(STAGES * Tokens::BYTES, TN, ROWS));
	if (threadIdx.x < TN) rows[threadIdx.x] = (int)threadIdx.x < t.count ? row_of(j, t, threadIdx.x) : -1;

	const Tokens x(j, t);
	const uint32_t ring = smem_u32(shared);
	const int lane = threadIdx.x % 32, local = threadIdx.x / 32 * 2, whole = blockIdx.x * (ROWS / 16) + local, steps = j.tile_cols;
	const Weights w(j, t.expert, whole);
	const int pieces = steps * Weights::PIECES;
	typename Weights::Piece q[2], next[2]; // of the two blocks of 16 rows
#pragma unroll
	for (int m = 0; m < 2; m++) w.load(q[m], 0, 0, m);
	auto copy = [&](int k) {
		if (k < steps) x.copy(ring + k % STAGES * Tokens::BYTES + x.to, k);
		cp_async_commit();
	};
#pragma unroll
	for (int k = 0; k < STAGES - 1; k++) copy(k);

	float d[2][TN / 8][4];
#pragma unroll
	for (int i = 0; i < TN; i++) d[i / (TN / 2)][i / 4 % (TN / 8)][i % 4] = 0.f;
	// Four 8x8 matrices at a time: tokens 0..7 of k 0..7 and 8..15, then tokens 8..15.
	const uint32_t token = (lane / 16 * 8 + lane % 8) * 128;
	for (int k = 0; k < steps; k++) {
		cp_async_wait<STAGES - 2>();
		__syncthreads(); // also: all warps are done with step k-1, whose stage the copy overwrites
		copy(k + STAGES - 1);
		const uint32_t stage = ring + k % STAGES * Tokens::BYTES + token;
#pragma unroll
		for (int s = 0; s < 4; s++) {
			const int piece = k * Weights::PIECES + s / Weights::STEPS;
			if (s % Weights::STEPS == 0 && piece + 1 < pieces) {
#pragma unroll
				for (int m = 0; m < 2; m++) w.load(next[m], piece + 1, piece + 1, m);
			}
			uint32_t a[2][4];
#pragma unroll
			for (int m = 0; m < 2; m++) Weights::operand(a[m], q[m], s % Weights::STEPS);
			const uint32_t at = stage + (((2 * s + lane / 8 % 2) ^ (lane % 8)) << 4);
#pragma unroll
			for (int n = 0; n < TN / 16; n++) {
				uint32_t b[4];
				ldmatrix_x4(b, at + n * 16 * 128);
#pragma unroll
				for (int m = 0; m < 2; m++) {
					mma_bf16(d[m][2 * n], a[m], b[0], b[1]);
					mma_bf16(d[m][2 * n + 1], a[m], b[2], b[3]);
				}
			}
			if ((s + 1) % Weights::STEPS == 0) {
#pragma unroll
				for (int m = 0; m < 2; m++) q[m] = next[m];
			}
		}
	}
	__syncthreads();
	const int pitch = pitch_of(j.mode == TO_HIDDEN ? ROWS / 2 : ROWS);
#pragma unroll
	for (int m = 0; m < 2; m++) {
		if constexpr (J::BIASED) j.add(d[m], whole + m);
		take<TN>(j, d[m], w.last_scale(m), rows, shared, pitch, local + m, whole + m);
	}
	__syncthreads();
	give<TN, ROWS, THREADS>(j, rows, shared, pitch);
}

#define GROUPED_KERNEL(name, BITS, GROUP, TN, J)                     \
	KR_KERNEL(256, 2) name(ARGS_OF_##J) {                            \
		KR_SHARED(unsigned char, shared);                            \
		const J job = VALUES_OF_##J;                                 \
		grouped_a<BITS, GROUP, TN>(job, shared);                     \
	}                                                                \
	KR_EXPORT(name)
#define X(name, BITS, GROUP)                                         \
	GROUPED_KERNEL(kr_moe_##name##_t32, BITS, GROUP, 32, Job) \
	GROUPED_KERNEL(kr_moe_##name##_t64, BITS, GROUP, 64, Job)
ALL_FORMATS(X)
#undef X
// With biases, tiles of 64 tokens would leave no register.
#define X(name, BITS, GROUP) GROUPED_KERNEL(kr_moe_biased_##name##_t32, BITS, GROUP, 32, BiasedJob)
GROUPED_FORMATS(X)
#undef X
