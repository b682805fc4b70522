// The gated delta rule of prompts in chunks, with matrix products (arXiv 2412.06464, section 3.3).
//
// Row t of a chunk has key k, query q, value v, strength b and a decay, and G is the logarithm of
// the product of the decays up to it. S is the state before the chunk. The change that row t makes
// to the state is the product of k and
//
//     u[t] = b[t] (v[t] - e^G[t] k[t] S - sum over i < t of e^(G[t]-G[i]) (k[t] k[i]) u[i])
//
// which is a system of equations with a triangular matrix. Output and state follow from it:
//
//     o[t] = e^G[t] q[t] S + sum over i <= t of e^(G[t]-G[i]) (q[t] k[i]) u[i]
//     S'   = e^G[63] S + sum over i of e^(G[63]-G[i]) k[i] u[i]
//
// No exponent is above zero, and nothing is divided by a decay. Queries and keys enter products as
// they are stored, in bf16: their lengths are factors of the results. Other operands are float32
// and enter as two bf16, whose sum has 16 bits. Sums and states are float32.
//
// Chunks end where the position is a multiple of CHUNK. So a row's bits do not depend on where a
// prompt is cut, if it is cut there.
#include "delta.cuh"

enum { CHUNK = 64, CHUNK_THREADS = 256, KEYS_MAX = 128, SLICE = 32, PIECE = 16, PIECES = CHUNK / PIECE };
// Rows of keys and of a slice of values in shared memory: an odd number of 16 bytes.
enum { ROW_BYTES = 2 * KEYS_MAX + 16, SLICE_BYTES = 2 * SLICE + 16, EQUATION = PIECE + 4, SIDE = SLICE + 4 };

// A block's shared memory. Arrays of two are the upper and the lower bf16 of values, or belong to this
// chunk and to the next.
struct ChunkRoom {
	unsigned char keys[2][CHUNK * ROW_BYTES], queries[CHUNK * ROW_BYTES];
	unsigned char state[2][KEYS_MAX * SLICE_BYTES];
	unsigned char change[2][CHUNK * SLICE_BYTES];        // u; before that the values, in [0]
	unsigned char kept[PIECES][2][PIECE * SLICE_BYTES];  // u as it enters the state; before that the right sides
	float equations[PIECES][PIECE][EQUATION];            // those among the rows of a piece
	float total[2][CHUNK], rest[2][CHUNK];               // G, as powers of two, and what it lacks
	float strength[2][CHUNK];
	float length[CHUNK]; // of keys, inverted
};

struct Chunks {
	const bf16 *x, *ba;
	int x_stride, ba_stride, head, keys; // value head; keys: values of all queries
	int key, key_dim, a, b;              // key: where the head's query lies; a, b: columns of ba
	float decay, bias;
};

// v as two pairs of bf16.
KR_DEV void split(float v, float w, uint32_t &upper, uint32_t &lower) {
	upper = pack_bf16(v, w);
	lower = pack_bf16(v - lo_f32(upper), w - hi_f32(upper));
}

// A sum and what float32 cannot hold of it.
struct Exact { float sum, rest; };

KR_DEV Exact plus(Exact a, Exact b) {
	float sum = a.sum + b.sum, back = sum - a.sum;
	float rest = (a.sum - (sum - back)) + (b.sum - back) + (a.rest + b.rest);
	Exact e = {sum + rest, 0.f};
	e.rest = rest - (e.sum - sum);
	return e;
}

// Copies rows of queries or keys. Rows behind the n-th and columns behind the last are zeros.
KR_DEV void copy_rows(unsigned char *to, const Chunks &c, int column, int row, int n, int thread, int threads) {
	uint32_t at = smem_u32(to);
	const bf16 *from = c.x + (long long)row * c.x_stride + column;
	int units = (c.key_dim + 15) / 16 * 2;
	for (int i = thread; i < CHUNK * units; i += threads) {
		int r = i / units, unit = i % units;
		bool ok = r < n && 8 * unit < c.key_dim;
		cp_async16(at + r * ROW_BYTES + 16 * unit, ok ? from + (long long)r * c.x_stride + 8 * unit : from, ok);
	}
}

// A warp copies its 16 rows of a slice of values, of which `columns` are there, to the place of their
// changes. The others are zeros.
KR_DEV void copy_values(ChunkRoom *room, const bf16 *x, int stride, int row, int n, int piece, int columns) {
	int lane = threadIdx.x % 32;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int r = PIECE * piece + lane / 4 + 8 * i, column = lane % 4 * 8;
		bool ok = r < n && column < columns;
		cp_async16(smem_u32(room->change[0]) + r * SLICE_BYTES + 2 * column, ok ? x + (long long)(row + r) * stride + column : x, ok);
	}
}

