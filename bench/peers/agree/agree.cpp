// agree MODEL ARCHITECTURE VOCAB GENERATE TOKEN...: what llama.cpp computes for a prompt. MODEL need
// not have a tokenizer. Writes float32 logits of VOCAB for each token of the prompt, then GENERATE int32
// tokens of the greedy continuation. testdata/gguf/agree.py compares them with a golden folder's.
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char **argv) {
	if (argc < 6) {
		fprintf(stderr, "usage: agree MODEL ARCHITECTURE VOCAB GENERATE TOKEN...\n");
		return 2;
	}
	const int vocab = atoi(argv[3]), generate = atoi(argv[4]), n = argc - 5;
	ggml_backend_load_all_from_path(".");
	llama_backend_init();
	llama_model_kv_override override[3] = {}; // the last one ends the list
	override[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
	strcpy(override[0].key, "tokenizer.ggml.model");
	strcpy(override[0].val_str, "none");
	override[1].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
	snprintf(override[1].key, sizeof override[1].key, "%s.vocab_size", argv[2]);
	override[1].val_i64 = vocab;
	auto mp = llama_model_default_params();
	mp.kv_overrides = override;
	mp.n_gpu_layers = 0;
	llama_model *model = llama_model_load_from_file(argv[1], mp);
	if (model == nullptr) return 1;
	auto cp = llama_context_default_params();
	cp.n_ctx = 512;
	cp.n_batch = cp.n_ubatch = 256;
	cp.n_threads = cp.n_threads_batch = 1;
	cp.type_k = cp.type_v = GGML_TYPE_F32;
	cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
	llama_context *context = llama_init_from_model(model, cp);
	if (context == nullptr) return 1;
	llama_batch batch = llama_batch_init(256, 0, 1);
	auto put = [&](int i, llama_token token, int at) {
		batch.token[i] = token;
		batch.pos[i] = at;
		batch.n_seq_id[i] = 1;
		batch.seq_id[i][0] = 0;
		batch.logits[i] = 1;
		batch.n_tokens = i + 1;
	};
	for (int i = 0; i < n; i++) put(i, atoi(argv[5 + i]), i);
	std::vector<int> tokens;
	for (int last = n - 1;; last = 0) {
		if (llama_decode(context, batch) != 0) return 1;
		if (tokens.empty())
			for (int i = 0; i < n; i++) fwrite(llama_get_logits_ith(context, i), sizeof(float), vocab, stdout);
		if ((int)tokens.size() == generate) break;
		const float *logits = llama_get_logits_ith(context, last);
		int best = 0;
		for (int v = 1; v < vocab; v++)
			if (logits[v] > logits[best]) best = v;
		put(0, best, n + (int)tokens.size());
		tokens.push_back(best);
	}
	fwrite(tokens.data(), sizeof(int), tokens.size(), stdout);
}
