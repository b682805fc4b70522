// A mixture of experts for few tokens: gate and up, then down, with a shared network next to the
// routed ones (gemv_flow.cuh has the core, gemv_combine.cu the sum over the experts). Grids and the
// parts of a row depend on shapes only. There is one kernel per format of weights. Kernels with a
// routed and a shared network exist for equal formats, and for an INT8 shared network with INT3 or
// INT4 experts. Experts with biases or an activation of their own have kernels without a shared
// network, so that the others need no registers for them.
#include "gemv_flow.cuh"
#include "coming.cuh"
#include "norm.cuh"
#include "route.cuh"
#include "rowgate.cuh"

// Blocks of 256 threads per multiprocessor: as many as registers allow without a spill.
#ifdef KR_HOPPER
#define MOST_BLOCKS 4
#else
#define MOST_BLOCKS 3
#endif
#define BLOCKS_OF(FORMAT) \
	((FORMAT) == INT4_G128 || (FORMAT) == INT3_G128 ? MOST_BLOCKS : (FORMAT) == INT4_G32 || (FORMAT) == INT4_G64 || (FORMAT) == INT8_G64 ? 2 : 3)

// The kernels of a name: of each pair of formats, routed and shared.
#define MIXTURE_KERNELS(KERNEL, prefix)                         \
	ALIKE(KERNEL, prefix, false)                                \
	ALIKE(KERNEL, prefix##_biased, true)                        \
	KERNEL(prefix##_int4_g128_int8_g128, INT4_G128, INT8_G128, false) \
	KERNEL(prefix##_int3_g128_int8_g128, INT3_G128, INT8_G128, false)
#define ALIKE(KERNEL, prefix, BIASED)                           \
	KERNEL(prefix##_bf16, PLAIN_BF16, PLAIN_BF16, BIASED)       \
	KERNEL(prefix##_int4_g32, INT4_G32, INT4_G32, BIASED)       \
	KERNEL(prefix##_int4_g64, INT4_G64, INT4_G64, BIASED)       \
	KERNEL(prefix##_int4_g128, INT4_G128, INT4_G128, BIASED)    \
	KERNEL(prefix##_int8_g32, INT8_G32, INT8_G32, BIASED)       \
	KERNEL(prefix##_int8_g64, INT8_G64, INT8_G64, BIASED)       \
	KERNEL(prefix##_int8_g128, INT8_G128, INT8_G128, BIASED)    \
	KERNEL(prefix##_int3_g64, INT3_G64, INT3_G64, BIASED)       \
	KERNEL(prefix##_int3_g128, INT3_G128, INT3_G128, BIASED)

// Up to 8 tokens of one expert.
struct Tile {
	int expert;       // below 0: no work
	int count;        // the number of tokens
	const int *slots; // their assignments; null: only one, single
	int single;
};
KR_DEV int slot_of(const Tile &t, int i) { return t.slots ? __ldcg(t.slots + i) : t.single; }

// The assignments of the routed experts: sorted (tiles, slots and count as in
// kernels/cuda/route.Aligned), or else in the order of ids [m * top_k].
struct Work {
	const int *ids;
	const int4 *tiles;
	const int *slots, *count;
	int top_k, experts, over; // over: 2^16 / top_k, rounded up
	const int *map;           // [experts]: the bank's slot of each, below 0: none; null: its own number

	KR_MEMBER int token(int slot) const { return (slot * over) >> 16; }
	KR_MEMBER Tile at(int i) const {
		Tile t = {-1, 1, 0, i};
		if (!tiles) {
			t.expert = expert(i);
		} else if (i < __ldcg(count)) {
			int4 v = __ldcg(tiles + i);
			t = Tile{v.x, v.z, slots + v.y, 0};
		}
		return t;
	}
	KR_MEMBER int expert(int slot) const {
		int e = id(slot);
		return e < experts ? where(e) : -1;
	}
	KR_MEMBER int id(int slot) const { return __ldcg(ids + slot); }
	KR_MEMBER int where(int e) const { return map && e >= 0 ? __ldcg(map + e) : e; }
	// Prefetches the map into the L2 cache while the kernel waits: the previous step was the last
	// to read it.
	KR_MEMBER void call_map() const {
		for (int i = 32 * threadIdx.x; map && i < experts; i += 32 * blockDim.x) prefetch_l2(map + i);
	}
};

// The router's logits, from which a kernel chooses experts itself. For few tokens this costs less
// than waiting for a block that chooses for all. At most 64 experts. parts, n and logits: as for
// sums_of(). n 0: ids and weights are already there.
struct Unchosen {
	float *parts;
	int n;
	float *logits;
	int logits_stride, tokens;
	const float *bias;
	Router router;

	// Chooses the experts of a token, with the first warps of a block. out: also writes its
	// logits.
	KR_MEMBER void choose_for(int token, bool out, FewChosen &to, int warps) const {
		Sums s = sums_of(parts, n, logits, logits_stride, tokens, router.experts);
		if (!out) s.out = nullptr;
		to.choose(token, s, bias, router, warps);
	}
	// One warp writes ids and weights after that, in their order.
	KR_MEMBER void order(const FewChosen &from, int *ids, float *weights) const { order_chosen(ids, weights, from.ids, from.scores, bias, router); }
};
#define UNCHOSEN_ARGS                                                                                                               \
	float *parts_of, int n_parts, float *logits, int logits_stride, const float *bias, int sigmoid, int of_groups, int top_groups, int top2, \
	    int normalize, float scale
#define UNCHOSEN(tokens, experts, k) \
	{ parts_of, n_parts, logits, logits_stride, tokens, bias, {experts, k, sigmoid, of_groups, top_groups, top2, normalize, scale} }

// The routed experts' matrices, step bytes apart, their scales, scale_step bytes apart, and their biases.
struct Bank {
	Matrix first;
	long long step, scale_step, bias_step;
	KR_MEMBER Matrix operator[](int expert) const {
		Matrix w = first;
		w.values += expert * step;
		w.scales = (const uint32_t *)((const uint8_t *)w.scales + expert * scale_step);
		if (w.bias) w.bias = (const float *)((const uint8_t *)w.bias + expert * bias_step);
		return w;
	}
};
#define BANK_ARGS(w) long long w##_step, long long w##_scale_step, long long w##_bias_step, MATRIX_ARGS(w)
#define BANK(w) \
	{ MATRIX(w), w##_step, w##_scale_step, w##_bias_step }

// The layout of a block's shared memory: results of its warps, zeros, rows of activations. tokens
// is the most rows, shared_rows the number of rows of the grid that belong to the shared network.
struct Plan {
	int m, tokens, groups; // the number of groups of tokens
	int shift, shared_shift; // of Cut
	Parts parts, shared_parts;
	int pairs, half; // of Cut; half is unused if the shared network has another format
	int shared_rows;
};
enum { RESULTS = 8 * 512, ROWS = RESULTS + ZEROS };

// A block of the shared network: its rows of weights and its tokens.
struct SharedBlock {
	int first, n; // the number of tokens
	int block;    // this warp's block of 16 rows
	bool none;    // the block has no work
	KR_MEMBER SharedBlock(const Plan &p, Cut &cut, int rows) {
		int i = blockIdx.y * gridDim.x + blockIdx.x, rest = 0; // blocks with the same rows follow one another
		if (p.groups > 1) rest = i % p.groups, i /= p.groups;
		first = rest * p.tokens, n = min(p.tokens, p.m - first);
		block = (i << cut.shift) + cut.row;
		none = !cut.within(block, rows);
	}
};

// The sums of a warp's 16 rows and n tokens. stage_rows() copies the tokens to shared memory; all
// threads of the block call it, and it waits for the kernel before this one.
template <class F, class Stage> KR_DEV void multiply_staged(float (&sum)[4], const Cut &cut, const F &w, int tiles, int n, uint8_t *memory, Stage stage_rows) {
	int g = threadIdx.x % 32 / 4;
	auto ready = [&] {
		stage_rows();
		__syncthreads();
		return Staged(memory + RESULTS, memory + ROWS, staged_stride(tiles), g, g < n);
	};
	flow(sum, w, cut.from, cut.works ? cut.to : cut.from, cut.half, memory, ready);
	cut.join(sum, (float4 *)memory);
}

// The rows whose norm is x, and the norm's arguments. kind: threads of NormRows * 4, 2 for a norm of
// bf16, 1 for rows of bf16.
#define NORM_OF_ARGS const void *of, int of_stride, const void *norm, float eps, int norm_kind
#define NORM_OF(m, cols) NormRows{of, of_stride, (norm_kind & 1) != 0, m, cols, norm, (norm_kind & 2) != 0, eps, norm_kind >> 2, 0, 0}

// Puts the norms of a shared block's tokens in shared memory, as stage() puts rows that are there.
// Rows are whole units long, so norm_step() is staged_stride().
template <bool PERMUTE> KR_DEV void norm_staged(uint8_t *memory, const NormRows &of, const SharedBlock &b) {
	NormRows n = of;
	n.x = row_of(of.x, b.first, of.stride, of.half), n.m = b.n;
	auto there = [] {};
	if constexpr (PERMUTE) norm_rows<false>((bf16 *)(memory + ROWS), (float *)memory, n, Permuting(), there);
	else norm_rows<false>((bf16 *)(memory + ROWS), (float *)memory, n, InOrder(), there);
}

// Stores act of gate and up of 8 features and 8 tokens, from the sums of a product. Token i (0..7)
// goes to row(i) of h; below 0: it is left out.
template <class Act, class Row> KR_DEV void give_hidden(bf16 *h, int width, int in_order, int block, const float (&sum)[4], Act act, Row row) {
	int lane = threadIdx.x % 32, f = 8 * block + lane / 4;
	if (!in_order) f = permuted(f);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		long long at = row(lane % 4 * 2 + i);
		if (at >= 0) store(h + at * width + f, act(sum[i], sum[2 + i]));
	}
}

// The first half of a mixture of experts: h = silu(gate x) * up x, for the shared network (hs [m,
// width], by the first shared_rows rows of the grid) and for every assignment that has an expert
// (h [m * top_k, width]). Hidden values are permuted unless their reader multiplies plain rows
// (in_order). The next launch may start only after this one's wait, because kr_gemv_down... reads
// results of earlier kernels before its own wait.
//
// early: the kernel before this one is the router, and lets this one start only when x is there, or
// the rows `of` from which it computes x. So the shared network need not wait for the choice. It
// computes its x from `of`, if these are given (not for every format: NORMS).
//
// coming: the launch before this one copies experts and lets this one start meanwhile, when all else is there. A block
// whose expert is on the way waits for its first matrix, no other waits. The next launch must find the second matrices,
// so none lets it start, and the last block ends when the copies do.
//
// With pick.n a block chooses the expert of its assignment itself, and one block of each token
// writes what the router would: logits, ids and weights.
template <int ROUTED, int SHARED, bool BIASED>
KR_DEV void gate_up(bf16 *h, int h_in_order, bf16 *hs, int hs_in_order, const bf16 *x, int x_stride, const Work &work, const Plan &p,
                    const Bank &bank, const Matrix &s, const Unchosen &pick, int *ids, float *weights, int early, const NormRows &of, const Activation &act, const unsigned *coming, uint8_t *memory) {
	typedef FlowOf<ROUTED> RF;
	typedef FlowOf<SHARED> SF;
	const bool NORMS = SHARED != INT4_G128 && SHARED != INT3_G64 && SHARED != INT3_G128; // these leave no registers for a norm
	__shared__ __align__(16) FewChosen few;
	__shared__ int chosen[MOST_CHOSEN];
	__shared__ float shares[MOST_CHOSEN];
	__shared__ Tile kept; // there are no registers left for it during the products
	float sum[4] = {0, 0, 0, 0};
	stage_zeros(memory + RESULTS);
	if (!BIASED && (int)blockIdx.y < p.shared_rows) {
		Cut cut(p.shared_shift, p.shared_parts, 0, NO_HALF, s);
		const SharedBlock b(p, cut, s.rows);
		if (b.none) {
			if (!coming) pdl_wait(), pdl_launch();
			return;
		}
		const SF w(s, b.block, true);
		multiply_staged(sum, cut, w, s.tiles, b.n, memory, [&] {
			if (!early && !coming) pdl_wait();
			if (!coming) pdl_launch();
			if (NORMS && of.x) norm_staged<SHARED != PLAIN_BF16>(memory, of, b);
			else stage<SHARED != PLAIN_BF16>(memory + ROWS, b.n, s.tiles, [&](int r) { return x + (long long)(b.first + r) * x_stride; });
		});
		if (cut.works && cut.part == 0) give_hidden(hs, s.rows / 2, hs_in_order, b.block, sum, Swiglu(), [&](int t) { return t < b.n ? b.first + t : -1; });
		if (early) pdl_wait(); // a kernel that waits for this launch relies on the launches before it
		return;
	}
	Cut cut(p.shift, p.parts, p.pairs, ROUTED == SHARED ? p.half : NO_HALF, bank.first);
	int block = ((int)blockIdx.x << cut.shift) + cut.row, i = blockIdx.y - p.shared_rows;
	if (blockIdx.x == 0) work.call_map();
	if (!coming) pdl_wait(), pdl_launch();
	Tile t = {-1, 1, 0, i};
	if (pick.n) {
		int token = work.token(i), rank = i - token * work.top_k;
		bool out = blockIdx.x == 0 && rank == 0;
		if (threadIdx.x >= 32)
			stage_alone<ROUTED != PLAIN_BF16>(memory + ROWS, x + (long long)token * x_stride, bank.first.tiles, threadIdx.x - 32, blockDim.x - 32);
		pick.choose_for(token, out, few, blockDim.x / 32);
		int id = few.ids[rank];
		if (out || pick.bias) {
			if (threadIdx.x < 32) pick.order(few, chosen, shares);
			__syncthreads();
			id = chosen[rank];
			int k = threadIdx.x;
			if (out && k < work.top_k) ids[token * work.top_k + k] = chosen[k], weights[token * work.top_k + k] = shares[k];
		}
		t.expert = work.where(id);
	} else {
		t = work.at(i);
	}
	if (t.expert < 0 || !cut.within(block, bank.first.rows)) return;
	if (coming) wait_for(coming + t.expert);
	const Matrix one = bank[t.expert];
	const int feature = 8 * block + threadIdx.x % 32 / 4;
	if (BIASED && cut.works && cut.part == 0) begin_sums(sum, one, feature, one.rows / 2 + feature);
	const RF w(one, block, true);
	multiply_staged(sum, cut, w, bank.first.tiles, t.count, memory, [&] {
		if (threadIdx.x == 0) kept = t;
		if (pick.n) return; // the row is there
		int mine = work.token(slot_of(t, min((int)threadIdx.x % 32, t.count - 1)));
		stage<ROUTED != PLAIN_BF16>(memory + ROWS, t.count, bank.first.tiles, [&](int r) { return x + (long long)__shfl_sync(0xffffffffu, mine, r) * x_stride; });
	});
	if (!cut.works || cut.part > 0) return;
	auto row = [&](int i) { return i < kept.count ? slot_of(kept, i) : -1; };
	if constexpr (BIASED) give_hidden(h, bank.first.rows / 2, h_in_order, block, sum, act, row);
	else give_hidden(h, bank.first.rows / 2, h_in_order, block, sum, Swiglu(), row);
}
#define PLAN_ARGS \
	int m, int tokens, int groups, int shift, int shared_shift, int parts, int over, int shared_parts, int shared_over, int pairs, int half, int shared_rows
#define PLAN \
	{ m, tokens, groups, shift, shared_shift, {parts, over}, {shared_parts, shared_over}, pairs, half, shared_rows }
#define GATE_UP_KERNEL(name, ROUTED, SHARED, BIASED)                                                                                        \
	KR_KERNEL(256, BLOCKS_OF(ROUTED))                                                                                              \
	name(bf16 *h, int h_in_order, bf16 *hs, int hs_in_order, const bf16 *x, int x_stride, int *ids, const int4 *tiles,              \
	     const int *slots, const int *count, int top_k, int experts, int top_over, const int *map, PLAN_ARGS, BANK_ARGS(w),         \
	     MATRIX_ARGS(s), UNCHOSEN_ARGS, float *weights, int early, float alpha, float limit, float up_shift, NORM_OF_ARGS, const unsigned *coming) { \
		KR_SHARED(uint8_t, memory);                                                                                                \
		const Work work = {ids, tiles, slots, count, top_k, experts, top_over, map};                                                 \
		const Plan plan = PLAN;                                                                                                    \
		const Bank bank = BANK(w);                                                                                                 \
		const Matrix s = MATRIX(s);                                                                                                \
		const Unchosen pick = UNCHOSEN(m, experts, top_k);                                                                         \
		gate_up<ROUTED, SHARED, BIASED>(h, h_in_order, hs, hs_in_order, x, x_stride, work, plan, bank, s, pick, ids, weights, early, NORM_OF(m, 64 * s.tiles), Activation{alpha, limit, up_shift}, coming, memory); \
		if (coming && blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1) pdl_wait();                                      \
		else if (coming) another_waits();                                                                                          \
	}                                                                                                                              \
	KR_EXPORT(name)
MIXTURE_KERNELS(GATE_UP_KERNEL, kr_gemv_gate_up)

// The second half for more tokens: row slot of y [m * top_k, rows] = expert(h) for every sorted
// assignment, and base [m, rows] = shared(hs) by the first shared_rows rows of the grid.
// Assignments were sorted before kr_gemv_gate_up, which lets this kernel start only when it has
// them itself. So they are read before the wait.
template <int ROUTED, int SHARED, bool BIASED>
KR_DEV void down(float *y, const bf16 *h, float *base, const bf16 *hs, const Work &work, const Plan &p, const Bank &bank, const Matrix &s, uint8_t *memory) {
	typedef FlowOf<ROUTED> RF;
	typedef FlowOf<SHARED> SF;
	int lane = threadIdx.x % 32;
	float sum[4] = {0, 0, 0, 0};
	stage_zeros(memory + RESULTS);
	// The address for sum i of this lane's token.
	auto each = [&](int block, int n, int rows, auto put) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int token = lane % 4 * 2 + i % 2, row = 16 * block + lane / 4 + i / 2 * 8;
			if (token < n && row < rows) put(token, row, sum[i]);
		}
	};
	if (!BIASED && (int)blockIdx.y < p.shared_rows) {
		Cut cut(p.shared_shift, p.shared_parts, 0, NO_HALF, s);
		const SharedBlock b(p, cut, s.rows);
		pdl_launch();
		if (b.none) {
			pdl_wait();
			return;
		}
		const SF w(s, b.block, false);
		multiply_staged(sum, cut, w, s.tiles, b.n, memory, [&] {
			pdl_wait();
			stage<false>(memory + ROWS, b.n, s.tiles, [&](int r) { return hs + (long long)(b.first + r) * (64 * s.tiles); });
		});
		if (cut.works && cut.part == 0) each(b.block, b.n, s.rows, [&](int t, int row, float v) { base[(long long)(b.first + t) * s.rows + row] = v; });
		return;
	}
	Cut cut(p.shift, p.parts, ROUTED == SHARED ? p.pairs : 0, ROUTED == SHARED ? p.half : NO_HALF, bank.first);
	int block = ((int)blockIdx.x << cut.shift) + cut.row;
	const Tile t = work.at(blockIdx.y - p.shared_rows);
	pdl_launch();
	if (t.expert < 0 || !cut.within(block, bank.first.rows)) {
		pdl_wait();
		return;
	}
	const Matrix one = bank[t.expert];
	if (BIASED && cut.works && cut.part == 0) begin_sums(sum, one, 16 * block + lane / 4, 16 * block + lane / 4 + 8);
	const RF w(one, block, false);
	multiply_staged(sum, cut, w, bank.first.tiles, t.count, memory, [&] {
		int mine = slot_of(t, min((int)threadIdx.x % 32, t.count - 1));
		pdl_wait();
		stage<false>(memory + ROWS, t.count, bank.first.tiles, [&](int r) { return h + (long long)__shfl_sync(0xffffffffu, mine, r) * (64 * bank.first.tiles); });
	});
	if (cut.works && cut.part == 0) each(block, t.count, bank.first.rows, [&](int i, int row, float v) { y[(long long)slot_of(t, i) * bank.first.rows + row] = v; });
}
#define DOWN_KERNEL(name, ROUTED, SHARED, BIASED)                                                                                           \
	KR_KERNEL(256, BLOCKS_OF(ROUTED))                                                                                              \
	name(float *y, const bf16 *h, float *base, const bf16 *hs, const int4 *tiles, const int *slots, const int *count, PLAN_ARGS,   \
	     BANK_ARGS(w), MATRIX_ARGS(s)) {                                                                                           \
		KR_SHARED(uint8_t, memory);                                                                                                \
		const Work work = {0, tiles, slots, count, 0, 0, 0, 0};                                                                       \
		const Plan plan = PLAN;                                                                                                    \
		const Bank bank = BANK(w);                                                                                                 \
		const Matrix s = MATRIX(s);                                                                                                \
		down<ROUTED, SHARED, BIASED>(y, h, base, hs, work, plan, bank, s, memory);                                                         \
	}                                                                                                                              \
	KR_EXPORT(name)
MIXTURE_KERNELS(DOWN_KERNEL, kr_gemv_down)

// The second half for few tokens, with one row of blocks per token: out = the sum over the
// token's ranks, in order, of weight * expert(h), plus gate * shared(hs) or gate * base [m, rows]. A block
// has 16 rows and all experts. Its warps take the parts of the products in turn (the parts of each
// expert, then those of the shared network). Ids and weights are read before the wait, as above,
// or chosen (pick.n) from logits that were written by then. All inputs of the last sums are
// loaded before they are needed. Warps share no activations, so each loads its own to registers,
// as far ahead as the weights.
template <int ROUTED, int SHARED, bool BIASED>
KR_DEV void down_all(void *out, int wide, int out_stride, int add, const bf16 *h, const bf16 *hs, const float *base, Work work,
                     const float *weights, const Parts &parts, const Parts &shared_parts, const Bank &bank, const Matrix &s, const Unchosen &pick,
                     const RowGate &gate, float *results) {
	__shared__ __align__(16) FewChosen few;
	__shared__ int chosen[MOST_CHOSEN];
	__shared__ float share;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4;
	int block = blockIdx.x, token = blockIdx.y, routed = work.top_k * parts.n, items = routed + shared_parts.n, first = token * work.top_k;
	int row = 16 * block + threadIdx.x;
	bool mine = threadIdx.x < 16 && row < bank.first.rows, fetched = false;
	float *factors = results + 16 * items; // [top_k]
	float before = 0.f, rest = 0.f;
	pdl_launch();
	if (pick.n) {
		int n = min(warps, routed);
		if (warp < n) pick.choose_for(token, false, few, n); // the others need no expert
		if (warp == 0) pick.order(few, chosen, factors);
		if (pick.bias && warp < n) bar_sync(1, 32 * n);
	} else {
		for (int k = threadIdx.x; k < work.top_k; k += blockDim.x) factors[k] = work.expert(first + k) < 0 ? 0.f : weights[first + k];
	}
	if (gate.w && warp == warps - 1) { // x was there before the ids
		float factor = gate.of(token);
		if (lane == 0) share = factor;
	}
	auto fetch = [&] { // after the wait
		if (!mine || fetched) return;
		fetched = true;
		if (base) rest = base[(long long)token * bank.first.rows + row];
		if (add) before = got(out, wide, (long long)token * out_stride + row);
	};
	auto result = [&](int i, const float (&sum)[4]) { // results: [items][16 rows]
		if (lane % 4 == 0) {
			results[i * 16 + g] = sum[0];
			results[i * 16 + g + 8] = sum[2];
		}
	};
	int i = warp;
	for (; i < routed; i += warps) {
		float sum[4] = {0, 0, 0, 0};
		int k = parts.divide(i), e = pick.n ? work.where(pick.bias ? chosen[k] : few.ids[k]) : work.expert(first + k);
		Range units(0, 0);
		parts.range(units.from, units.to, bank.first, i - k * parts.n);
		if (e >= 0) {
			if (BIASED && i == k * parts.n) begin_sums(sum, bank[e], 16 * block + g, 16 * block + g + 8);
			product_of<ROUTED, true, ROUTED != INT4_G32>(sum, bank[e], block, false, units, [&] {
				pdl_wait();
				fetch();
				return Token{h + (long long)(first + k) * (64 * bank.first.tiles), g == 0};
			});
		}
		result(i, sum);
	}
	for (; !BIASED && i < items; i += warps) {
		float sum[4] = {0, 0, 0, 0};
		Range units(0, 0);
		shared_parts.range(units.from, units.to, s, i - routed);
		product_of<SHARED, true, SHARED != INT4_G32>(sum, s, block, false, units, [&] {
			pdl_wait();
			fetch();
			return Token{hs + (long long)token * (64 * s.tiles), g == 0};
		});
		result(i, sum);
	}
	pdl_wait();
	fetch();
	__syncthreads();
	if (!mine) return;
	const float *r = results + threadIdx.x;
	float total = 0.f;
	for (int k = 0; k < work.top_k; k++) // a rank without an expert has zeros
		total = fmaf(factors[k], in_order(r + k * parts.n * 16, parts.n, 16), total);
	if (shared_parts.n) rest = in_order(r + routed * 16, shared_parts.n, 16);
	if (base || shared_parts.n) total = fmaf(gate.w ? share : 1.f, rest, total);
	give(out, wide, 0, (long long)token * out_stride + row, add ? before + total : total);
}
#define DOWN_ALL_KERNEL(name, ROUTED, SHARED, BIASED)                                                                                       \
	KR_KERNEL(512, 1)                                                                                                              \
	name(void *out, int wide, int out_stride, int add, const bf16 *h, const bf16 *hs, const float *base, const int *ids,           \
	     const float *weights, int top_k, int experts, const int *map, int parts, int over, int shared_parts, int shared_over,     \
	     BANK_ARGS(w), MATRIX_ARGS(s), UNCHOSEN_ARGS, ROW_GATE_ARGS) {                                                                            \
		KR_SHARED(float, results);                                                                                                \
		const Work work = {ids, 0, 0, 0, top_k, experts, 0, map};                                                                     \
		const Bank bank = BANK(w);                                                                                                 \
		const Matrix s = MATRIX(s);                                                                                                \
		const Unchosen pick = UNCHOSEN((int)gridDim.y, experts, top_k);                                                            \
		down_all<ROUTED, SHARED, BIASED>(out, wide, out_stride, add, h, hs, base, work, weights, Parts{parts, over},                       \
		                         Parts{shared_parts, shared_over}, bank, s, pick, RowGate ROW_GATE(bank.first.rows), results);                                        \
	}                                                                                                                              \
	KR_EXPORT(name)
MIXTURE_KERNELS(DOWN_ALL_KERNEL, kr_gemv_down_all)
