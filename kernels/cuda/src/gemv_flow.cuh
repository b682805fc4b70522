// Products for few tokens of whole rows of blocks: a warp's weights flow through a ring
// in shared memory, its own, filled by copies that no register waits for; activations
// are laid out in shared memory once a block. Many units a warp are on their way at a
// time, and none of its loads from the ring takes longer than a few dozen cycles. Sums
// run in the order of gemv.cuh.
#pragma once
#include "gemv.cuh"

KR_DEV uint4 lds16(const uint8_t *shared, int at) { return *reinterpret_cast<const uint4 *>(shared + at); }

// Packed weights (gemv.cuh) in a ring: a unit is what every lane reads of its values, 16
// bytes of all lanes after one another, then the scales of 16 rows, a line a group.
template <int BITS, int GROUP> struct PackedFlow : Packed<BITS, GROUP, true> {
	typedef Packed<BITS, GROUP, true> Base;
	typedef typename Base::Load Load;
	enum { VALUES = 2 * Base::LOADS * 512, UNIT = VALUES + 32 * Base::SCALES, SLOTS = BITS == 4 ? 8 : 4 };

	KR_MEMBER PackedFlow(const Matrix &w, int block, bool) : Base(w, block) {}
	KR_MEMBER void copy(uint32_t slot, int unit) const {
		int lane = threadIdx.x % 32;
		const uint8_t *p = this->values + (long long)unit * (1024 * BITS);
		bool second = this->both(unit);
#pragma unroll
		for (int i = 0; i < 2 * Base::LOADS; i++) cp_async16(slot + (i * 32 + lane) * 16, p + 2048 * i, i < Base::LOADS || second);
		if (lane < 2 * Base::SCALES) {
			int group = lane / 2;
			cp_async16(slot + VALUES + lane * 16, this->scales - threadIdx.x % 32 / 4 + (long long)(unit * Base::SCALES + group) * this->next + lane % 2 * 4,
			           group < (Base::SCALES + 1) / 2 || second);
		}
	}
	KR_MEMBER void take(Load &v, const uint8_t *slot) const {
		int lane = threadIdx.x % 32;
#pragma unroll
		for (int i = 0; i < 2 * Base::LOADS; i++) v.q[i] = lds16(slot, (i * 32 + lane) * 16);
#pragma unroll
		for (int i = 0; i < Base::SCALES; i++) v.s[i] = *reinterpret_cast<const uint32_t *>(slot + VALUES + 32 * i + lane / 4 * 4);
	}
	// b: what a lane wants of 128 permuted columns
	static KR_MEMBER void tokens(uint32_t (&b)[16], const uint8_t *p) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint4 v = lds16(p, i / 2 * 128 + threadIdx.x % 4 * 32 + i % 2 * 16);
			b[4 * i] = v.x, b[4 * i + 1] = v.y, b[4 * i + 2] = v.z, b[4 * i + 3] = v.w;
		}
	}
};

struct PlainFlow : Plain {
	enum { UNIT = 4096, SLOTS = 3 };
	KR_MEMBER PlainFlow(const Matrix &w, int block, bool gate_up) : Plain(plain_block(w, block, gate_up)) {}
	KR_MEMBER void copy(uint32_t slot, int unit) const {
		int lane = threadIdx.x % 32;
		bool second = both(unit);
		const bf16 *l = lo + (long long)unit * 128, *h = hi + (long long)unit * 128;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			bool ok = i < 2 || second;
			cp_async16(slot + (2 * i * 32 + lane) * 16, ok ? l + 32 * i : l, ok);
			cp_async16(slot + ((2 * i + 1) * 32 + lane) * 16, ok ? h + 32 * i : h, ok);
		}
	}
	KR_MEMBER void take(Load &v, const uint8_t *slot) const {
#pragma unroll
		for (int i = 0; i < 8; i++) v.q[i] = lds16(slot, (i * 32 + threadIdx.x % 32) * 16);
	}
	static KR_MEMBER void tokens(uint32_t (&b)[16], const uint8_t *p) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint4 v = lds16(p, i * 64 + threadIdx.x % 4 * 16);
			b[4 * i] = v.x, b[4 * i + 1] = v.y, b[4 * i + 2] = v.z, b[4 * i + 3] = v.w;
		}
	}
};

