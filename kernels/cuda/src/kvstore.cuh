// The functions that rotate rows and store them in a cache of keys and values. All kernels use
// these, so the bits are equal.
#pragma once
#include "elem.cuh"
#include "latent.cuh"

// Bits of a kernel's flags, in addition to those of elem.cuh.
enum { INTERLEAVED = 64, NORM_VEC = 128, CACHE_VEC = 256 };

// --- rotation

// The elements of a row that are rotated: dim elements from `first` on, in each of heads heads of
// head_dim elements.
struct Turn {
	int heads, head_dim, first, dim;
	bool interleaved;
};

// Rotates V pairs by their angles (cos, sin). Interleaved: the pairs are neighbours among the 2V
// elements a, b. Else pair j is a[j] with b[j].
template <int V> KR_DEV void rotate(float (&a)[V], float (&b)[V], const float (&angles)[2 * V], bool interleaved) {
	if (V > 1 && interleaved) {
#pragma unroll
		for (int j = 0; j < V; j++) {
			float &p = 2 * j < V ? a[(2 * j) % V] : b[(2 * j) % V], &q = 2 * j < V ? a[(2 * j + 1) % V] : b[(2 * j + 1) % V];
			float u = p, v = q, c = angles[2 * j], s = angles[2 * j + 1];
			p = fmaf(u, c, -(v * s)), q = fmaf(v, c, u * s);
		}
	} else {
#pragma unroll
		for (int j = 0; j < V; j++) {
			float u = a[j], v = b[j], c = angles[2 * j], s = angles[2 * j + 1];
			a[j] = fmaf(u, c, -(v * s)), b[j] = fmaf(v, c, u * s);
		}
	}
}

KR_DEV void fetch_angles(float (&v)[16], const float *table, int unit) {
	const float4 *p = (const float4 *)table + 4 * unit;
#pragma unroll
	for (int j = 0; j < 4; j++) {
		float4 f = p[j];
		v[4 * j] = f.x, v[4 * j + 1] = f.y, v[4 * j + 2] = f.z, v[4 * j + 3] = f.w;
	}
}
KR_DEV void fetch_angles(float (&v)[2], const float *table, int unit) { v[0] = table[2 * unit], v[1] = table[2 * unit + 1]; }

// The chunks of a row that make up unit u of a head, whose pairs are V*u and on.
template <int V> KR_DEV void unit_chunks(int &one, int &two, const Turn &t, int head, int u) {
	int at = head * t.head_dim + t.first;
	if (t.interleaved) {
		// V = 1: elements 2u and 2u+1; V = 8: elements 16u..16u+15
		one = (at + 2 * V * u) / V, two = one + 1;
	} else {
		one = at / V + u, two = one + t.dim / 2 / V;
	}
}

// Rotates unit i of a row (heads one after the other) in place. a and b are then the values that
// a load returns.
template <int V> KR_DEV void turn_unit(float (&a)[V], float (&b)[V], int &one, int &two, void *row, const Turn &t, const float *angles, int i, bool half) {
	int units = t.dim / 2 / V, u = i % units;
	unit_chunks<V>(one, two, t, i / units, u);
	Chunk<V> ca, cb;
	float w[2 * V];
	fetch(ca, row, one, half);
	fetch(cb, row, two, half);
	fetch_angles(w, angles, u);
	widen(a, ca, half);
	widen(b, cb, half);
	rotate(a, b, w, t.interleaved);
	put(row, one, a, half);
	put(row, two, b, half);
	round_to(a, half);
	round_to(b, half);
}

template <int V> KR_DEV void turn_row(void *row, const Turn &t, const float *angles, int first, int step, bool half) {
	int all = t.heads * (t.dim / 2 / V), one, two;
	for (int i = first; i < all; i += step) {
		float a[V], b[V];
		turn_unit<V>(a, b, one, two, row, t, angles, i, half);
	}
}

// --- the cache

// A cache to write to (a Cache is one to read from).
struct Store {
	char *rows;
	float *scales; // for I8: one float per group
	int kind, stride, scales_stride, group;
	bool wide; // rows are aligned for chunks of 8
	int *mark; // the row's mark: set to layer if a value is NaN or infinite, unless it is set already; may be 0
	int layer;
};

// Marks a row that is not finite. All threads of a row write the same.
KR_DEV void note(const Store &c, bool bad) {
	if (bad && c.mark && *c.mark == 0) *c.mark = c.layer;
}

KR_DEV bool unbounded(float v) { return !(fabsf(v) <= 3.402823466e38f); }
template <int V> KR_DEV bool unbounded(const float (&v)[V]) {
	bool bad = false;
#pragma unroll
	for (int j = 0; j < V; j++) bad |= unbounded(v[j]);
	return bad;
}

// The start of a slot's row.
KR_DEV char *slot_row(const Store &c, int slot) {
	int size = c.kind == F32_ROWS ? 4 : c.kind == BF16_ROWS ? 2 : 1;
	return c.rows + (long long)slot * c.stride * size;
}

