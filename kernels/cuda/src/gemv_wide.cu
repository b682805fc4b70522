// Products for more tokens than one B operand holds, up to 32 at a time. A warp unpacks 16 * R
// rows of weights once and multiplies them with up to 4 times 8 tokens. Sums run in the same
// order as in gemv.cu, so a token has the same bits in both.
//
// A block has parts * row_warps warps. Warp w has part w / row_warps of the columns, for rows 32
// * (w % row_warps) and on. Activations go through shared memory, a unit of 128 columns of all
// tokens ahead; the warps of a part share them.
#include "gemv.cuh"

// R row blocks, one to three: weights are loaded 16 rows at a time, and activations are used R
// times.
enum { STAGES = 2 };

// The tokens of a part in shared memory: STAGES units of [8 * N tokens][128 columns]. The 16-byte
// units of a row are swizzled. So 8 rows at one place (ldmatrix) lie in different banks, and so
// do 2 rows at 4 neighbouring places (16-byte loads).
KR_DEV int swizzle(int row) { return (row & 1) << 2 | (row & 2) | (row >> 2 & 1); }

template <int N> struct Tokens {
	static const int BYTES = 8 * N * 256; // a stage
	uint32_t base;
	const uint8_t *memory; // the same place
	const bf16 *x;
	int stride, m, tiles, part, row_warps;

	KR_MEMBER void sync() const {
		if (row_warps > 1) bar_sync(1 + part, 32 * row_warps);
		else __syncwarp();
	}
	// Starts the copy of a unit. Past the last one it only commits an empty group.
	KR_MEMBER void fetch(int unit, int stage, int to) const {
		if (unit < to) {
			int lane = threadIdx.x % 32, me = threadIdx.x / 32 % row_warps;
			for (int i = me * 32 + lane; i < 8 * N * 16; i += 32 * row_warps) {
				int row = i / 16, u = i % 16;
				bool there = row < m && (u < 8 || 2 * unit + 1 < tiles);
				cp_async16(base + stage * BYTES + row * 256 + (u ^ swizzle(row % 8)) * 16, x + (long long)(there ? row : 0) * stride + unit * 128 + (there ? u * 8 : 0), there);
			}
		}
		cp_async_commit();
	}
	// b: the B operands of steps 2i and 2i+1 of 8 tokens of a unit, for packed weights.
	KR_MEMBER void steps(uint32_t (&b)[4], int stage, int eight, int i) const {
		int lane = threadIdx.x % 32, row = 8 * eight + lane % 8, u = 4 * i + lane / 8;
		ldmatrix_x4(b, base + stage * BYTES + row * 256 + (u ^ swizzle(lane % 8)) * 16);
	}
	// The B operands for plain rows: columns 8c..8c+7 of 32.
	KR_MEMBER void columns(uint32_t (&b)[4], int stage, int eight, int i) const {
		int lane = threadIdx.x % 32, row = 8 * eight + lane / 4, u = 4 * i + lane % 4;
		uint4 v = *reinterpret_cast<const uint4 *>(memory + stage * BYTES + row * 256 + (u ^ swizzle(lane / 4)) * 16);
		b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
	}
};

// One unit: adds to the sums of R row blocks and N times 8 tokens.
template <int R, int N, int BITS, int GROUP>
KR_DEV void multiply(float (&sum)[R][N][4], const typename Packed<BITS, GROUP, false>::Load (&v)[R], const Tokens<N> &x, int stage) {
	typedef Packed<BITS, GROUP, false> Format;
	float d[R][N][4], e[N][4];
	auto clear = [&] {
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				e[n][i] = 0.f;
#pragma unroll
				for (int r = 0; r < R; r++) d[r][n][i] = 0.f;
			}
	};
	clear();
	uint32_t b[N][4];
#pragma unroll
	for (int i = 0; i < 8; i++) {
		if (i % 2 == 0) {
#pragma unroll
			for (int n = 0; n < N; n++) x.steps(b[n], stage, n, i / 2);
		}
#pragma unroll
		for (int r = 0; r < R; r++) {
			uint32_t a[4];
			Format::unpack(a, v[r], i);
#pragma unroll
			for (int n = 0; n < N; n++) mma_bf16(d[r][n], a, b[n][i % 2 * 2], b[n][i % 2 * 2 + 1]);
		}
		if (BITS == 4) {
			const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
#pragma unroll
			for (int n = 0; n < N; n++) mma_bf16(e[n], ones, b[n][i % 2 * 2], b[n][i % 2 * 2 + 1]);
		}
		if ((i + 1) % (GROUP / 16) == 0) {
#pragma unroll
			for (int r = 0; r < R; r++)
#pragma unroll
				for (int n = 0; n < N; n++) Format::scale(sum[r][n], d[r][n], e[n], v[r].s[i / (GROUP / 16)]);
			clear();
		}
	}
}
template <int R, int N> KR_DEV void multiply(float (&sum)[R][N][4], const Plain::Load (&v)[R], const Tokens<N> &x, int stage) {
#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint32_t b[N][4];
#pragma unroll
		for (int n = 0; n < N; n++) x.columns(b[n], stage, n, i);
#pragma unroll
		for (int r = 0; r < R; r++) {
			const uint4 &l = v[r].q[2 * i], &h = v[r].q[2 * i + 1];
			const uint32_t a0[4] = {l.x, h.x, l.y, h.y}, a1[4] = {l.z, h.z, l.w, h.w};
#pragma unroll
			for (int n = 0; n < N; n++) {
				mma_bf16(sum[r][n], a0, b[n][0], b[n][1]);
				mma_bf16(sum[r][n], a1, b[n][2], b[n][3]);
			}
		}
	}
}

