// KDA's prompts in chunks, with matrix products (arXiv 2510.26692; docs/design/cuda.md derives the form).
//
// The logarithm of the decay of channel c up to row t of a chunk is G[t,c]; every sum over channels has factors e^(G[t,c]-G[i,c]). A
// chunk has pieces of 16 rows, and M[p,c] is G behind the eighth row of piece p. For rows t of piece p and i of piece r <= p
//
//     G[t]-G[i] = (G[t]-M[p]) + (M[p]-M[p-1]) + ... + (M[r+1]-M[r]) + (M[r]-G[i])
//
// so queries and keys as left operands have the first factor, keys as right operands the last, and what a warp multiplies of the left
// operand gets the steps between, which are at most 1 and the products of 16 decays. The first and the last stay within eight decays of 1
// in both directions. The floor of a decay bounds all of them. The state follows in the same way: it passes from M to M, and each piece adds its right
// operands times its changes.
//
// With lengths l of keys, strengths b and the changes u of the gated delta rule (delta_chunk.cu), w = l u:
//
//     w[t] = b[t] l[t] v[t] - b[t] l[t]^2 (left(k[t]) S + sum over i < t of (left(k[t]) right(k[i])) w[i])
//     o[t] = left(q[t]) S + sum over i <= t of (left(q[t]) right(k[i])) w[i], over the length of q and sqrt(key_dim)
//     S'   = S decayed + sum over i of right(k[i]) w[i]
//
// All operands are float32 and enter products as two bf16, whose sum has 16 bits; sums and states are float32. Chunks end where
// the position is a multiple of CHUNK, so a row's bits do not depend on where a prompt is cut, if it is cut there.
#include "delta.cuh"

enum { CHUNK = 32, CHUNK_THREADS = 256, KEYS_MAX = 128, SLICE = 32, COLS = SLICE / 2, PIECE = 16, PIECES = CHUNK / PIECE, HALF = PIECE / 2 };
// Rows of keys and of a slice of values in shared memory: an odd number of 16 bytes.
enum { ROW_BYTES = 2 * KEYS_MAX + 16, SLICE_BYTES = 2 * SLICE + 16, EQUATION = PIECE + 4, SIDE = COLS + 4 };
static_assert(CHUNK_THREADS == KEYS_MAX / 2 * (CHUNK / HALF), "a thread has two channels of half a piece");

// A block's shared memory. Arrays of two that are called parts are the upper and the lower bf16 of values.
struct KdaRoom {
	unsigned char left[2][2][CHUNK * ROW_BYTES]; // of queries and of keys, by parts
	unsigned char right[2][CHUNK * ROW_BYTES];   // by parts
	unsigned char state[2][KEYS_MAX * SLICE_BYTES];
	unsigned char change[2][CHUNK * SLICE_BYTES]; // w, by parts
	float equations[PIECES][PIECE][EQUATION];    // those among the rows of a piece
	float side[2 * PIECES][PIECE][SIDE];         // right sides, of a warp each
	float total[CHUNK / HALF][KEYS_MAX];         // logarithms (base 2) of the decays of half a piece
	float step[PIECES + 1][KEYS_MAX];            // decays: to M[0], from M to M, from the last M to the chunk's end
	float squares[2][CHUNK][2];                  // of queries and of keys, by halves of the channels
	float strength[CHUNK];
};

struct Kda {
	const bf16 *x, *ba;
	int x_stride, ba_stride, query, key, key_dim, a, b; // columns of x and of ba
	float by, floor;                                    // base 2
};

// What a thread loads of a chunk: two channels of half a piece.
struct Raw { uint32_t q[HALF], k[HALF], a[HALF]; };

KR_DEV void fetch_raw(Raw &raw, const Kda &d, int row, int n) {
	int c = threadIdx.x % (KEYS_MAX / 2) * 2, first = threadIdx.x / (KEYS_MAX / 2) * HALF;
#pragma unroll
	for (int r = 0; r < HALF; r++) {
		raw.q[r] = raw.k[r] = raw.a[r] = 0;
		if (first + r >= n || c >= d.key_dim) continue;
		const bf16 *x = d.x + (long long)(row + first + r) * d.x_stride + c, *a = d.ba + (long long)(row + first + r) * d.ba_stride + d.a + c;
		raw.q[r] = *(const uint32_t *)(x + d.query), raw.k[r] = *(const uint32_t *)(x + d.key), raw.a[r] = *(const uint32_t *)a;
	}
}

