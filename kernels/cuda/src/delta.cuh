// Gated DeltaNet: what its kernels share.
#pragma once
#include "spans.cuh"

// The slot of a span's sequence comes before its block table.
KR_DEV int slot_of(const int *table, const Span &s) { return table[s.first - 1]; }

// Where the values of a kind lie in a row: those of key head h begin at at + h*step.
struct Cols { int at, step; };

// Rows have one type T in a launch: with a type known only at run time every load would wait for its
// value before the next load is issued.
KR_DEV float value(float v) { return v; }
KR_DEV float value(bf16 v) { return f32(v); }
KR_DEV float element(const void *row, int i, bool half) { return half ? f32(((const bf16 *)row)[i]) : ((const float *)row)[i]; }
KR_DEV float silu(float v) { return v / (1.f + expf(-v)); }

enum { RULE_COLUMNS = 8, RULE_PARTS = 4 };

// The operands of a row as a lane loads them: KEEP / 8 values of the query and of the key, the value
// of its column, and the head's two numbers.
template <class T, int KEEP> struct Token { T q[KEEP / 8], k[KEEP / 8], v, a, b; };

// What a token does to a column of the state.
struct Numbers { float v, strength, decay; };

// Writes query and key in their places for advance: sq and sk have RULE_PARTS * (KEEP + 4) values of
// shared memory that belong to the warp. The query is of length 1 / sqrt(key_dim), the key of length 1.
template <class T, int KEEP> KR_DEV Numbers prepare(const Token<T, KEEP> &t, int key_dim, float decay, float bias, float *sq, float *sk) {
	enum { PAD = KEEP + 4 };
	int lane = threadIdx.x % 32;
	float q2 = 0.f, k2 = 0.f, q[KEEP / 8], k[KEEP / 8];
#pragma unroll
	for (int j = 0; j < KEEP / 8; j++) {
		bool in = j * 32 + lane < key_dim;
		q[j] = in ? value(t.q[j]) : 0.f, k[j] = in ? value(t.k[j]) : 0.f;
		q2 = fmaf(q[j], q[j], q2), k2 = fmaf(k[j], k[j], k2);
	}
	q2 = warp_sum(q2), k2 = warp_sum(k2);
	float by_q = 1.f / (sqrtf(q2 + 1e-6f) * sqrtf((float)key_dim)), by_k = 1.f / sqrtf(k2 + 1e-6f);
	__syncwarp(); // all have read the row before
#pragma unroll
	for (int j = 0; j < KEEP / 8; j++) {
		int i = j * 32 + lane, at = i / KEEP * PAD + i % KEEP;
		sq[at] = q[j] * by_q, sk[at] = k[j] * by_k;
	}
	__syncwarp();
	float a = value(t.a) + bias;
	Numbers n;
	n.v = value(t.v), n.strength = 1.f / (1.f + expf(-value(t.b)));
	n.decay = expf(decay * (fmaxf(a, 0.f) + log1pf(expf(-fabsf(a)))));
	return n;
}

// Passes a token over KEEP rows of a column, and returns the column's output. The four lanes of a
// column have different rows.
template <int KEEP> KR_DEV float advance(float (&state)[KEEP], const Numbers &n, const float *sq, const float *sk) {
	enum { PAD = KEEP + 4 };
	int part = threadIdx.x % 32 / RULE_COLUMNS;
	float known = 0.f, sum = 0.f, decay = n.decay;
#pragma unroll
	for (int j = 0; j < KEEP; j += 4) {
		float4 k = *(const float4 *)(sk + part * PAD + j);
		known = fmaf(k.x, state[j], known), known = fmaf(k.y, state[j + 1], known);
		known = fmaf(k.z, state[j + 2], known), known = fmaf(k.w, state[j + 3], known);
	}
	known += __shfl_xor_sync(0xffffffffu, known, 8);
	known += __shfl_xor_sync(0xffffffffu, known, 16);
	float change = (n.v - decay * known) * n.strength;
#pragma unroll
	for (int j = 0; j < KEEP; j += 4) {
		float4 q = *(const float4 *)(sq + part * PAD + j), k = *(const float4 *)(sk + part * PAD + j);
		state[j] = fmaf(k.x, change, decay * state[j]), sum = fmaf(q.x, state[j], sum);
		state[j + 1] = fmaf(k.y, change, decay * state[j + 1]), sum = fmaf(q.y, state[j + 1], sum);
		state[j + 2] = fmaf(k.z, change, decay * state[j + 2]), sum = fmaf(q.z, state[j + 2], sum);
		state[j + 3] = fmaf(k.w, change, decay * state[j + 3]), sum = fmaf(q.w, state[j + 3], sum);
	}
	sum += __shfl_xor_sync(0xffffffffu, sum, 8);
	sum += __shfl_xor_sync(0xffffffffu, sum, 16);
	return sum;
}
