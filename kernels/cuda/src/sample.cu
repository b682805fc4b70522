// The choice of the next token: the largest logit, or a draw. Several blocks share a row. The
// grid is x blocks of a row, y rows, unless a comment says otherwise.
#include "draw.cuh"

// Writes each block's result; with `begin`, also prepares the notes for a draw.
KR_KERNEL(THREADS, 4)
kr_find_best(unsigned char *scratch, long long size, const float *logits, int stride, int vocab, int vec, int begin) {
	pdl_launch();
	pdl_wait();
	Notes *notes = notes_of(Pad{scratch, size}, blockIdx.y);
	if (begin) {
		uint4 *bins = reinterpret_cast<uint4 *>(notes->mass);
		const int n = (sizeof(notes->mass) + sizeof(notes->counts)) / sizeof(uint4);
		for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) bins[i] = make_uint4(0, 0, 0, 0);
		if (blockIdx.x == 0 && threadIdx.x == 0) notes->turn = notes->listed = 0;
	}
	Row r = row_at(logits, blockIdx.y, stride, vocab, vec);
	Found f = look(r, share_of(r));
	if (threadIdx.x == 0) notes->found[blockIdx.x] = make_int4((int)f.key, f.token, f.nan, (int)f.low);
}
KR_EXPORT(kr_find_best)

// The largest logit of the results of n blocks. Grid: x rows, one warp each.
KR_KERNEL(32, 1)
kr_argmax(int *out, const unsigned char *scratch, long long size, int n) {
	pdl_launch();
	pdl_wait();
	Best b = best_of(notes_of(Pad{const_cast<unsigned char *>(scratch), size}, blockIdx.x), n);
	if (threadIdx.x == 0) out[blockIdx.x] = b.token;
}
KR_EXPORT(kr_argmax)

// A block's bins; weights are kept in halves.
struct Tally {
	double table[64];
	unsigned low[BINS], high[BINS], counts[BINS];
};

KR_DEV void tally_part(Tally &t, const float (&x)[EACH], const Bins &bins, const Weigher &w, bool counts, bool weighs) {
	int bin[EACH];
#pragma unroll
	for (int j = 0; j < EACH; j++) bin[j] = bin_of(bins, x[j]);
	if (counts) {
#pragma unroll
		for (int j = 0; j < EACH; j++)
			if (x[j] > minus_infinity()) atomicAdd(&t.counts[bin[j]], 1u);
	}
	if (!weighs) return;
	float most = x[0];
#pragma unroll
	for (int j = 1; j < EACH; j++) most = fmaxf(most, x[j]);
	if (!__any_sync(0xffffffffu, weighs_some(w, most))) return;
	u64 m[EACH];
	unsigned before[EACH];
#pragma unroll
	for (int j = 0; j < EACH; j++) m[j] = mass(w, x[j]);
#pragma unroll
	for (int j = 0; j < EACH; j++)
		if (m[j]) before[j] = add_low(&t.low[bin[j]], m[j]);
#pragma unroll
	for (int j = 0; j < EACH; j++)
		if (m[j]) add_high(&t.high[bin[j]], m[j], before[j]);
}

// Counts and weighs the tokens in each bin of the rows that top_k or top_p cuts. Writes the token
// of rows that have no draw.
KR_KERNEL(THREADS, 4)
kr_tally(int *out, unsigned char *scratch, long long size, const float *logits, int stride, int vocab, int vec, const Params *params) {
	KR_SHARED(Tally, t);
	pdl_launch();
	load_table(t->table);
	for (int i = threadIdx.x; i < BINS; i += THREADS) t->low[i] = t->high[i] = t->counts[i] = 0;
	pdl_wait();
	Notes *notes = notes_of(Pad{scratch, size}, blockIdx.y);
	Row r = row_at(logits, blockIdx.y, stride, vocab, vec);
	Share s = share_of(r);
	float x[EACH];
	if (s.from < s.to) load_part(x, r, s.from);
	Params p = params[blockIdx.y];
	Best best = best_of(notes, gridDim.x);
	if (best.token < 0 || !(p.temperature > 0.)) {
		if (blockIdx.x == 0 && threadIdx.x == 0) out[blockIdx.y] = best.token;
		return;
	}
	bool counts = p.counts(vocab), weighs = p.weighs();
	if (!counts && !weighs) return;
	Bins bins = bins_of(best, p, vocab);
	Weigher w = weigher(best.x, p.temperature, 0., vocab, t->table);
	__syncthreads();
	for (int part = s.from; part < s.to; part += WARPS) {
		float next[EACH] = {};
		if (part + WARPS < s.to) load_part(next, r, part + WARPS);
		tally_part(*t, x, bins, w, counts, weighs);
#pragma unroll
		for (int j = 0; j < EACH; j++) x[j] = next[j];
	}
	__syncthreads();
	for (int i = threadIdx.x; i < BINS; i += THREADS) {
		u64 m = (u64)t->high[i] << 32 | t->low[i];
		if (m) atomicAdd(&notes->mass[i], m);
		if (t->counts[i]) atomicAdd(&notes->counts[i], t->counts[i]);
	}
}
KR_EXPORT(kr_tally)

