// Products with blocks of files for any shape and type of activations: a warp computes one output
// in float32, of weights that are not rounded. The fast kernels (native_few.cu, native_many.cu) are
// compared with these.
#include "native.cuh"

KR_DEV float get(const void *p, int wide, long long i) { return wide ? load((const float *)p + i) : load((const bf16 *)p + i); }

// The product of a row with a row of x that starts at element at; every lane has it.
template <class T> KR_DEV float dot(const Job &job, int expert, int row, int wide, long long at, const uint32_t *table) {
	const uint8_t *v = job.values_of<T>(expert, row / 16), *s = job.small_of<T>(expert, row / 16);
	float sum = 0.f;
	for (int o = threadIdx.x % 32; o < 4 * job.groups; o += 32) {
		typename T::Raw r;
		typename T::Head h;
		uint32_t w[4];
		float scale, least = 0.f;
		T::load(r, v, s, o / 4, row % 16 / 4, o % 4);
		T::open(h, r);
		T::ints(w, r, row % 4, o % 4, table);
		T::scale(scale, least, r, h, row % 4, o % 4, o / 4);
		for (int i = 0; i < 8; i++) {
			float x = __fmul_rn(i % 2 ? hi_f32(w[i / 2]) : lo_f32(w[i / 2]), scale);
			if (T::MINS) x = __fsub_rn(x, least);
			sum = fmaf(x, get(job.x, wide, at + 8 * o + i), sum);
		}
	}
	return warp_sum(sum);
}

// One output: of slot i / rows, of its expert ids[slot]; without ids it is expert 0. Outputs of no
// expert are zero, those of an expert that is not in the bank (map) stay unchanged.
template <class T> KR_DEV void plain(const Job &j, int wide, int slots, const int *ids, int experts, const int *map, uint32_t *table) {
	fill<T>(table);
	pdl_wait();
	pdl_launch();
	__syncthreads();
	long long i = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
	int width = j.mode == TO_HIDDEN ? j.rows / 2 : j.rows;
	if (i >= (long long)slots * width) return;
	int slot = (int)(i / width), row = (int)(i % width), e = ids ? ids[slot] : 0;
	float v = 0.f;
	if (e >= 0 && e < experts) {
		if (map && (e = map[e]) < 0) return;
		long long at = (long long)(slot / j.divisor) * j.x_stride;
		v = dot<T>(j, e, row, wide, at, table);
		if (j.bias) v += j.bias_of(e)[row];
		if (j.mode == TO_HIDDEN) {
			float u = dot<T>(j, e, width + row, wide, at, table);
			if (j.bias) u += j.bias_of(e)[width + row];
			v = j.act(v, u);
		}
	} else if (j.mode == TO_HIDDEN) {
		return;
	}
	if (threadIdx.x % 32 != 0) return;
	if (j.mode != TO_HIDDEN) j.put(slot, row, v);
	else if (wide) ((float *)j.out)[(long long)slot * j.out_stride + row] = v;
	else store((bf16 *)j.out + (long long)slot * j.out_stride + row, v);
}

#define X(name, T)                                                                                        \
	KR_KERNEL(256, 1) kr_native_##name##_plain(JOB_ARGS, int wide, int rows_of_out, const int *ids, int experts, const int *map) { \
		KR_SHARED(uint32_t, table);                                                                       \
		const Job job = JOB;                                                                              \
		plain<T>(job, wide, rows_of_out, ids, experts, map, table);                                       \
	}                                                                                                     \
	KR_EXPORT(kr_native_##name##_plain)
ALL_ENCODINGS(X)
#undef X
