// Grouped products for Hopper: wgmma with weights as the A operand from registers and activations
// as the B operand from shared memory. A warpgroup has 64 stored rows.
//
// A tile of 64 columns is multiplied in two halves, each with its own set of registers. A half is
// unpacked while the half before it is multiplied, and its product is started before the wait for
// that one. So a product is running at every point, barriers included. (Unpacking a whole tile
// before that wait looks the same in C++, but the compiler moves it behind the wait to save
// registers; with halves there is nothing to save.)
//
// Activations are copied to a ring in shared memory. Copies run two tiles less ahead than the
// ring has stages: when all warps have started tile k, only tile k-2 is finished. For small tiles
// of tokens the weights are copied too: there memory is the limit, and needs some 18 KiB in
// flight per multiprocessor. With 128 tokens shared memory is busy enough, and weights go
// directly to registers, one and a half tiles ahead.
#include "moe.cuh"

#ifdef KR_HOPPER

// The product of one tile of up to TN tokens.
template <int BITS, int GROUP, int TN, int GROUPS, int STAGES, bool STAGED, class J> KR_DEV void tile_h(const J &j, const Tile &t, unsigned char *shared) {
	typedef Packed<BITS, GROUP> Weights;
	const int THREADS = 128 * GROUPS, ROWS = 64 * GROUPS;
	typedef Gather<TN, THREADS> Tokens;
	// A stage of the ring: activations, then each thread's weights and scales.
	const int PLACES = THREADS * 16, SCALE_PLACES = THREADS * 4, SCALES_AT = Tokens::BYTES + Weights::PIECES * PLACES;
	const int STAGE = STAGED ? SCALES_AT + Weights::PIECES * Weights::SCALES * SCALE_PLACES : Tokens::BYTES;
	int *rows = reinterpret_cast<int *>(shared + output_rows_at(STAGES * STAGE, TN, ROWS));
	if (threadIdx.x < TN) rows[threadIdx.x] = (int)threadIdx.x < t.count ? row_of(j, t, threadIdx.x) : -1;

	Tokens x(j, t);
	const int local = threadIdx.x / 32, whole = blockIdx.x * (ROWS / 16) + local, tiles = j.tile_cols;
	Weights w(j, t.expert, whole);
	struct Packets { // of a tile
		typename Weights::Piece piece[Weights::PIECES];
	};
	auto load = [&](Packets &p, int tile) {
#pragma unroll
		for (int i = 0; i < Weights::PIECES; i++) w.load(p.piece[i], i, tile * Weights::PIECES + i);
		w.values += Weights::PIECES * Weights::PIECE;
	};
	// The positions of the next tile to copy and of the next to multiply. They advance with the
	// tiles, because computing them anew takes longer.
	struct Place {
		int slot;
		uint32_t offset, scale_offset; // of this thread's
		KR_MEMBER void next() {
			slot++;
			offset += STAGE;
			scale_offset += STAGE;
			if (slot == STAGES) {
				slot = 0;
				offset -= STAGES * STAGE;
				scale_offset -= STAGES * STAGE;
			}
		}
	};
	const uint32_t ring = smem_u32(shared);
	Place in = {0, x.to, SCALES_AT + 4 * threadIdx.x}, out = in;
	in.offset += ring;
	in.scale_offset += ring;
	auto copy = [&](int tile) { // commits a group even if nothing is left, because groups count tiles
		if (tile < tiles) {
			x.copy(in.offset, 0);
			x.x += 8;
			if (STAGED) {
#pragma unroll
				for (int i = 0; i < Weights::PIECES; i++)
					w.copy(in.offset + Tokens::BYTES + i * PLACES, in.scale_offset + i * Weights::SCALES * SCALE_PLACES, SCALE_PLACES, i,
					       tile * Weights::PIECES + i);
				w.values += Weights::PIECES * Weights::PIECE;
			}
		}
		in.next();
		cp_async_commit();
	};
	// Waits for the thread's own part of the next tile.
	auto arrive = [&](Packets &p) {
		cp_async_wait<STAGES - 3>();
#pragma unroll
		for (int i = 0; STAGED && i < Weights::PIECES; i++)
			Weights::fetch(p.piece[i], shared + out.offset + Tokens::BYTES + i * PLACES,
			               shared + out.scale_offset + i * Weights::SCALES * SCALE_PLACES, SCALE_PLACES);
	};
	Packets even, odd;
	if (!STAGED) {
		load(even, 0);
		odd = even;
		if (tiles > 1) load(odd, 1);
	}
#pragma unroll
	for (int k = 0; k < STAGES - 2; k++) copy(k);

	float d[TN / 2];
#pragma unroll
	for (int i = 0; i < TN / 2; i++) d[i] = 0.f;
	uint32_t first[2][4], second[2][4]; // the A operand of a half, two steps of 16 columns
	auto unpack = [&](uint32_t(&a)[2][4], const Packets &p, int half) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int step = 2 * half + i;
			Weights::operand(a[i], p.piece[step / Weights::STEPS], step % Weights::STEPS);
		}
	};
	auto start = [&](const uint32_t(&a)[2][4], uint64_t b) {
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < 2; i++) wgmma_rs<TN>(d, a[i], b + 2 * i);
		wgmma_commit();
	};
	uint64_t b = wgmma_desc(ring); // of tile k
	auto multiply = [&](int k, Packets &now, Packets &then) {
		fence_async();
		__syncthreads();
		start(first, b);
		copy(k + STAGES - 2);
		wgmma_wait<1>();
		unpack(second, now, 1);
		if (!STAGED && k + 2 < tiles) load(now, k + 2);
		start(second, b + 4);
		out.next();
		b += STAGE / 16;
		if (out.slot == 0) b -= STAGES * STAGE / 16;
		wgmma_wait<1>();
		arrive(then);
		unpack(first, then, 0);
	};
	arrive(even);
	unpack(first, even, 0);
	int k = 0;
	for (; k + 1 < tiles; k += 2) {
		multiply(k, even, odd);
		multiply(k + 1, odd, even);
	}
	if (k < tiles) multiply(k, even, odd);
	wgmma_wait<0>();
	__syncthreads();
	const int pitch = pitch_of(j.mode == TO_HIDDEN ? ROWS / 2 : ROWS);
	float(&sums)[TN / 8][4] = reinterpret_cast<float(&)[TN / 8][4]>(d);
	if constexpr (J::BIASED) j.add(sums, whole);
	take<TN>(j, sums, w.last_scale(), rows, shared, pitch, local, whole);
	__syncthreads();
	give<TN, ROWS, THREADS>(j, rows, shared, pitch);
}