template <int FORMAT> struct FlowOf {
	typedef PackedFlow<FORMAT <= INT4_G128 ? 4 : 8, 32 << (FORMAT - 1) % 3> type;
};
template <> struct FlowOf<PLAIN_BF16> {
	typedef PlainFlow type;
};

// A warp's ring.
struct Ring {
	uint8_t *memory;
	uint32_t at; // the same place
	KR_MEMBER Ring(uint8_t *p) : memory(p), at(smem_u32(p)) {}
};

template <class F> KR_DEV void start_unit(const Ring &r, const F &w, int unit, int to, int slot) {
	if (unit < to) w.copy(r.at + slot * F::UNIT, unit);
	cp_async_commit();
}
// Sends the first units on their way.
template <class F> KR_DEV void begin_flow(const Ring &r, const F &w, int from, int to) {
#pragma unroll
	for (int i = 0; i < F::SLOTS - 1; i++) start_unit(r, w, from + i, to, i);
}
// Units from..to-1, begun before, with the token whose unit u lies at token + u * step.
template <class F> KR_DEV void flow(float (&sum)[4], const Ring &r, const F &w, int from, int to, const uint8_t *token, int step) {
	int slot = 0, free = F::SLOTS - 1;
	for (int u = from; u < to; u++) {
		cp_async_wait<F::SLOTS - 2>();
		__syncwarp(); // scales are copied by other lanes; and nobody reads the slot before any more
		start_unit(r, w, u + F::SLOTS - 1, to, free);
		free = slot;
		typename F::Load v;
		w.take(v, r.memory + slot * F::UNIT);
		uint32_t b[16];
		F::tokens(b, token + u * step);
		w.template multiply<true>(sum, v, b, Token(), u);
		if (++slot == F::SLOTS) slot = 0;
	}
}

// Rows of activations in shared memory: 256 bytes of zeros, which stand for tokens that
// are not there, then rows of whole units, 16 bytes apart so that 8 of them lie in
// different banks.
enum { ZEROS = 256 };
KR_DEV int staged_stride(int tiles) { return (tiles + 1) / 2 * 256 + 16; }

KR_DEV void stage_zeros(uint8_t *to) {
	if (threadIdx.x < ZEROS / 16) reinterpret_cast<uint4 *>(to)[threadIdx.x] = make_uint4(0, 0, 0, 0);
}

// Copies rows 0..n-1 of tiles * 64 columns, row r from row(r), by the whole block; without
// a barrier. PERMUTE: rows lie in order and become permuted.
template <bool PERMUTE, class Row> KR_DEV void stage(uint8_t *to, int n, int tiles, Row row) {
	int stride = staged_stride(tiles), chunks = (tiles + 1) / 2 * 16, total = n * chunks;
	for (int first = threadIdx.x; first < total; first += 4 * blockDim.x) {
		uint4 v[4];
#pragma unroll
		for (int i = 0; i < 4; i++) { // so many loads on their way together
			int at = first + i * blockDim.x, r = at / chunks, u = at % chunks;
			if (at < total) v[i] = u < tiles * 8 ? *(reinterpret_cast<const uint4 *>(row(r)) + u) : make_uint4(0, 0, 0, 0);
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int at = first + i * blockDim.x, r = at / chunks, u = at % chunks;
			if (at >= total) continue;
			uint8_t *p = to + r * stride;
			if (!PERMUTE) {
				*reinterpret_cast<uint4 *>(p + 16 * u) = v[i];
				continue;
			}
			// pair j of the 8 columns goes to 32 * j; neighbouring tiles begin with another
#pragma unroll
			for (int k = 0; k < 4; k++) {
				int j = (k + u / 8) % 4;
				uint32_t pair = j == 0 ? v[i].x : j == 1 ? v[i].y : j == 2 ? v[i].z : v[i].w;
				*reinterpret_cast<uint32_t *>(p + u / 8 * 128 + j * 32 + u % 8 * 4) = pair;
			}
		}
	}
}

// A lane's token among staged rows: its first unit, and what it is to the next.
struct Staged {
	const uint8_t *at;
	int step;
	KR_MEMBER Staged(const uint8_t *zeros, const uint8_t *rows, int stride, int token, bool on) : at(on ? rows + token * stride : zeros), step(on ? 256 : 0) {}
};

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