// A warp computes decays and strengths of a chunk's rows. Rows behind the n-th have neither.
KR_DEV void chunk_numbers(ChunkRoom *room, int place, const Chunks &c, int row, int n) {
	int lane = threadIdx.x % 32;
	Exact own[2];
#pragma unroll
	for (int j = 0; j < 2; j++) {
		int t = 2 * lane + j;
		float strength = 0.f, log = 0.f;
		if (t < n) {
			const bf16 *ba = c.ba + (long long)(row + t) * c.ba_stride;
			float a = f32(ba[c.a]) + c.bias;
			strength = 1.f / (1.f + expf(-f32(ba[c.b])));
			log = 1.44269504f * (c.decay * (fmaxf(a, 0.f) + log1pf(expf(-fabsf(a)))));
			log = log < -10000.f ? -10000.f : log; // the power is zero all the same; NaN stays
		}
		room->strength[place][t] = strength;
		own[j].sum = log, own[j].rest = 0.f;
	}
	Exact all = plus(own[0], own[1]);
#pragma unroll
	for (int d = 1; d < 32; d <<= 1) {
		Exact before = {__shfl_up_sync(0xffffffffu, all.sum, d), __shfl_up_sync(0xffffffffu, all.rest, d)};
		if (lane >= d) all = plus(before, all);
	}
	Exact first = {__shfl_up_sync(0xffffffffu, all.sum, 1), __shfl_up_sync(0xffffffffu, all.rest, 1)};
	first = lane == 0 ? own[0] : plus(first, own[0]);
	room->total[place][2 * lane] = first.sum, room->rest[place][2 * lane] = first.rest;
	room->total[place][2 * lane + 1] = all.sum, room->rest[place][2 * lane + 1] = all.rest;
}

// What a warp computes of its 16 rows of queries or keys: products with the keys of the chunk up to
// its own rows, products with the slice of the state, and sums of squares.
struct Gathered { float keys[8][4], state[4][4], squares[2]; };

KR_DEV float squares(uint32_t pair) { return fmaf(lo_f32(pair), lo_f32(pair), hi_f32(pair) * hi_f32(pair)); }

KR_DEV void gather(Gathered &p, const ChunkRoom *room, const unsigned char *rows, const unsigned char *keys, int piece, int steps) {
	int lane = threadIdx.x % 32;
	uint32_t own = smem_u32(rows) + (PIECE * piece + lane % 16) * ROW_BYTES + lane / 16 * 16;
	uint32_t other = smem_u32(keys) + (lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16;
	uint32_t state = smem_u32(room->state[0]) + lane % 16 * SLICE_BYTES + lane / 16 * 16;
#pragma unroll
	for (int j = 0; j < 8; j++)
		for (int e = 0; e < 4; e++) p.keys[j][e] = 0.f;
#pragma unroll
	for (int j = 0; j < 4; j++)
		for (int e = 0; e < 4; e++) p.state[j][e] = 0.f;
	p.squares[0] = p.squares[1] = 0.f;
	for (int k = 0; k < steps; k++) {
		uint32_t a[4], b[4];
		ldmatrix_x4(a, own + 32 * k);
		p.squares[0] += squares(a[0]) + squares(a[2]), p.squares[1] += squares(a[1]) + squares(a[3]);
#pragma unroll
		for (int j = 0; j < PIECES; j++) {
			if (j > piece) continue;
			ldmatrix_x4(b, other + PIECE * j * ROW_BYTES + 32 * k);
			mma_bf16(p.keys[2 * j], a, b[0], b[1]);
			mma_bf16(p.keys[2 * j + 1], a, b[2], b[3]);
		}
#pragma unroll
		for (int part = 0; part < 2; part++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				ldmatrix_x4_trans(b, state + part * KEYS_MAX * SLICE_BYTES + 16 * k * SLICE_BYTES + 32 * j);
				mma_bf16(p.state[2 * j], a, b[0], b[1]);
				mma_bf16(p.state[2 * j + 1], a, b[2], b[3]);
			}
		}
	}
#pragma unroll
	for (int e = 0; e < 2; e++) {
		p.squares[e] += __shfl_xor_sync(0xffffffffu, p.squares[e], 1);
		p.squares[e] += __shfl_xor_sync(0xffffffffu, p.squares[e], 2);
	}
}