// A format's row block, and the number of its units in flight.
template <int FORMAT> struct Kept {
	static const int BITS = FORMAT <= INT4_G128 ? 4 : 8, GROUP = 32 << (FORMAT - 1) % 3;
	static const int DEPTH = BITS == 4 ? 2 : 1;
	typedef Packed<BITS, GROUP, false> type;
	KR_MEMBER static type make(const Matrix &w, int block, bool) { return type(w, block); }
	template <int R, int N> KR_MEMBER static void go(float (&sum)[R][N][4], const typename type::Load (&v)[R], const Tokens<N> &x, int stage) {
		multiply<R, N, BITS, GROUP>(sum, v, x, stage);
	}
};
template <> struct Kept<PLAIN_BF16> {
	static const int DEPTH = 1;
	typedef Plain type;
	KR_MEMBER static type make(const Matrix &w, int block, bool gate_up) { return plain_block(w, block, gate_up); }
	template <int R, int N> KR_MEMBER static void go(float (&sum)[R][N][4], const Plain::Load (&v)[R], const Tokens<N> &x, int stage) {
		multiply<R, N>(sum, v, x, stage);
	}
};

// The sums of all parts, [warps][R * N * 4][32] in shared memory.
template <int FORMAT, int R, int N, bool BIASED>
KR_DEV void sums(float *all, const Matrix &w, bool gate_up, int first_block, const bf16 *x, int x_stride, int m, int parts) {
	typedef Kept<FORMAT> K;
	const int D = K::DEPTH;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row_warps = blockDim.x / 32 / parts, part = warp / row_warps;
	const Range units(w, part, parts);
	const int from = units.from, to = units.to;
	int last = (w.rows + 63) / 64 * 4 - 1; // last block of packed weights: their tiles are whole
	int block = first_block + R * (warp % row_warps);
	typename K::type rows[R];
#pragma unroll
	for (int r = 0; r < R; r++) rows[r] = K::make(w, min(block + r, last), gate_up);
	typename K::type::Load ring[D][R];
#pragma unroll
	for (int i = 0; i < D; i++)
		if (from + i < to) {
#pragma unroll
			for (int r = 0; r < R; r++) rows[r].load(ring[i][r], from + i);
		}
	pdl_launch();
	pdl_wait();
	const uint8_t *memory = (const uint8_t *)all + part * STAGES * Tokens<N>::BYTES;
	const Tokens<N> tokens = {smem_u32(memory), memory, x, x_stride, m, w.tiles, part, row_warps};
#pragma unroll
	for (int i = 0; i < STAGES; i++) tokens.fetch(from + i, i, to);
	float sum[R][N][4];
#pragma unroll
	for (int r = 0; r < R; r++)
#pragma unroll
		for (int n = 0; n < N; n++) {
			sum[r][n][0] = sum[r][n][1] = sum[r][n][2] = sum[r][n][3] = 0.f;
			int row = 16 * (block + r) + lane / 4;
			if (BIASED && part == 0) begin_sums(sum[r][n], w, row, row + 8);
		}
	for (int u = from; u < to; u += STAGES) {
#pragma unroll
		for (int i = 0; i < STAGES; i++) {
			if (u + i < to) {
				cp_async_wait<STAGES - 1>();
				tokens.sync();
				K::go(sum, ring[i % D], tokens, i);
				if (u + i + D < to) {
#pragma unroll
					for (int r = 0; r < R; r++) rows[r].load(ring[i % D][r], u + i + D);
				}
				tokens.sync();
				tokens.fetch(u + i + STAGES, i, to);
			}
		}
	}
	cp_async_wait<0>();
	__syncthreads();
#pragma unroll
	for (int r = 0; r < R; r++)
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) all[(warp * (R * N * 4) + (r * N + n) * 4 + i) * 32 + lane] = sum[r][n][i];
	__syncthreads();
}

