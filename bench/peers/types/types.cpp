// types SECONDS TYPE...: the best rates of the peer's matrix products on one thread, for each type of
// weights: one row of activations against weights that no cache holds, and 48 and 512 rows. It tries
// the weights as they are and in the layout that the peer repacks them to, where it has one, and
// prints the better. A measurement takes SECONDS.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

using Clock = std::chrono::steady_clock;
const int columns = 2048;

static ggml_backend_dev_t device;
static ggml_backend_t backend;

template <typename F> F symbol(const char *name) {
	return (F)ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name);
}

// repacked is a buffer type that products with w can use, null if there is none.
static ggml_backend_buffer_type_t repacked(ggml_tensor *w, ggml_tensor *product) {
	auto list = symbol<ggml_backend_buffer_type_t *(*)(ggml_backend_dev_t)>("ggml_backend_dev_get_extra_bufts");
	for (auto *type = list ? list(device) : nullptr; type && *type; type++) {
		auto buffer = ggml_backend_buft_alloc_buffer(*type, 0);
		w->buffer = buffer;
		bool takes = ggml_backend_dev_supports_op(device, product);
		w->buffer = nullptr;
		ggml_backend_buffer_free(buffer);
		if (takes) return *type;
	}
	return nullptr;
}

// best is the shortest time of a product with one of several matrices [rows, columns] in turn; 0: there is
// no such layout.
static double best(ggml_type type, int m, int rows, int copies, bool repack, double seconds) {
	ggml_init_params room = {(ggml_tensor_overhead() * 4 + ggml_graph_overhead()) * (copies + 1), nullptr, true};
	ggml_context *weights = ggml_init(room), *rest = ggml_init(room);
	std::vector<ggml_tensor *> w;
	for (int i = 0; i < copies; i++) w.push_back(ggml_new_tensor_2d(weights, type, columns, rows));
	ggml_tensor *x = ggml_new_tensor_2d(rest, GGML_TYPE_F32, columns, m);
	std::vector<ggml_cgraph *> graphs;
	for (auto *t : w) {
		graphs.push_back(ggml_new_graph(rest));
		ggml_build_forward_expand(graphs.back(), ggml_mul_mat(rest, t, x));
	}
	auto plain = ggml_backend_dev_buffer_type(device), layout = repack ? repacked(w[0], ggml_graph_node(graphs[0], 0)) : plain;
	double shortest = 0;
	auto held = layout ? ggml_backend_alloc_ctx_tensors_from_buft(weights, layout) : nullptr;
	if (held) {
		std::vector<unsigned char> bytes(ggml_nbytes(w[0]));
		unsigned seed = 1;
		for (auto &b : bytes) b = ((seed = seed * 1664525u + 1013904223u) >> 20) & 0x3f; // every scale is finite
		for (auto *t : w) ggml_backend_tensor_set(t, bytes.data(), 0, bytes.size());
		auto others = ggml_backend_alloc_ctx_tensors_from_buft(rest, plain);
		std::vector<float> values((size_t)columns * m);
		for (size_t i = 0; i < values.size(); i++) values[i] = (float)(i * 7919 % 1009) / 500 - 1;
		ggml_backend_tensor_set(x, values.data(), 0, values.size() * sizeof(float));
		auto end = Clock::now() + std::chrono::duration<double>(seconds);
		for (int i = 0; Clock::now() < end; i++) {
			auto start = Clock::now();
			ggml_backend_graph_compute(backend, graphs[i % copies]);
			double s = std::chrono::duration<double>(Clock::now() - start).count();
			shortest = shortest == 0 ? s : std::min(shortest, s);
		}
		ggml_backend_buffer_free(held);
		ggml_backend_buffer_free(others);
	}
	ggml_free(weights);
	ggml_free(rest);
	return shortest;
}

int main(int n, char **args) {
	if (n < 3) return fprintf(stderr, "usage: types SECONDS TYPE...\n"), 2;
	std::string here = args[0];
	ggml_backend_load_all_from_path(here.substr(0, here.find_last_of('/')).c_str());
	device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
	backend = ggml_backend_dev_init(device, nullptr);
	symbol<void (*)(ggml_backend_t, int)>("ggml_backend_set_n_threads")(backend, 1);
	for (int a = 2; a < n; a++) {
		int type = 0;
		while (type < GGML_TYPE_COUNT && (!ggml_type_name((ggml_type)type) || strcmp(ggml_type_name((ggml_type)type), args[a]))) type++;
		if (type == GGML_TYPE_COUNT) return fprintf(stderr, "no type %s\n", args[a]), 1;
		size_t row = ggml_row_size((ggml_type)type, columns);
		for (int m : {1, 48, 512}) {
			int rows = m == 1 ? 4000000 / row / 64 * 64 : 2816, copies = m == 1 ? 40 : 1;
			double s = best((ggml_type)type, m, rows, copies, false, atof(args[1])), r = best((ggml_type)type, m, rows, copies, true, atof(args[1]));
			bool packed = r > 0 && r < s;
			s = packed ? r : s;
			printf("%-8s %3d rows %6.2f GB/s %7.1f GOP/s%s\n", args[a], m, rows * row / s / 1e9, 2.0 * rows * columns * m / s / 1e9, packed ? ", repacked" : "");
			fflush(stdout);
		}
	}
}