// Multiplies the products with keys by factors of their rows, by decays and by lengths of keys. A
// query sees its own key, a key does not.
KR_DEV void weigh(Gathered &p, const ChunkRoom *room, int place, int piece, const float (&factor)[2], bool query) {
	const float *total = room->total[place], *rest = room->rest[place];
	int lane = threadIdx.x % 32, own = PIECE * piece + lane / 4;
#pragma unroll
	for (int j = 0; j < 8; j++) {
		if (j / 2 > piece) continue;
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int t = own + e / 2 * 8, i = 8 * j + 2 * (lane % 4) + e % 2;
			float by = exp2_approx(total[t] - total[i] + (rest[t] - rest[i])) * room->length[i] * factor[e / 2];
			p.keys[j][e] = i < t || (query && i == t) ? p.keys[j][e] * by : 0.f;
		}
	}
#pragma unroll
	for (int e = 0; e < 4; e++) {
		float by = exp2_approx(total[own + e / 2 * 8]);
#pragma unroll
		for (int j = 0; j < 4; j++) p.state[j][e] *= by;
	}
}

// Two tiles of sums as the left operand of a product.
KR_DEV void operand(uint32_t (&upper)[4], uint32_t (&lower)[4], const float (&a)[4], const float (&b)[4]) {
	split(a[0], a[1], upper[0], lower[0]);
	split(a[2], a[3], upper[1], lower[1]);
	split(b[0], b[1], upper[2], lower[2]);
	split(b[2], b[3], upper[3], lower[3]);
}

// sums += weights of a piece's 16 rows times their changes.
KR_DEV void add_changes(float (&sums)[4][4], const ChunkRoom *room, int piece, const float (&first)[4], const float (&second)[4]) {
	int lane = threadIdx.x % 32;
	uint32_t upper[4], lower[4], at = smem_u32(room->change[0]) + (PIECE * piece + lane % 16) * SLICE_BYTES + lane / 16 * 16;
	operand(upper, lower, first, second);
#pragma unroll
	for (int j = 0; j < 2; j++) {
		uint32_t b[4], d[4];
		ldmatrix_x4_trans(b, at + 32 * j);
		ldmatrix_x4_trans(d, at + CHUNK * SLICE_BYTES + 32 * j);
		mma_bf16(sums[2 * j], upper, b[0], b[1]);
		mma_bf16(sums[2 * j + 1], upper, b[2], b[3]);
		mma_bf16(sums[2 * j], lower, b[0], b[1]);
		mma_bf16(sums[2 * j + 1], lower, b[2], b[3]);
		mma_bf16(sums[2 * j], upper, d[0], d[1]);
		mma_bf16(sums[2 * j + 1], upper, d[2], d[3]);
	}
}

// Writes a row of values, one for each lane, as upper and lower bf16: even lanes write the upper ones of
// two lanes, odd lanes the lower ones.
KR_DEV void put_row(unsigned char *upper, unsigned char *lower, float v) {
	int lane = threadIdx.x % 32;
	bf16 high = to_bf16(v);
	uint32_t own = (uint32_t)high | (uint32_t)to_bf16(v - f32(high)) << 16, other = __shfl_xor_sync(0xffffffffu, own, 1);
	if (lane % 2 == 0) *(uint32_t *)(upper + 2 * lane) = __byte_perm(own, other, 0x5410);
	else *(uint32_t *)(lower + 2 * (lane - 1)) = __byte_perm(other, own, 0x7632);
}

// Solves the equations of a piece, whose sums over earlier pieces are in right: a lane for each column.
KR_DEV void solve_piece(ChunkRoom *room, int place, int piece, const float (&right)[4][4]) {
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	float *side = (float *)room->kept[piece][0], u[PIECE];
#pragma unroll
	for (int j = 0; j < 4; j++) {
		store2(side + g * SIDE + 8 * j + 2 * c, right[j][0], right[j][1]);
		store2(side + (g + 8) * SIDE + 8 * j + 2 * c, right[j][2], right[j][3]);
	}
	__syncwarp();
#pragma unroll
	for (int t = 0; t < PIECE; t++) {
		u[t] = side[t * SIDE + lane];
#pragma unroll
		for (int i = 0; i < t; i += 4) {
			float4 m = *(const float4 *)(room->equations[piece][t] + i);
			u[t] = fmaf(m.x, u[i], u[t]);
			if (i + 1 < t) u[t] = fmaf(m.y, u[i + 1], u[t]);
			if (i + 2 < t) u[t] = fmaf(m.z, u[i + 2], u[t]);
			if (i + 3 < t) u[t] = fmaf(m.w, u[i + 3], u[t]);
		}
	}
	__syncwarp(); // all have read the right sides
	const float *total = room->total[place], *rest = room->rest[place];
	int own = PIECE * piece + lane % PIECE;
	float stays = exp2_approx(total[CHUNK - 1] - total[own] + (rest[CHUNK - 1] - rest[own])) * room->length[own];
#pragma unroll
	for (int t = 0; t < PIECE; t++) {
		int at = (PIECE * piece + t) * SLICE_BYTES;
		put_row(room->change[0] + at, room->change[1] + at, u[t]);
		put_row(room->kept[piece][0] + t * SLICE_BYTES, room->kept[piece][1] + t * SLICE_BYTES, u[t] * __shfl_sync(0xffffffffu, stays, t));
	}
}

