// Operators on one element, or one row index, at a time. Grid: x rows, y pieces of a row; each
// thread has one chunk.
#include "elem.cuh"

// The thread's chunk of a row, or -1 past its end.
KR_DEV int chunk_of(int cols, int v) {
	int i = blockIdx.y * blockDim.x + threadIdx.x;
	return i < cols / v ? i : -1;
}

// out[i] = table[ids[i]], or zeros for an id that is not in the table.
// Flags: out, table.
template <int V> KR_DEV void gather_rows(void *out, int out_stride, const void *table, int table_stride, int rows, const int *ids, int cols, int flags) {
	int i = chunk_of(cols, V);
	if (i < 0) return;
	int id = ids[blockIdx.x];
	float v[V];
	for (int j = 0; j < V; j++) v[j] = 0.f;
	if (id >= 0 && id < rows) get(v, row_of(table, id, table_stride, flags & BF16_1), i, flags & BF16_1);
	put(row_of(out, blockIdx.x, out_stride, flags & BF16_0), i, v, flags & BF16_0);
}

KR_KERNEL(256, 1)
kr_gather_rows(void *out, int out_stride, const void *table, int table_stride, int rows, const int *ids, int cols, int flags) {
	pdl_launch();
	pdl_wait();
	if (flags & VEC) gather_rows<8>(out, out_stride, table, table_stride, rows, ids, cols, flags);
	else gather_rows<1>(out, out_stride, table, table_stride, rows, ids, cols, flags);
}
KR_EXPORT(kr_gather_rows)

// x += delta; a delta of stride 0 is a bias, the same for every row. Flags: x, delta.
template <int V> KR_DEV void add(void *x, int x_stride, const void *delta, int delta_stride, int cols, int flags) {
	int i = chunk_of(cols, V);
	if (i < 0) return;
	char *row = row_of(x, blockIdx.x, x_stride, flags & BF16_0);
	Chunk<V> a, b;
	fetch(a, row, i, flags & BF16_0);
	fetch(b, row_of(delta, blockIdx.x, delta_stride, flags & BF16_1), i, flags & BF16_1);
	float v[V], d[V];
	widen(v, a, flags & BF16_0);
	widen(d, b, flags & BF16_1);
	for (int j = 0; j < V; j++) v[j] += d[j];
	put(row, i, v, flags & BF16_0);
}

KR_KERNEL(256, 1)
kr_add(void *x, int x_stride, const void *delta, int delta_stride, int cols, int flags) {
	pdl_launch();
	pdl_wait();
	if (flags & VEC) add<8>(x, x_stride, delta, delta_stride, cols, flags);
	else add<1>(x, x_stride, delta, delta_stride, cols, flags);
}
KR_EXPORT(kr_add)
