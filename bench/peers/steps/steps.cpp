// steps MODEL THREADS PROMPT RUNS TOKENS: the peer's speed with prompts of PROMPT tokens and with
// decoded tokens, eight a sample, and the least processor time of a prompt and of a token. Prints what
// llama-bench -o json prints of it, and cpu_ms. Tokens are random; the first run of each is not counted.
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/resource.h>
#include <vector>

static llama_context *context;
static int vocab;

// cpu is the processor time of the process in ms.
static double cpu() {
	rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}

// decode computes n random tokens in one batch.
static void decode(int n) {
	std::vector<llama_token> tokens(n);
	for (auto &t : tokens) t = rand() % vocab;
	if (llama_decode(context, llama_batch_get_one(tokens.data(), n)) != 0) exit(1);
	llama_synchronize(context);
}

// sample runs several batches of n tokens: samples_ts and the least processor time of a batch.
static std::string sample(int runs, int batches, int n) {
	std::string rates;
	double least = 1e30;
	for (int i = 0; i <= runs; i++) {
		if (n > 1) llama_memory_clear(llama_get_memory(context), false);
		double before = cpu();
		auto start = std::chrono::steady_clock::now();
		for (int k = 0; k < batches; k++) decode(n);
		double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
		if (i == 0) continue;
		least = std::min(least, (cpu() - before) / batches);
		rates += (i > 1 ? ", " : "") + std::to_string(batches * n / s);
	}
	return "\"samples_ts\": [" + rates + "], \"cpu_ms\": " + std::to_string(least);
}

int main(int argc, char **argv) {
	if (argc != 6) return fprintf(stderr, "usage: steps MODEL THREADS PROMPT RUNS TOKENS\n"), 2;
	const int threads = atoi(argv[2]), prompt = atoi(argv[3]), runs = atoi(argv[4]), tokens = atoi(argv[5]);
	std::string here = argv[0];
	ggml_backend_load_all_from_path(here.substr(0, here.find_last_of('/')).c_str());
	llama_backend_init();
	llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
	auto mp = llama_model_default_params();
	mp.n_gpu_layers = 0;
	llama_model *model = llama_model_load_from_file(argv[1], mp);
	if (model == nullptr) return fprintf(stderr, "%s: not loaded\n", argv[1]), 1;
	vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
	auto cp = llama_context_default_params();
	cp.n_ctx = prompt + tokens + 64;
	cp.n_threads = cp.n_threads_batch = threads;
	context = llama_init_from_model(model, cp);
	if (context == nullptr) return fprintf(stderr, "no context\n"), 1;
	char name[128];
	llama_model_desc(model, name, sizeof name);
	const char *line = "%s{\"n_prompt\": %d, \"n_gen\": %d, \"n_depth\": 0, \"n_threads\": %d, \"model_type\": \"%s\", %s}";
	printf(line, "[", prompt, 0, threads, name, sample(runs, 1, prompt).c_str());
	llama_memory_clear(llama_get_memory(context), false);
	printf(line, ",\n ", 0, 8, threads, name, sample(tokens / 8, 8, 1).c_str());
	printf("]\n");
}