// v as two pairs of bf16.
KR_DEV void split(float v, float w, uint32_t &upper, uint32_t &lower) {
	upper = pack_bf16(v, w);
	lower = pack_bf16(v - lo_f32(upper), w - hi_f32(upper));
}

KR_DEV void put_pair(unsigned char (&to)[2][CHUNK * ROW_BYTES], int at, float v, float w) {
	split(v, w, *(uint32_t *)(to[0] + at), *(uint32_t *)(to[1] + at));
}

// Writes the operands of the rows of half a piece, from the middle of the piece outwards: the first half backwards, with UP.
template <bool UP> KR_DEV void put_rows(KdaRoom *room, const Raw &raw, const float2 (&logs)[HALF], int at) {
	float2 far = make_float2(0.f, 0.f); // the logarithm from the middle of the piece
#pragma unroll
	for (int i = 0; i < HALF; i++) {
		const int r = UP ? HALF - 1 - i : i;
		if (!UP) far.x += logs[r].x, far.y += logs[r].y;
		float2 up = make_float2(exp2_approx(far.x), exp2_approx(far.y)), down = make_float2(exp2_approx(-far.x), exp2_approx(-far.y));
		put_pair(room->left[0], at + r * ROW_BYTES, lo_f32(raw.q[r]) * up.x, hi_f32(raw.q[r]) * up.y);
		put_pair(room->left[1], at + r * ROW_BYTES, lo_f32(raw.k[r]) * up.x, hi_f32(raw.k[r]) * up.y);
		put_pair(room->right, at + r * ROW_BYTES, lo_f32(raw.k[r]) * down.x, hi_f32(raw.k[r]) * down.y);
		if (UP) far.x -= logs[r].x, far.y -= logs[r].y;
	}
}

// Writes the operands of a chunk. Rows behind the n-th are zeros and do not decay.
KR_DEV void prepare(KdaRoom *room, const Kda &d, const Raw &raw, float2 bias, int row, int n) {
	int c = threadIdx.x % (KEYS_MAX / 2) * 2, half = threadIdx.x / (KEYS_MAX / 2), lane = threadIdx.x % 32;
	float2 logs[HALF], total = make_float2(0.f, 0.f);
#pragma unroll
	for (int r = 0; r < HALF; r++) {
		logs[r].x = __fdividef(d.floor, 1.f + exp2_approx(d.by * (lo_f32(raw.a[r]) + bias.x))); // -0 beyond 2^126
		logs[r].y = __fdividef(d.floor, 1.f + exp2_approx(d.by * (hi_f32(raw.a[r]) + bias.y)));
		if (half * HALF + r >= n || c >= d.key_dim) logs[r] = make_float2(0.f, 0.f);
		total.x += logs[r].x, total.y += logs[r].y;
	}
	room->total[half][c] = total.x, room->total[half][c + 1] = total.y;
	if (half % 2) put_rows<false>(room, raw, logs, half * HALF * ROW_BYTES + 2 * c);
	else put_rows<true>(room, raw, logs, half * HALF * ROW_BYTES + 2 * c);
	float squares[2 * HALF];
#pragma unroll
	for (int r = 0; r < HALF; r++) {
		squares[r] = fmaf(lo_f32(raw.q[r]), lo_f32(raw.q[r]), hi_f32(raw.q[r]) * hi_f32(raw.q[r]));
		squares[HALF + r] = fmaf(lo_f32(raw.k[r]), lo_f32(raw.k[r]), hi_f32(raw.k[r]) * hi_f32(raw.k[r]));
	}
#pragma unroll
	for (int by = 16, left = HALF; left > 0; by /= 2, left /= 2) { // lanes share the sums: each keeps half of its values
#pragma unroll
		for (int i = 0; i < left; i++) {
			float give = lane & by ? squares[i] : squares[i + left], keep = lane & by ? squares[i + left] : squares[i];
			squares[i] = keep + __shfl_xor_sync(0xffffffffu, give, by);
		}
	}
	squares[0] += __shfl_xor_sync(0xffffffffu, squares[0], 1);
	if (lane % 2 == 0) room->squares[lane / 16][half * HALF + lane / 2 % HALF][threadIdx.x / 32 % 2] = squares[0];
	if (threadIdx.x < CHUNK)
		room->strength[threadIdx.x] = (int)threadIdx.x < n ? 1.f / (1.f + expf(-f32(d.ba[(long long)(row + threadIdx.x) * d.ba_stride + d.b]))) : 0.f;
}