template <int BITS, int GROUP, int TN, int GROUPS, class J> KR_DEV void grouped_h(const J &j, unsigned char *shared) {
	const int STAGES = TN == 128 ? 5 : 6;
	const bool STAGED = TN < 128; // weights are in the ring too
	pdl_wait();
	pdl_launch();
	const Tile t = tile_of(j, TN);
	if (t.count < 1) return;
	// An expert's last tile is half empty on average, so a half tile takes half the
	// multiplications. (Not with two scales per tile, which leave no register for this.)
	const bool HALVES = TN > 32 && !(GROUP == 32 && TN == 128 && GROUPS == 2);
	if (!HALVES || t.count > TN / 2) {
		tile_h<BITS, GROUP, TN, GROUPS, STAGES, STAGED>(j, t, shared);
	} else if constexpr (HALVES) {
		tile_h<BITS, GROUP, TN / 2, GROUPS, STAGES, STAGED>(j, t, shared);
	}
}

#define GROUPED_KERNEL(name, BITS, GROUP, TN, GROUPS, BLOCKS, J)     \
	KR_KERNEL(128 * GROUPS, BLOCKS) name(ARGS_OF_##J) {              \
		KR_SHARED(unsigned char, shared);                            \
		const J job = VALUES_OF_##J;                                 \
		grouped_h<BITS, GROUP, TN, GROUPS>(job, shared);             \
	}                                                                \
	KR_EXPORT(name)
// The tokens of a tile, and x4: four warpgroups, one block per multiprocessor.
#define VARIANTS(name, BITS, GROUP, J)              \
	GROUPED_KERNEL(name##_t32_h, BITS, GROUP, 32, 2, 3, J) \
	GROUPED_KERNEL(name##_t64_h, BITS, GROUP, 64, 2, 2, J) \
	GROUPED_KERNEL(name##_t128_h, BITS, GROUP, 128, 2, 2, J) \
	GROUPED_KERNEL(name##_t128x4_h, BITS, GROUP, 128, 4, 1, J)
#define X(name, BITS, GROUP) VARIANTS(kr_moe_##name, BITS, GROUP, Job)
ALL_FORMATS(X)
#undef X
#define X(name, BITS, GROUP) VARIANTS(kr_moe_biased_##name, BITS, GROUP, BiasedJob)
GROUPED_FORMATS(X)
#undef X
#endif
