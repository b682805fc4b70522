// Sums of words, with which a link checks the rows that it has carried (kernels/cuda/elem, sums.go).
#include "kr.cuh"

enum { THREADS = 256 };

// device.SumOf of one word: a bijection of the word for each place.
KR_DEV unsigned long long sum_of(uint32_t part, uint32_t at, uint32_t x) {
	unsigned long long z = ((unsigned long long)(part << 29 | at) << 32) | x;
	z *= 0x9e3779b97f4a7c15ull;
	z ^= z >> 32;
	z *= 0xd6e8feb86659fd93ull;
	return z ^ (z >> 32);
}

KR_DEV unsigned long long sum_part(uint32_t part, const uint32_t *x, int words) {
	const int first = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
	int fours = (size_t)x % 16 ? 0 : words / 4;
	unsigned long long sum = 0;
#pragma unroll 4
	for (int i = first; i < fours; i += step) {
		uint4 v = ((const uint4 *)x)[i];
		sum += sum_of(part, 4 * i, v.x) + sum_of(part, 4 * i + 1, v.y) + sum_of(part, 4 * i + 2, v.z) + sum_of(part, 4 * i + 3, v.w);
	}
	for (int i = 4 * fours + first; i < words; i += step) sum += sum_of(part, i, x[i]);
	return sum;
}

// out [gridDim.x]: the sum of all words of up to three parts is the sum of out. Sums of integers have
// the same bits in any order.
KR_KERNEL(256, 2)
kr_sum_words(unsigned long long *out, const uint32_t *a, int a_words, const uint32_t *b, int b_words, const uint32_t *c, int c_words) {
	__shared__ unsigned long long warps[THREADS / 32];
	pdl_launch();
	pdl_wait();
	unsigned long long sum = 0;
#pragma unroll 1
	for (int part = 0; part < 3; part++) sum += sum_part(part, part == 0 ? a : part == 1 ? b : c, part == 0 ? a_words : part == 1 ? b_words : c_words);
	for (int d = 16; d > 0; d >>= 1) {
		uint32_t low = __shfl_xor_sync(0xffffffffu, (uint32_t)sum, d), high = __shfl_xor_sync(0xffffffffu, (uint32_t)(sum >> 32), d);
		sum += ((unsigned long long)high << 32) | low;
	}
	if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x == 0) {
		for (int w = 1; w < THREADS / 32; w++) sum += warps[w];
		out[blockIdx.x] = sum;
	}
}
KR_EXPORT(kr_sum_words)