// The decays from M to M, by the first threads.
KR_DEV void put_steps(KdaRoom *room) {
	int c = threadIdx.x;
	if (c >= KEYS_MAX) return;
	room->step[0][c] = exp2_approx(room->total[0][c]);
#pragma unroll
	for (int p = 1; p < PIECES; p++) room->step[p][c] = exp2_approx(room->total[2 * p - 1][c] + room->total[2 * p][c]);
	room->step[PIECES][c] = exp2_approx(room->total[2 * PIECES - 1][c]);
}

// What a warp computes of its 16 rows of queries or keys: products with the right operands of the pieces up to its own, and with half
// of the columns of the state.
struct Gathered { float keys[PIECES][2][4], state[2][4]; };

// sums += a * b for 16 columns, with all parts but the product of the lower ones.
KR_DEV void multiply(float (&sums)[2][4], const uint32_t (&upper)[4], const uint32_t (&lower)[4], const uint32_t (&b)[4], const uint32_t (&d)[4]) {
	mma_bf16(sums[0], upper, b[0], b[1]), mma_bf16(sums[1], upper, b[2], b[3]);
	mma_bf16(sums[0], lower, b[0], b[1]), mma_bf16(sums[1], lower, b[2], b[3]);
	mma_bf16(sums[0], upper, d[0], d[1]), mma_bf16(sums[1], upper, d[2], d[3]);
}

// A left operand times the factors of its columns, from column 16 k on.
KR_DEV void scale(uint32_t (&upper)[4], uint32_t (&lower)[4], const float *factors) {
	int c = threadIdx.x % 4 * 2;
	float2 near = load2(factors + c), further = load2(factors + c + 8);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float2 by = i < 2 ? near : further;
		split((lo_f32(upper[i]) + lo_f32(lower[i])) * by.x, (hi_f32(upper[i]) + hi_f32(lower[i])) * by.y, upper[i], lower[i]);
	}
}