// A block's shared memory in kr_draw, followed by the sums of parts.
struct Desk {
	double table[64];
	Fine fine;
	u64 list[LISTED];
};

// Adds the weights of the part's tokens that are certainly kept, and lists those that may be
// kept.
KR_DEV u64 sort_out(const float (&x)[EACH], int first, const Bins &bins, const Plan &plan, const Weigher &w, Notes *notes, int bits) {
	u64 sum = 0;
	unsigned sure = 0, doubt = 0;
	float most = minus_infinity(); // of what is sure
#pragma unroll
	for (int j = 0; j < EACH; j++) {
		int bin = bin_of(bins, x[j]);
		if (bin < plan.sure) sure |= 1u << j, most = fmaxf(most, x[j]);
		else if ((bin <= plan.last || bin == plan.edge) && x[j] > minus_infinity()) doubt |= 1u << j;
	}
	if (__any_sync(0xffffffffu, weighs_some(w, most))) {
#pragma unroll
		for (int j = 0; j < EACH; j++) {
			u64 v = kept_weight(w, x[j]);
			if (sure >> j & 1) sum += v;
		}
	}
	if (__any_sync(0xffffffffu, doubt)) {
		int n = __popc(doubt), upto = inclusive(n);
		unsigned at = 0;
		if (threadIdx.x % 32 == 31) at = atomicAdd(&notes->listed, (unsigned)upto);
		at = __shfl_sync(0xffffffffu, at, 31) + upto - n;
#pragma unroll
		for (int j = 0; j < EACH; j++)
			if (doubt >> j & 1) {
				if (at < LISTED) notes->list[at] = order_of(x[j], first + j, bits);
				at++;
			}
	}
	return sum;
}

// The order of the last kept token.
KR_DEV u64 edge_of(const Pool &pool, const Plan &plan, const Best &best, const Bins &bins, const Weigher &w, Desk *desk) {
	// The list's keys, from the preferred end; the last key up to bin last, behind which there
	// may be tokens that are not listed; and the number of tokens of bins before edge.
	__shared__ unsigned first, last, whole, ahead;
	bool all = pool.n < 0;
	u64 at = (u64)~rising(best.x) << pool.bits, end = ((u64)~rising(best.low) + 1) << pool.bits;
	if (!all) {
		if (threadIdx.x == 0) first = 0xffffffffu, last = whole = ahead = 0;
		__syncthreads();
		each(pool, [&](u64 order, float x) {
			unsigned key = (unsigned)(order >> pool.bits);
			atomicMin(&first, key), atomicMax(&last, key);
			int bin = bin_of(bins, x);
			if (bin <= plan.last) atomicMax(&whole, key);
			if (bin < plan.edge) atomicAdd(&ahead, 1u);
		});
		__syncthreads();
		at = (u64)first << pool.bits, end = ((u64)last + 1) << pool.bits;
	}
	u64 edge = end - 1;
#pragma unroll 1
	for (int by_mass = plan.top_k ? 0 : 1; by_mass <= plan.top_p; by_mass++) {
		u64 need = by_mass ? plan.need : all ? plan.most : plan.k + ahead;
		if (by_mass && (all || plan.top_k)) {
			u64 own = 0;
			each(pool, [&](u64 order, float x) {
				if (order <= edge && (all || bin_of(bins, x) == plan.edge)) own += mass(w, x);
			});
			u64 total = sums_of_block(own).total;
			need = all ? share_of_mass(plan.share, total) : share_of_mass(plan.share, plan.pool + total) - plan.above;
			if (!all) edge = min(edge, (((u64)whole + 1) << pool.bits) - 1);
		}
		edge = last_kept(pool, w, by_mass, at, edge - at + 1, need, desk->fine);
	}
	return edge;
}

// Returns a token from the sums of parts and the random number u, in every thread.
KR_DEV int pick(const Row &r, const Weigher &w, u64 edge, int bits, const u64 *sums, double u) {
	__shared__ double left;
	__shared__ int hit, last, token, last_token;
	if (threadIdx.x == 0) hit = token = 0x7fffffff, last = last_token = -1;
	int each = (r.parts + THREADS - 1) / THREADS, from = threadIdx.x * each, to = min(r.parts, from + each);
	double own = 0.;
	for (int p = from; p < to; p++) own += (double)sums[p];
	Sums<double> s = sums_of_block(own);
	double before = s.before, target = u * s.total, rest = 0.;
	int mine = 0x7fffffff;
	for (int p = from; p < to; p++) {
		double v = (double)sums[p];
		if (v > 0.) atomicMax(&last, p);
		if (mine == 0x7fffffff && before + v > target) mine = p, rest = target - before;
		before += v;
	}
	if (mine != 0x7fffffff) atomicMin(&hit, mine);
	__syncthreads();
	int part = hit;
	if (part == 0x7fffffff) part = last; // rounding made the target too large
	if (mine == hit) left = mine == 0x7fffffff ? 1e300 : rest;
	__syncthreads();
	int id = part * PART + (int)threadIdx.x;
	float x = id < r.vocab ? r.x[id] : minus_infinity();
	u64 v = order_of(x, id, bits) <= edge ? kept_weight(w, x) : 0;
	u64 sum = sums_of_block(v).before + v;
	if (v) {
		atomicMax(&last_token, id);
		if ((double)sum > left) atomicMin(&token, id);
	}
	__syncthreads();
	return token == 0x7fffffff ? last_token : token;
}