// Four warps solve the equations of a chunk, a piece each. right: products with the state on entry.
KR_DEV void solve(Gathered &p, ChunkRoom *room, int place, int piece) {
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
	for (int j = 0; j < PIECES; j++)
		if (j == piece) {
#pragma unroll
			for (int half = 0; half < 2; half++) {
				store2(room->equations[piece][g] + 8 * half + 2 * c, p.keys[2 * j + half][0], p.keys[2 * j + half][1]);
				store2(room->equations[piece][g + 8] + 8 * half + 2 * c, p.keys[2 * j + half][2], p.keys[2 * j + half][3]);
			}
		}
#pragma unroll
	for (int j = 0; j < PIECES; j++) {
		if (j == piece) solve_piece(room, place, piece, p.state);
		if (j == PIECES - 1) break;
		bar_sync(1, CHUNK_THREADS / 2);
		if (j < piece) add_changes(p.state, room, j, p.keys[2 * j], p.keys[2 * j + 1]);
	}
}

// Adds the changes of a chunk to a warp's 16 rows of the slice of the state.
KR_DEV void add_kept(float (&state)[4][4], const ChunkRoom *room, int place) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t keys = smem_u32(room->keys[place]) + (lane / 16 * 8 + lane % 8) * ROW_BYTES + 32 * warp + lane / 8 % 2 * 16;
	uint32_t kept = smem_u32(room->kept[0][0]) + lane % 16 * SLICE_BYTES + lane / 16 * 16;
	float by = exp2_approx(room->total[place][CHUNK - 1]);
#pragma unroll
	for (int j = 0; j < 4; j++)
		for (int e = 0; e < 4; e++) state[j][e] *= by;
#pragma unroll
	for (int piece = 0; piece < PIECES; piece++) {
		uint32_t a[4], b[4];
		ldmatrix_x4_trans(a, keys + PIECE * piece * ROW_BYTES);
#pragma unroll
		for (int part = 0; part < 2; part++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				ldmatrix_x4_trans(b, kept + (2 * piece + part) * PIECE * SLICE_BYTES + 32 * j);
				mma_bf16(state[2 * j], a, b[0], b[1]);
				mma_bf16(state[2 * j + 1], a, b[2], b[3]);
			}
		}
	}
}

// Writes a warp's 16 rows of the state as operands of products.
KR_DEV void put_state(ChunkRoom *room, const float (&state)[4][4]) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		int at = (16 * warp + 8 * half + lane / 4) * SLICE_BYTES + 4 * (lane % 4);
#pragma unroll
		for (int j = 0; j < 4; j++) split(state[j][2 * half], state[j][2 * half + 1], *(uint32_t *)(room->state[0] + at + 16 * j), *(uint32_t *)(room->state[1] + at + 16 * j));
	}
}