KR_DEV void gather(Gathered &p, const KdaRoom *room, int role, int piece, int half, int steps) {
	int lane = threadIdx.x % 32;
	uint32_t own = smem_u32(room->left[role][0]) + (PIECE * piece + lane % 16) * ROW_BYTES + lane / 16 * 16;
	uint32_t other = smem_u32(room->right[0]) + (lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16;
	uint32_t state = smem_u32(room->state[0]) + lane % 16 * SLICE_BYTES + lane / 16 * 16 + 2 * COLS * half;
	p = Gathered();
	for (int k = 0; k < steps; k++) {
		uint32_t upper[4], lower[4], b[4], d[4];
		ldmatrix_x4(upper, own + 32 * k);
		ldmatrix_x4(lower, own + CHUNK * ROW_BYTES + 32 * k);
#pragma unroll
		for (int j = PIECES - 1; j >= 0; j--) {
			if (j > piece) continue;
			if (j < piece) scale(upper, lower, room->step[j + 1] + 16 * k);
			ldmatrix_x4(b, other + PIECE * j * ROW_BYTES + 32 * k);
			ldmatrix_x4(d, other + (CHUNK + PIECE * j) * ROW_BYTES + 32 * k);
			multiply(p.keys[j], upper, lower, b, d);
		}
		scale(upper, lower, room->step[0] + 16 * k);
		ldmatrix_x4_trans(b, state + 16 * k * SLICE_BYTES);
		ldmatrix_x4_trans(d, state + (KEYS_MAX + 16 * k) * SLICE_BYTES);
		multiply(p.state, upper, lower, b, d);
	}
}

// Multiplies the products with keys by a factor of their rows. A query sees its own key, a key does not.
KR_DEV void weigh(Gathered &p, int piece, const float (&factor)[2], bool query) {
	int lane = threadIdx.x % 32;
#pragma unroll
	for (int j = 0; j < PIECES; j++)
#pragma unroll
		for (int half = 0; half < 2; half++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				int t = lane / 4 + e / 2 * 8, i = 8 * half + 2 * (lane % 4) + e % 2;
				bool sees = j < piece || (j == piece && (i < t || (query && i == t)));
				p.keys[j][half][e] = sees ? p.keys[j][half][e] * factor[e / 2] : 0.f;
			}
}

// sums += products of a piece's 16 rows times their changes, in half of the columns.
KR_DEV void add_changes(float (&sums)[2][4], const KdaRoom *room, int piece, int half, const float (&keys)[2][4]) {
	int lane = threadIdx.x % 32;
	uint32_t upper[4], lower[4], b[4], d[4];
	uint32_t at = smem_u32(room->change[0]) + (PIECE * piece + lane % 16) * SLICE_BYTES + lane / 16 * 16 + 2 * COLS * half;
#pragma unroll
	for (int i = 0; i < 4; i++) split(keys[i / 2][i % 2 * 2], keys[i / 2][i % 2 * 2 + 1], upper[i], lower[i]);
	ldmatrix_x4_trans(b, at);
	ldmatrix_x4_trans(d, at + CHUNK * SLICE_BYTES);
	multiply(sums, upper, lower, b, d);
}

// Solves the equations of a piece in half of the columns, whose sums over earlier pieces are in right. A column belongs to two lanes.
KR_DEV void solve_piece(KdaRoom *room, int piece, int half, const float (&right)[2][4]) {
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	float(*side)[SIDE] = room->side[2 * piece + half], w[PIECE];
#pragma unroll
	for (int j = 0; j < 2; j++) {
		store2(side[g] + 8 * j + 2 * c, right[j][0], right[j][1]);
		store2(side[g + 8] + 8 * j + 2 * c, right[j][2], right[j][3]);
	}
	__syncwarp();
#pragma unroll
	for (int t = 0; t < PIECE; t++) {
		w[t] = side[t][lane % COLS];
#pragma unroll
		for (int i = 0; i < t; i += 4) {
			float4 m = *(const float4 *)(room->equations[piece][t] + i);
			w[t] = fmaf(m.x, w[i], w[t]);
			if (i + 1 < t) w[t] = fmaf(m.y, w[i + 1], w[t]);
			if (i + 2 < t) w[t] = fmaf(m.z, w[i + 2], w[t]);
			if (i + 3 < t) w[t] = fmaf(m.w, w[i + 3], w[t]);
		}
	}
	bf16 *to = (bf16 *)(room->change[lane / COLS] + PIECE * piece * SLICE_BYTES) + COLS * half + lane % COLS;
#pragma unroll
	for (int t = 0; t < PIECE; t++) {
		bf16 upper = to_bf16(w[t]);
		to[t * (SLICE_BYTES / 2)] = lane < COLS ? upper : to_bf16(w[t] - f32(upper));
	}
}

// Solves a warp's equations, whose products with the state are right sides already.
KR_DEV void solve(Gathered &p, KdaRoom *room, int piece, int half) {
	int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
	for (int j = 0; j < PIECES; j++)
		if (j == piece && half == 0) {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				store2(room->equations[piece][g] + 8 * i + 2 * c, p.keys[j][i][0], p.keys[j][i][1]);
				store2(room->equations[piece][g + 8] + 8 * i + 2 * c, p.keys[j][i][2], p.keys[j][i][3]);
			}
		}
	bar_sync(1, CHUNK_THREADS / 2);
#pragma unroll
	for (int j = 0; j < PIECES; j++) {
		if (j == piece) solve_piece(room, piece, half, p.state);
		if (j == PIECES - 1) break;
		bar_sync(1, CHUNK_THREADS / 2);
		if (j < piece) add_changes(p.state, room, j, half, p.keys[j]);
	}
}