// out [m, rows] = x [m, columns] * transposed w. A block has 32 * row_warps rows and 8 * N
// tokens; the blocks of the same rows follow one another.
template <int FORMAT, int R, int N, bool BIASED>
KR_DEV void matrix(void *out, int wide, int out_stride, int add, const bf16 *x, int x_stride, int m, int parts, const Matrix &w, float *all) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, row_warps = warps / parts, g = lane / 4, c = lane % 4;
	int tiles = (m + 8 * N - 1) / (8 * N), first = blockIdx.x % tiles * (8 * N), first_block = blockIdx.x / tiles * (R * row_warps);
	sums<FORMAT, R, N, BIASED>(all, w, false, first_block, x + (long long)first * x_stride, x_stride, m - first, parts);
	for (int i = warp; i < row_warps * (R * N * 4); i += warps) {
		int rw = i / (R * N * 4), e = i % (R * N * 4), r = e / (4 * N), n = e / 4 % N, q = e % 4;
		int row = 16 * (first_block + R * rw + r) + g + q / 2 * 8, token = first + 8 * n + 2 * c + q % 2;
		const float *p = all + (rw * (R * N * 4) + e) * 32 + lane;
		if (token < m && row < w.rows) give(out, wide, add, (long long)token * out_stride + row, in_order(p, parts, row_warps * (R * N * 4) * 32));
	}
}

// h [m, rows / 2] = silu(gate x) * up x, in order. w is a joined matrix, or plain rows with
// gate's first.
template <int FORMAT, int R, int N>
KR_DEV void gate_up(bf16 *h, const bf16 *x, int x_stride, int m, int parts, const Matrix &w, float *all) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, row_warps = warps / parts, g = lane / 4, c = lane % 4;
	int tiles = (m + 8 * N - 1) / (8 * N), first = blockIdx.x % tiles * (8 * N), first_block = blockIdx.x / tiles * (R * row_warps);
	sums<FORMAT, R, N, false>(all, w, true, first_block, x + (long long)first * x_stride, x_stride, m - first, parts);
	for (int i = warp; i < row_warps * (R * N * 2); i += warps) {
		int rw = i / (R * N * 2), e = i % (R * N * 2), r = e / (2 * N), n = e / 2 % N, q = e % 2;
		int f = 8 * (first_block + R * rw + r) + g, token = first + 8 * n + 2 * c + q, step = row_warps * (R * N * 4) * 32;
		const float *p = all + (rw * (R * N * 4) + (r * N + n) * 4 + q) * 32 + lane;
		if (token < m && f < w.rows / 2) store(h + (long long)token * (w.rows / 2) + f, swiglu(in_order(p, parts, step), in_order(p + 64, parts, step)));
	}
}

#define WIDE_MATRIX(symbol, FORMAT, R, N, BIASED)                                                                                      \
	KR_KERNEL(256, 1)                                                                                                                 \
	symbol(void *out, int wide, int out_stride, int add, const bf16 *x, int x_stride, int m, int parts, MATRIX_ARGS(w)) {             \
		KR_SHARED(float, all);                                                                                                        \
		const Matrix w = MATRIX(w);                                                                                                   \
		matrix<FORMAT, R, N, BIASED>(out, wide, out_stride, add, x, x_stride, m, parts, w, all);                                      \
	}                                                                                                                                 \
	KR_EXPORT(symbol)
#define WIDE_KERNELS(width, name, FORMAT, R, N)                                                                                        \
	WIDE_MATRIX(kr_gemv_wide##width##_##name, FORMAT, R, N, false)                                                                    \
	WIDE_MATRIX(kr_gemv_wide##width##_biased_##name, FORMAT, R, N, true)                                                              \
	KR_KERNEL(256, 1)                                                                                                                 \
	kr_gemv_wide##width##_gate_up_##name(bf16 *h, const bf16 *x, int x_stride, int m, int parts, MATRIX_ARGS(w)) {                    \
		KR_SHARED(float, all);                                                                                                        \
		const Matrix w = MATRIX(w);                                                                                                   \
		gate_up<FORMAT, R, N>(h, x, x_stride, m, parts, w, all);                                                                      \
	}                                                                                                                                 \
	KR_EXPORT(kr_gemv_wide##width##_gate_up_##name)
#define X(name, FORMAT) WIDE_KERNELS(1, name, FORMAT, 2, 1) WIDE_KERNELS(2, name, FORMAT, 2, 2)
ALL_FORMATS(X)
#undef X
// Small groups need too many registers.
WIDE_KERNELS(4, int8_g64, INT8_G64, 2, 4)
#define X(name, FORMAT) WIDE_KERNELS(4, name, FORMAT, 2, 4) WIDE_KERNELS(4x1, name, FORMAT, 1, 4) WIDE_KERNELS(4x3, name, FORMAT, 3, 4)
X(bf16, PLAIN_BF16)
X(int4_g128, INT4_G128)
X(int8_g128, INT8_G128)
#undef X
