// Products for few tokens of blocks of several rows: activations are laid out in shared
// memory once a block, permuted, so that a warp has those of 128 columns with four loads
// that take a few dozen cycles. Weights are called into the L2 cache, all of a warp's at
// once, before the block waits for anything; they go from there to registers as in
// gemv.cuh, and sums run in its order.
#pragma once
#include "gemv.cuh"

KR_DEV uint4 lds16(const uint8_t *shared, int at) { return *reinterpret_cast<const uint4 *>(shared + at); }

// How the activations of a unit are read: of format A, permuted, or of plain rows.
template <int FORMAT> struct FlowOf : FormatOf<FORMAT, true>::type {
	typedef typename FormatOf<FORMAT, true>::type Base;
	KR_MEMBER FlowOf(const Matrix &w, int block, bool) : Base(w, block) {}
	static KR_MEMBER int place(int i) { return i / 2 * 128 + threadIdx.x % 4 * 32 + i % 2 * 16; }
	// Units from..to-1: 512 of every 2048 bytes are this row block's.
	KR_MEMBER void call(int from, int to) const {
		const int PIECES = Base::LOADS * 2;
		int lane = threadIdx.x % 32, end = min(to * PIECES, this->tiles * Base::LOADS);
		const uint8_t *p = this->values - 16 * lane + lane % 4 * 128;
		for (int i = from * PIECES + lane / 4; i < end; i += 8) prefetch_l2(p + (long long)i * 2048);
	}
};
template <> struct FlowOf<PLAIN_BF16> : Plain {
	KR_MEMBER FlowOf(const Matrix &w, int block, bool gate_up) : Plain(plain_block(w, block, gate_up)) {}
	static KR_MEMBER int place(int i) { return i * 64 + threadIdx.x % 4 * 16; }
	KR_MEMBER void call(int, int) const {} // longer rows, fewer to a warp: loads suffice
};

// Rows of activations in shared memory: 256 bytes of zeros, which stand for tokens that
// are not there, then rows of whole units, 16 bytes apart so that 8 of them lie in
// different banks.
enum { ZEROS = 256 };
KR_DEV int staged_stride(int tiles) { return (tiles + 1) / 2 * 256 + 16; }

KR_DEV void stage_zeros(uint8_t *to) {
	if (threadIdx.x < ZEROS / 16) reinterpret_cast<uint4 *>(to)[threadIdx.x] = make_uint4(0, 0, 0, 0);
}

// 8 columns of a row, the chunk-th. PERMUTE: pair j of them goes 32 * j bytes further, so
// that what a lane wants of a tile lies together (permuted).
template <bool PERMUTE> KR_DEV void put_chunk(uint8_t *row, int chunk, uint4 v) {
	if (!PERMUTE) {
		*reinterpret_cast<uint4 *>(row + 16 * chunk) = v;
		return;
	}
	uint32_t *p = reinterpret_cast<uint32_t *>(row + chunk / 8 * 128 + chunk % 8 * 4);
	p[0] = v.x, p[8] = v.y, p[16] = v.z, p[24] = v.w;
}

// Copies rows 0..n-1 of tiles * 64 columns, row r from row(r), by the whole block, AHEAD
// pieces a warp on their way together; without a barrier. row is called by whole warps.
template <bool PERMUTE, int AHEAD, class Row> KR_DEV void stage(uint8_t *to, int n, int tiles, Row row) {
	int lane = threadIdx.x % 32, warps = blockDim.x / 32, stride = staged_stride(tiles), chunks = (tiles + 1) / 2 * 16;
	int pieces = (chunks + 31) / 32, total = n * pieces;
	for (int first = threadIdx.x / 32; first < total; first += AHEAD * warps) {
		uint4 v[AHEAD];
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			int at = first + i * warps, r = at / pieces, u = (at - r * pieces) * 32 + lane;
			v[i] = make_uint4(0, 0, 0, 0);
			if (at < total) {
				const uint4 *p = reinterpret_cast<const uint4 *>(row(r));
				if (u < tiles * 8) v[i] = p[u];
			}
		}
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			int at = first + i * warps, r = at / pieces, u = (at - r * pieces) * 32 + lane;
			if (at < total && u < chunks) put_chunk<PERMUTE>(to + r * stride, u, v[i]);
		}
	}
}

// A lane's token among staged rows: its first unit, and what it is to the next.
struct Staged {
	const uint8_t *at;
	int step;
	KR_MEMBER Staged(const uint8_t *zeros, const uint8_t *rows, int stride, int token, bool on) : at(on ? rows + token * stride : zeros), step(on ? 256 : 0) {}
};

// Units from..to-1 of a product with a token in shared memory, added to sum.
template <class F> KR_DEV void flow(float (&sum)[4], const F &w, int from, int to, const Staged &token) {
	const int D = F::DEPTH;
	typename F::Load ring[D];
#pragma unroll
	for (int i = 0; i < D; i++)
		if (from + i < to) w.load(ring[i], from + i);
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
				w.template multiply<true>(sum, ring[i], b, Token(), u + i);
				if (u + i + D < to) w.load(ring[i], u + i + D);
			}
		}
	}
}

// How the warps of a block are shared out: row_warps rows of 16, parts of the columns of
// each. Warps beyond that only take part in what the block does together.
struct Cut {
	int row, part, rows, parts; // row < rows, part < parts
	bool works;
	KR_MEMBER Cut(int parts_of, int warps) : parts(parts_of) {
		int warp = threadIdx.x / 32;
		rows = 8;
		while (rows * parts > warps) rows /= 2;
		row = warp % rows, part = warp / rows;
		works = part < parts;
	}
	// Reports whether the block has any of a matrix' rows, if this warp has row block
	// block; a warp behind the last row does not work.
	KR_MEMBER bool within(int block, int matrix_rows) {
		if (16 * block >= matrix_rows) works = false;
		return 16 * (block - row) < matrix_rows;
	}
	// Adds up the parts of a row in order; the warps of part 0 have the result. results:
	// [warps][32] of shared memory that nobody uses any more.
	KR_MEMBER void join(float (&sum)[4], float4 *results) const {
		if (parts == 1) return;
		results[threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
		__syncthreads();
		if (part != 0) return;
		for (int i = 1; i < parts; i++) {
			float4 v = results[(i * rows + row) * 32 + threadIdx.x % 32];
			sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
		}
	}
};
