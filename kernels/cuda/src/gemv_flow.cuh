// Products for few tokens in blocks of several rows. A block copies activations to shared memory
// once, permuted, so that a warp reads those of 128 columns with four loads that take a few dozen
// cycles. Weights go to registers as in gemv.cuh, the first ones before the block waits for
// anything, and sums run in the same order.
//
// A warp has only some 1,000 instructions of products, so the instructions before and after them
// matter: there are no divisions and few tests.
#pragma once
#include "gemv.cuh"

KR_DEV uint4 lds16(const uint8_t *shared, int at) { return *reinterpret_cast<const uint4 *>(shared + at); }

// How the activations of a unit are read: permuted for packed weights, in order for plain rows.
template <int FORMAT> struct FlowOf : FormatOf<FORMAT, true>::type {
	typedef typename FormatOf<FORMAT, true>::type Base;
	// The number of units in flight: fewer than Base::DEPTH where that makes room for more warps.
	enum { FLOW_DEPTH = FORMAT == INT4_G128 || FORMAT == INT3_G128 ? 2 : FORMAT == INT8_G128 ? 1 : Base::DEPTH };
	KR_MEMBER FlowOf(const Matrix &w, int block, bool) : Base(w, block) {}
	static KR_MEMBER int place(int i) { return i / 2 * 128 + threadIdx.x % 4 * 32 + i % 2 * 16; }
};
template <> struct FlowOf<PLAIN_BF16> : Plain {
	enum { FLOW_DEPTH = DEPTH };
	KR_MEMBER FlowOf(const Matrix &w, int block, bool gate_up) : Plain(plain_block(w, block, gate_up)) {}
	static KR_MEMBER int place(int i) { return i * 64 + threadIdx.x % 4 * 16; }
};

// Rows of activations in shared memory: first 256 bytes of zeros, which stand for missing tokens,
// then rows of whole units. Rows are 16 bytes apart so that 8 of them lie in different banks.
enum { ZEROS = 256 };
KR_DEV int staged_stride(int tiles) { return (tiles + 1) / 2 * 256 + 16; }

KR_DEV void stage_zeros(uint8_t *to) {
	if (threadIdx.x < ZEROS / 16) reinterpret_cast<uint4 *>(to)[threadIdx.x] = make_uint4(0, 0, 0, 0);
}

// Copies a row of tiles * 64 columns with threads first, first + step, ...
template <bool PERMUTE> KR_DEV void stage_row(uint8_t *to, const bf16 *row, int tiles, int first, int step) {
#pragma unroll 1
	for (int u = first; u < (tiles + 1) / 2 * 16; u += step)
		put_chunk<PERMUTE>(to, u, u < tiles * 8 ? reinterpret_cast<const uint4 *>(row)[u] : make_uint4(0, 0, 0, 0));
}
// Copies two chunks at a time, for a row that nothing else hides the wait for.
template <bool PERMUTE> KR_DEV void stage_alone(uint8_t *to, const bf16 *row, int tiles, int first, int step) {
	int chunks = (tiles + 1) / 2 * 16;
#pragma unroll 1
	for (int u = first; u < chunks; u += 2 * step) {
		uint4 v = make_uint4(0, 0, 0, 0), w = v;
		if (u < tiles * 8) v = reinterpret_cast<const uint4 *>(row)[u];
		if (u + step < tiles * 8) w = reinterpret_cast<const uint4 *>(row)[u + step];
		put_chunk<PERMUTE>(to, u, v);
		if (u + step < chunks) put_chunk<PERMUTE>(to, u + step, w);
	}
}
// Copies rows 0..n-1 by the whole block, two at a time, without a barrier; row(r) is row r. Whole
// warps call row.
template <bool PERMUTE, class Row> KR_DEV void stage(uint8_t *to, int n, int tiles, Row row) {
	int stride = staged_stride(tiles), chunks = (tiles + 1) / 2 * 16;
	if (n & 1) {
		stage_row<PERMUTE>(to, row(0), tiles, threadIdx.x, blockDim.x);
		to += stride;
	}
#pragma unroll 1
	for (int r = n & 1; r < n; r += 2, to += 2 * stride) {
		const uint4 *one = reinterpret_cast<const uint4 *>(row(r)), *two = reinterpret_cast<const uint4 *>(row(r + 1));
#pragma unroll 1
		for (int u = threadIdx.x; u < chunks; u += blockDim.x) {
			uint4 v = make_uint4(0, 0, 0, 0), w = v;
			if (u < tiles * 8) v = one[u], w = two[u];
			put_chunk<PERMUTE>(to, u, v);
			put_chunk<PERMUTE>(to + stride, u, w);
		}
	}
}