// Stores chunk i of a slot's row, unless the cache is I8.
KR_DEV void keep(const Store &c, char *row, int i, const float (&v)[1]) {
	if (c.kind != E4M3_ROWS) put(row, i, v, c.kind == BF16_ROWS);
	else ((e4m3 *)row)[i] = to_e4m3(v[0]);
}
KR_DEV void keep(const Store &c, char *row, int i, const float (&v)[8]) {
	if (!c.wide) {
		for (int j = 0; j < 8; j++) {
			float one[1] = {v[j]};
			keep(c, row, 8 * i + j, one);
		}
	} else if (c.kind != E4M3_ROWS) {
		put(row, i, v, c.kind == BF16_ROWS);
	} else {
		uint32_t lo = 0, hi = 0;
#pragma unroll
		for (int j = 0; j < 4; j++) lo |= (uint32_t)to_e4m3(v[j]) << (8 * j), hi |= (uint32_t)to_e4m3(v[j + 4]) << (8 * j);
		((uint2 *)row)[i] = make_uint2(lo, hi);
	}
}

// The value that an I8 cache stores: no NaN, nothing beyond 2^127.
KR_DEV float tamed(float v) { return v == v ? fminf(fmaxf(v, -0x1p127f), 0x1p127f) : 0.f; }

// Stores the groups of a row as integers (kernels/device.KV): scale = top / 127, value = x * (127
// / top) to nearest even. One warp per group.
KR_DEV void keep_groups(const Store &c, int slot, const void *src, bool half, int cols) {
	int lane = threadIdx.x % 32, warps = blockDim.x / 32;
	for (int g = threadIdx.x / 32; g < cols / c.group; g += warps) {
		float top = 0.f, v[1];
		bool bad = false;
		for (int i = lane; i < c.group; i += 32) {
			get(v, src, g * c.group + i, half);
			top = fmaxf(top, fabsf(tamed(v[0])));
			bad |= unbounded(v[0]);
		}
		note(c, bad);
		top = warp_max(top);
		bool zero = top < 0x1p-100f;
		float inverse = zero ? 0.f : 127.f / top;
		signed char *q = (signed char *)slot_row(c, slot) + g * c.group;
		for (int i = lane; i < c.group; i += 32) {
			get(v, src, g * c.group + i, half);
			q[i] = (signed char)(zero ? 0 : __float2int_rn(tamed(v[0]) * inverse));
		}
		if (lane == 0) c.scales[(long long)slot * c.scales_stride + g] = zero ? 0.f : top / 127.f;
	}
}

template <int V> KR_DEV void keep_row(const Store &c, int slot, const void *src, bool half, int cols) {
	char *row = slot_row(c, slot);
	for (int i = threadIdx.x; i < cols / V; i += blockDim.x) {
		float v[V];
		get(v, src, i, half);
		note(c, unbounded(v));
		keep(c, row, i, v);
	}
}

// --- MLA's latent rows

// Rotates the parts of a row with threads first, first + step, ...: the query heads and, after
// them, the shared key, which is also stored in the cache.
template <int V> KR_DEV void turn_heads(void *q, const Turn &queries, char *kv, const Turn &key, const float *angles, const Store &c, int slot,
                                        int first, int step, bool q_half, bool kv_half) {
	int units = queries.dim / 2 / V, all = queries.heads * units + units, one, two;
	for (int i = first; i < all; i += step) {
		float a[V], b[V];
		if (i < queries.heads * units) {
			turn_unit<V>(a, b, one, two, q, queries, angles, i, q_half);
			continue;
		}
		turn_unit<V>(a, b, one, two, kv, key, angles, i - queries.heads * units, kv_half);
		if (slot < 0 || c.kind == I8_ROWS) continue;
		note(c, unbounded(a) || unbounded(b));
		keep(c, slot_row(c, slot), one, a);
		keep(c, slot_row(c, slot), two, b);
	}
}

// Stores the shared key of a row that is not rotated in the cache.
KR_DEV void keep_key(const Store &c, int slot, const void *kv, int rank, int dim, int first, int step, bool half) {
	if (slot < 0 || c.kind == I8_ROWS) return;
	for (int i = first; i < dim; i += step) {
		float v[1];
		get(v, kv, rank + i, half);
		note(c, unbounded(v));
		keep(c, slot_row(c, slot), rank + i, v);
	}
}

// RMSNorm of the latent part of kv in place, by the first `threads` threads; only they call it.
// Its values are also stored in slot `slot` of the cache, below 0: none. It waits for the kernel
// before this one.
template <int V> KR_DEV void norm_latent(char *kv, const void *w, int rank, float eps, int threads, const Store &c, int slot, bool half, bool w_half) {
	__shared__ float parts[32];
	int chunks = rank / V;
	Chunk<V> weight;
	if (threadIdx.x < chunks) fetch(weight, w, threadIdx.x, w_half);
	pdl_wait();
	bool kept = slot >= 0 && c.kind != I8_ROWS;
	float v[V], t[V], sum = 0.f;
	for (int i = threadIdx.x; i < chunks; i += threads) {
		get(v, kv, i, half);
		for (int j = 0; j < V; j++) sum = fmaf(v[j], v[j], sum);
	}
	float scale = rms_scale(block_sum(sum, threads, parts), rank, eps);
	for (int i = threadIdx.x; i < chunks; i += threads) {
		if (chunks > threads) {
			get(v, kv, i, half);
			fetch(weight, w, i, w_half);
		}
		widen(t, weight, w_half);
		for (int j = 0; j < V; j++) v[j] = v[j] * scale * t[j];
		put(kv, i, v, half);
		if (!kept) continue;
		round_to(v, half);
		note(c, unbounded(v));
		keep(c, slot_row(c, slot), i, v);
	}
}