// Grid: x value heads times slices of 32 columns, y prompts. Warps 0..3 compute the output and fetch
// the next chunk, warps 4..7 solve the equations, and each has 16 rows of the state.
KR_KERNEL(CHUNK_THREADS, 2)
kr_delta_chunks(bf16 *out, int out_stride, const bf16 *x, int x_stride, const bf16 *ba, int ba_stride, const float *decay, const float *bias, float *states,
                const int *table, int slots, int heads, int group, int key_dim, int value_dim, Cols a, Cols b) {
	KR_SHARED(ChunkRoom, room);
	pdl_launch();
	pdl_wait();
	int slices = (value_dim + SLICE - 1) / SLICE, h = blockIdx.x / slices, first = blockIdx.x % slices * SLICE, key = h / group;
	if ((int)blockIdx.y >= table[HEAD_PREFILL]) return;
	Span s = span_at(table, blockIdx.y);
	int slot = slot_of(table, s);
	if (slot < 0 || slot >= slots) return;
	Chunks c = {x, ba, x_stride, ba_stride, h, heads * key_dim, key * key_dim, key_dim, a.at + key * a.step + h % group, b.at + key * b.step + h % group, decay[h], bias[h]};
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, piece = warp % 4, steps = (key_dim + 15) / 16;
	bool solves = warp >= 4;
	int column = first + 2 * (lane % 4), own = PIECE * piece + lane / 4;
	states += ((long long)slot * heads * group + h) * key_dim * value_dim + column;
	x += 2 * c.keys + h * value_dim + first, out += h * value_dim + column;

	float state[4][4];
#pragma unroll
	for (int j = 0; j < 4; j++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int i = 16 * warp + 8 * half + lane / 4;
			float2 v = make_float2(0.f, 0.f);
			if (s.pos > 0 && i < key_dim && column + 8 * j < value_dim) v = load2(states + (long long)i * value_dim + 8 * j);
			state[j][2 * half] = v.x, state[j][2 * half + 1] = v.y;
		}
	int row = s.row, end = s.row + s.len, place = 0, n = min(s.len, CHUNK - s.pos % CHUNK);
	copy_rows(room->keys[0], c, c.keys + c.key, row, n, threadIdx.x, CHUNK_THREADS);
	copy_rows(room->queries, c, c.key, row, n, threadIdx.x, CHUNK_THREADS);
	cp_async_commit();
	if (warp == 0) chunk_numbers(room, 0, c, row, n);
	for (;;) {
		put_state(room, state);
		cp_async_wait<0>();
		__syncthreads();
		if (solves) {
			copy_values(room, x, x_stride, row, n, piece, value_dim - first);
			cp_async_commit();
		}
		Gathered p;
		gather(p, room, solves ? room->keys[place] : room->queries, room->keys[place], piece, steps);
		float length[2] = {1.f / sqrtf(p.squares[0] + 1e-6f), 1.f / sqrtf(p.squares[1] + 1e-6f)};
		if (solves && lane % 4 == 0) room->length[own] = length[0], room->length[own + 8] = length[1];
		cp_async_wait<0>();
		__syncthreads();
		int next = row + n, more = min((int)CHUNK, end - next);
		if (solves) {
			float strength[2] = {room->strength[place][own], room->strength[place][own + 8]};
			float factor[2] = {-strength[0] * length[0], -strength[1] * length[1]};
			weigh(p, room, place, piece, factor, false);
#pragma unroll
			for (int half = 0; half < 2; half++)
#pragma unroll
				for (int j = 0; j < 4; j++) {
					float2 v = load2((const bf16 *)(room->change[0] + (own + 8 * half) * SLICE_BYTES) + 8 * j + 2 * (lane % 4));
					p.state[j][2 * half] = strength[half] * (v.x - length[half] * p.state[j][2 * half]);
					p.state[j][2 * half + 1] = strength[half] * (v.y - length[half] * p.state[j][2 * half + 1]);
				}
			solve(p, room, place, piece);
		} else {
			if (more > 0) {
				copy_rows(room->keys[1 - place], c, c.keys + c.key, next, more, threadIdx.x, CHUNK_THREADS / 2);
				copy_rows(room->queries, c, c.key, next, more, threadIdx.x, CHUNK_THREADS / 2);
				cp_async_commit();
			}
			float factor[2] = {1.f, 1.f};
			weigh(p, room, place, piece, factor, true);
			if (more > 0 && warp == 0) chunk_numbers(room, 1 - place, c, next, more);
		}
		__syncthreads();
		if (!solves) {
#pragma unroll
			for (int j = 0; j < PIECES; j++)
				if (j <= piece) add_changes(p.state, room, j, p.keys[2 * j], p.keys[2 * j + 1]);
			float by = 1.f / sqrtf((float)key_dim);
#pragma unroll
			for (int half = 0; half < 2; half++)
#pragma unroll
				for (int j = 0; j < 4; j++)
					if (own + 8 * half < n && column + 8 * j < value_dim)
						store2(out + (long long)(row + own + 8 * half) * out_stride + 8 * j, p.state[j][2 * half] * length[half] * by, p.state[j][2 * half + 1] * length[half] * by);
		}
		if (16 * warp < key_dim) add_kept(state, room, place);
		if (more <= 0) break;
		row = next, n = more, place = 1 - place;
	}
#pragma unroll
	for (int j = 0; j < 4; j++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			int i = 16 * warp + 8 * half + lane / 4;
			if (i < key_dim && column + 8 * j < value_dim) store2(states + (long long)i * value_dim + 8 * j, state[j][2 * half], state[j][2 * half + 1]);
		}
}
KR_EXPORT(kr_delta_chunks)