// A lane's token among the staged rows: its first unit, and the distance to the next.
struct Staged {
	const uint8_t *at;
	int step;
	KR_MEMBER Staged(const uint8_t *zeros, const uint8_t *rows, int stride, int token, bool on) : at(on ? rows + token * stride : zeros), step(on ? 256 : 0) {}
};

enum { NO_HALF = 1 << 20 };

// Adds the product of units from..to-1 to sum. ready() is called once, when the first weights are
// in flight, and returns the token in shared memory. Unless half is NO_HALF, the last half units
// are a part of their own: memory keeps the sums of the part before it, to which this part is
// added.
template <class F, class Ready> KR_DEV void flow(float (&sum)[4], const F &w, int from, int to, int half, uint8_t *memory, Ready ready) {
	const int D = F::FLOW_DEPTH;
	typename F::Load ring[D];
#pragma unroll
	for (int i = 0; i < D; i++)
		if (from + i < to) w.load(ring[i], from + i);
	const Staged token = ready();
	const uint8_t *at = token.at + from * token.step;
	for (int u = from; u < to; u += D) {
#pragma unroll
		for (int i = 0; i < D; i++) {
			if (u + i < to) {
				uint32_t b[16];
#pragma unroll
				for (int j = 0; j < 4; j++) {
					uint4 v = lds16(at, F::place(j));
					b[4 * j] = v.x, b[4 * j + 1] = v.y, b[4 * j + 2] = v.z, b[4 * j + 3] = v.w;
				}
				at += token.step;
				if (half < NO_HALF && u + i + half == to) {
					reinterpret_cast<float4 *>(memory)[threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
					sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
				}
				w.template multiply<true>(sum, ring[i], b, Token(), u + i);
				if (u + i + D < to) w.load(ring[i], u + i + D);
			}
		}
	}
	if (half < NO_HALF) {
		float4 v = reinterpret_cast<float4 *>(memory)[threadIdx.x];
		sum[0] = v.x + sum[0], sum[1] = v.y + sum[1], sum[2] = v.z + sum[2], sum[3] = v.w + sum[3];
	}
}

// The number of parts into which a row is cut. times and over are exact for n * parts below 2^16
// (over is 2^16 / parts, rounded up, from the host).
struct Parts {
	int n, over;
	KR_MEMBER int divide(int v) const { return (v * over) >> 16; }
	// The units of part i of w: Range of gemv.cuh.
	KR_MEMBER void range(int &from, int &to, const Matrix &w, int i) const {
		int units = (w.tiles + 1) / 2;
		from = divide(units * i), to = divide(units * (i + 1));
	}
};

// How the work is distributed over the warps of a block: 2^shift blocks of 16 rows, and `parts`
// parts of the columns of each. Other warps only take part in the work that the whole block does
// together.
//
// Small experts have twice as many parts for few rows, so that a GPU has enough warps. The parts
// are added two by two (pairs). For many rows a warp has both parts of a pair (half), and the
// sums are the same.
struct Cut {
	int row, part, shift, parts, pairs;
	int from, to, half; // in units; half: as for flow
	bool works;
	KR_MEMBER Cut(int shift_of, const Parts &p, int pairs_of, int half_of, const Matrix &w) : shift(shift_of), parts(p.n), pairs(pairs_of), half(half_of) {
		int warp = threadIdx.x / 32;
		row = warp & ((1 << shift) - 1), part = warp >> shift;
		works = part < parts;
		p.range(from, to, w, part);
	}
	// Reports whether the block has any rows of the matrix, if this warp has row block `block`. A
	// warp past the last row does not work.
	KR_MEMBER bool within(int block, int matrix_rows) {
		if (16 * block >= matrix_rows) works = false;
		return 16 * (block - row) < matrix_rows;
	}
	// Adds the parts of a row in order; the warps of part 0 get the result. results: [warps][32]
	// of shared memory that is not in use.
	KR_MEMBER void join(float (&sum)[4], float4 *results) const {
		if (parts == 1) return;
		results[threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
		__syncthreads();
		if (part != 0) return;
#pragma unroll 1
		for (int i = 1; i < parts; i += 1 + pairs) {
			float4 v = results[((i << shift) + row) * 32 + threadIdx.x % 32];
			if (pairs && i > 1) {
				float4 before = results[(((i - 1) << shift) + row) * 32 + threadIdx.x % 32];
				v = make_float4(before.x + v.x, before.y + v.y, before.z + v.z, before.w + v.w);
			}
			sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
		}
	}
};