// Draws. Every block does its parts, and the last block to finish a row does the rest. Shared
// memory: a Desk, and 8 bytes for every part.
KR_KERNEL(THREADS, 4)
kr_draw(int *out, unsigned char *scratch, long long size, const float *logits, int stride, int vocab, int vec, const Params *params) {
	KR_SHARED(Desk, desk);
	__shared__ bool done;
	__shared__ Plan plan;
	pdl_launch();
	load_table(desk->table);
	pdl_wait();
	Notes *notes = notes_of(Pad{scratch, size}, blockIdx.y);
	Row r = row_at(logits, blockIdx.y, stride, vocab, vec);
	Share s = share_of(r);
	float x[EACH];
	if (s.from < s.to) load_part(x, r, s.from);
	Params p = params[blockIdx.y];
	Best best = best_of(notes, gridDim.x);
	if (best.token < 0 || !(p.temperature > 0.)) return;
	Bins bins = bins_of(best, p, vocab);
	Weigher w = weigher(best.x, p.temperature, p.min_p, vocab, desk->table);
	make_plan(plan, p, notes, vocab);
	int bits = bits_of(vocab);
	u64 *sums = sums_of(notes);
	__syncthreads();
	for (int part = s.from; part < s.to; part += WARPS) {
		float next[EACH] = {};
		if (part + WARPS < s.to) load_part(next, r, part + WARPS);
		u64 sum = sort_out(x, first_of(part), bins, plan, w, notes, bits);
		for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
		if (threadIdx.x % 32 == 0) sums[part] = sum;
#pragma unroll
		for (int j = 0; j < EACH; j++) x[j] = next[j];
	}
	__syncthreads();
	if (threadIdx.x == 0) { // its fences cover the block, because there are barriers on both sides
		__threadfence();
		done = atomicAdd(&notes->turn, 1u) == gridDim.x - 1;
		__threadfence();
	}
	__syncthreads();
	if (!done) return;
	u64 *parts = reinterpret_cast<u64 *>(desk + 1), edge = ~0ull;
	bool cut = plan.top_k || plan.top_p;
	int listed = cut ? (int)__ldcg(&notes->listed) : 0;
	bool all = listed > LISTED; // too many for the list: search the row itself
	for (int i = threadIdx.x; i < r.parts; i += THREADS) parts[i] = all ? 0 : __ldcg(&sums[i]);
	if (cut) {
		if (!all)
			for (int i = threadIdx.x; i < listed; i += THREADS) desk->list[i] = __ldcg(&notes->list[i]);
		Pool pool = {r, desk->list, all ? -1 : listed, bits};
		edge = edge_of(pool, plan, best, bins, w, desk);
		u64 mask = (1ull << bits) - 1;
		each(pool, [&](u64 order, float x) {
			if (order <= edge) add_shared(&parts[(order & mask) / PART], kept_weight(w, x));
		});
	}
	__syncthreads();
	int token = pick(r, w, edge, bits, parts, uniform(params[blockIdx.y].seed, params[blockIdx.y].n));
	if (threadIdx.x == 0) out[blockIdx.y] = token;
}
KR_EXPORT(kr_draw)

// The logarithm of the chosen token's probability under raw, for rows that request it. Rows whose
// raw logits are no distribution lose their token. Grid: x rows, one block each.
KR_KERNEL(THREADS, 1)
kr_logprob(int *out, float *logprobs, const float *raw, int stride, int vocab, int vec, const Params *params) {
	__shared__ double table[64];
	pdl_launch();
	load_table(table);
	pdl_wait();
	int token = out[blockIdx.x];
	if (!params[blockIdx.x].logprob || token < 0) return;
	Row r = row_at(raw, blockIdx.x, stride, vocab, vec);
	Best best = verdict(look(r, Share{(int)threadIdx.x / 32, r.parts}));
	float logprob = 0.f;
	if (best.token >= 0) {
		double own = 0.;
		for (int part = threadIdx.x / 32; part < r.parts; part += WARPS) {
			float x[EACH];
			load_part(x, r, part);
			for (int j = 0; j < EACH; j++) {
				double y = (double)x[j] - best.x;
				if (y > -700.) own += exp_of(y, table);
			}
		}
		logprob = (float)((double)r.x[token] - ((double)best.x + log(sums_of_block(own).total)));
	}
	if (threadIdx.x == 0) {
		logprobs[blockIdx.x] = logprob;
		if (best.token < 0) out[blockIdx.x] = best.token;
	}
}
KR_EXPORT(kr_logprob)