// Passes a warp's 16 rows of the slice of the state over a chunk.
KR_DEV void add_kept(float (&state)[2][2][4], const KdaRoom *room) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	uint32_t keys = smem_u32(room->right[0]) + (lane / 16 * 8 + lane % 8) * ROW_BYTES + 32 * warp + lane / 8 % 2 * 16;
	uint32_t change = smem_u32(room->change[0]) + lane % 16 * SLICE_BYTES + lane / 16 * 16;
#pragma unroll
	for (int piece = 0; piece <= PIECES; piece++) {
		float by[2] = {room->step[piece][16 * warp + lane / 4], room->step[piece][16 * warp + lane / 4 + 8]};
#pragma unroll
		for (int j = 0; j < 8; j++)
#pragma unroll
			for (int e = 0; e < 2; e++) state[j / 4][j / 2 % 2][j % 2 * 2 + e] *= by[j % 2];
		if (piece == PIECES) return;
		uint32_t upper[4], lower[4], b[4], d[4];
		ldmatrix_x4_trans(upper, keys + PIECE * piece * ROW_BYTES);
		ldmatrix_x4_trans(lower, keys + (CHUNK + PIECE * piece) * ROW_BYTES);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			ldmatrix_x4_trans(b, change + PIECE * piece * SLICE_BYTES + 2 * COLS * half);
			ldmatrix_x4_trans(d, change + (CHUNK + PIECE * piece) * SLICE_BYTES + 2 * COLS * half);
			multiply(state[half], upper, lower, b, d);
		}
	}
}

// Writes a warp's 16 rows of the state as operands of products.
KR_DEV void put_state(KdaRoom *room, const float (&state)[2][2][4]) {
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
	for (int i = 0; i < 8; i++) { // halves of rows, then tiles of 8 columns
		int at = (16 * warp + 8 * (i % 2) + lane / 4) * SLICE_BYTES + 4 * (lane % 4) + 16 * (i / 2);
		const float *v = state[i / 4][i / 2 % 2] + i % 2 * 2;
		split(v[0], v[1], *(uint32_t *)(room->state[0] + at), *(uint32_t *)(room->state[1] + at));
	}
}

// Grid: x value heads times slices of 32 columns, y prompts. Warps 0..3 compute the output and warps 4..7 solve the equations, of a piece in half of
// the columns each; and each has 16 rows of the state.
KR_KERNEL(CHUNK_THREADS, 2)
kr_kda_chunks(bf16 *out, int out_stride, const bf16 *x, int x_stride, const bf16 *ba, int ba_stride, const float *decay, const float *bias, float *states,
              const int *table, float floor, int slots, int heads, int group, int key_dim, int value_dim, Cols a, Cols b) {
	KR_SHARED(KdaRoom, room);
	pdl_launch();
	pdl_wait();
	int slices = (value_dim + SLICE - 1) / SLICE, h = blockIdx.x / slices, first = blockIdx.x % slices * SLICE, key = h / group;
	if ((int)blockIdx.y >= table[HEAD_PREFILL]) return;
	Span s = span_at(table, blockIdx.y);
	int slot = slot_of(table, s);
	if (slot < 0 || slot >= slots) return;
	Kda d = {x, ba, x_stride, ba_stride, key * key_dim, (heads + key) * key_dim, key_dim, a.at + h * key_dim, b.at + h, 1.44269504f * decay[h], 1.44269504f * floor};
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, role = warp / 4, piece = warp / 2 % 2, half = warp % 2, steps = (key_dim + 15) / 16;
	int own = PIECE * piece + lane / 4, channel = threadIdx.x % (KEYS_MAX / 2) * 2;
	float2 biases = make_float2(0.f, 0.f);
	if (channel < key_dim) biases = load2(bias + h * key_dim + channel);
	states += ((long long)slot * heads * group + h) * key_dim * value_dim + first + 2 * (lane % 4);
	int column = first + COLS * half + 2 * (lane % 4);
	x += 2 * heads * key_dim + h * value_dim + column, out += h * value_dim + column;

	float state[2][2][4];
#pragma unroll
	for (int i = 0; i < 8; i++) {
		int r = 16 * warp + 8 * (i % 2) + lane / 4;
		float2 v = make_float2(0.f, 0.f);
		if (s.pos > 0 && r < key_dim && first + 2 * (lane % 4) + 8 * (i / 2) < value_dim) v = load2(states + (long long)r * value_dim + 8 * (i / 2));
		state[i / 4][i / 2 % 2][i % 2 * 2] = v.x, state[i / 4][i / 2 % 2][i % 2 * 2 + 1] = v.y;
	}
	Raw raw;
	int row = s.row, end = s.row + s.len, n = min(s.len, CHUNK - s.pos % CHUNK);
	fetch_raw(raw, d, row, n);
	for (;;) {
		prepare(room, d, raw, biases, row, n);
		put_state(room, state);
		__syncthreads();
		put_steps(room);
		int next = row + n, more = min((int)CHUNK, end - next);
		float2 values[4]; // of rows own and own + 8, in two tiles of columns
#pragma unroll
		for (int i = 0; i < 4; i++) {
			values[i] = make_float2(0.f, 0.f);
			int r = own + 8 * (i % 2);
			if (role == 1 && r < n && column + 8 * (i / 2) < value_dim) values[i] = load2(x + (long long)(row + r) * x_stride + 8 * (i / 2));
		}
		__syncthreads();
		Gathered p;
		gather(p, room, role, piece, half, steps);
		if (more > 0) fetch_raw(raw, d, next, more);
		float length[2];
#pragma unroll
		for (int i = 0; i < 2; i++) length[i] = 1.f / sqrtf(room->squares[role][own + 8 * i][0] + room->squares[role][own + 8 * i][1] + 1e-6f);
		if (role == 1) {
			float factor[2];
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float strength = room->strength[own + 8 * i] * length[i];
				factor[i] = -strength * length[i];
#pragma unroll
				for (int j = 0; j < 2; j++) {
					p.state[j][2 * i] = fmaf(factor[i], p.state[j][2 * i], strength * values[2 * j + i].x);
					p.state[j][2 * i + 1] = fmaf(factor[i], p.state[j][2 * i + 1], strength * values[2 * j + i].y);
				}
			}
			weigh(p, piece, factor, false);
			solve(p, room, piece, half);
		} else {
			float factor[2] = {1.f, 1.f};
			weigh(p, piece, factor, true);
		}
		__syncthreads();
		if (role == 0) {
#pragma unroll
			for (int j = 0; j < PIECES; j++)
				if (j <= piece) add_changes(p.state, room, j, half, p.keys[j]);
			float by = 1.f / sqrtf((float)key_dim);
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int r = own + 8 * (i % 2);
				float factor = length[i % 2] * by;
				if (r < n && column + 8 * (i / 2) < value_dim)
					store2(out + (long long)(row + r) * out_stride + 8 * (i / 2), p.state[i / 2][i % 2 * 2] * factor, p.state[i / 2][i % 2 * 2 + 1] * factor);
			}
		}
		if (16 * warp < key_dim) add_kept(state, room);
		if (more <= 0) break;
		row = next, n = more;
		__syncthreads(); // all have read the operands
	}
#pragma unroll
	for (int i = 0; i < 8; i++) {
		int r = 16 * warp + 8 * (i % 2) + lane / 4;
		if (r < key_dim && first + 2 * (lane % 4) + 8 * (i / 2) < value_dim)
			store2(states + (long long)r * value_dim + 8 * (i / 2), state[i / 4][i / 2 % 2][i % 2 * 2], state[i / 4][i / 2 % 2][i % 2 * 2 + 1]);
	}
}
KR_EXPORT(kr_kda_chunks)
