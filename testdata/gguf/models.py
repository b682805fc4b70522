"""Writes golden folders as GGUF, as llama.cpp's conversion does, with the Python package gguf.

A model's file is not kept: NAME.head has the bytes before the tensors, NAME.json
has the sha256 of the whole file and says which tensors of the folder make each stored one. The
tests build the file from these and the folder.
"""
import hashlib
import json
import pathlib
import re
import tempfile

import numpy as np
import gguf
from gguf import GGMLQuantizationType as T, MODEL_ARCH as A

ARCHES = {
    "llama": A.LLAMA, "mistral": A.LLAMA, "mixtral": A.LLAMA, "qwen2": A.QWEN2, "qwen2_moe": A.QWEN2MOE, "qwen3": A.QWEN3,
    "qwen3_moe": A.QWEN3MOE, "qwen3_next": A.QWEN3NEXT, "qwen3_5_text": A.QWEN35, "qwen3_5_moe_text": A.QWEN35MOE, "olmoe": A.OLMOE, "deepseek_v2": A.DEEPSEEK2, "deepseek_v3": A.DEEPSEEK2,
    "glm4_moe": A.GLM4_MOE, "minimax_m2": A.MINIMAXM2, "gpt_oss": A.GPT_OSS, "deepseek_v32": A.GLM_DSA, "glm_moe_dsa": A.GLM_DSA,
}
# An architecture that the package does not have yet: llama.cpp's, with the tensors of glm-dsa.
LATER = {"deepseek_v32": "deepseek32"}
LATENT = (A.DEEPSEEK2, A.GLM_DSA)
LINEAR = (A.QWEN3NEXT, A.QWEN35, A.QWEN35MOE)


def read(folder):
    """The tensors of a folder as float32, by name, and which of them were bfloat16."""
    out = {}
    for path in sorted(folder.glob("model*.safetensors")):
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        for name, e in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            raw = data[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]]
            if e["dtype"] == "BF16":
                x = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            elif e["dtype"] == "F32":
                x = np.frombuffer(raw, "<f4")
            else:
                raise ValueError(f"{name} is {e['dtype']}")
            out[name] = x.reshape(e["shape"])
    return out


def text_alone(tensors):
    """The text model of a model for text and images, with each expert's tensors apart and without the draft layer (--no-mtp)."""
    out = {}
    for name, x in tensors.items():
        name = name.replace("model.language_model.", "model.")
        if name.startswith("mtp."):
            continue
        m = re.search(r"(.*experts)\.(gate_up|down)_proj$", name)
        if not m:
            out[name] = x
            continue
        for e, y in enumerate(x):
            half = len(y) // 2
            for part, z in ([("down", y)] if m[2] == "down" else [("gate", y[:half]), ("up", y[half:])]):
                out[f"{m[1]}.{e}.{part}_proj.weight"] = z
    return out


def parameters(w, c, arch):
    """What TextModel.set_gguf_parameters and the families' own methods write."""
    rope = c.get("rope_scaling") or {}
    w.add_block_count(c["num_hidden_layers"] + c.get("num_nextn_predict_layers", 0) * (arch == A.GLM4_MOE))
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    if "intermediate_size" in c:
        w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(1 if arch in LATENT else c["num_key_value_heads"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    elif kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    first = lambda *names: next((c[n] for n in names if c.get(n) is not None), None)
    if (n := first("num_local_experts", "num_experts", "n_routed_experts")) is not None:
        w.add_expert_count(n)
        w.add_expert_used_count(c["num_experts_per_tok"])
    if (n := c.get("n_group")) is not None:
        w.add_expert_group_count(n)
    if (n := c.get("topk_group")) is not None:
        w.add_expert_group_used_count(n)
    if (s := c.get("scoring_func")) is not None:
        w.add_expert_gating_func(getattr(gguf.ExpertGatingFuncType, s.upper()))
    if c.get("head_dim") is not None and arch not in LATENT:
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    if arch == A.LLAMA:
        w.add_vocab_size(c["vocab_size"])
        w.add_rope_dimension_count(head)
    if arch in (A.QWEN2MOE, A.QWEN3MOE, A.QWEN3NEXT, A.QWEN35MOE):
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in c:
            w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if "mrope_section" in c:
        w.add_rope_dimension_sections((c["mrope_section"] + [0] * 4)[:4])
    if arch in LINEAR:
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        w.add_full_attention_interval(c.get("full_attention_interval", 4))
        w.add_rope_dimension_count(int(head * c.get("partial_rotary_factor", 0.25)))
    if arch in LATENT:
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_vocab_size(c["vocab_size"])
        if c.get("q_lora_rank") is not None:
            w.add_q_lora_rank(c["q_lora_rank"])
        w.add_kv_lora_rank(c["kv_lora_rank"])
        w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
        w.add_value_length(c["kv_lora_rank"])
        w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        w.add_value_length_mla(c["v_head_dim"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        if c.get("norm_topk_prob"):
            w.add_expert_weights_norm(True)
        w.add_rope_dimension_count(c["qk_rope_head_dim"])
        if (m := rope.get("mscale_all_dim")) is not None:
            w.add_rope_scaling_yarn_log_mul(0.1 * m)
    if arch == A.GLM_DSA:
        w.add_nextn_predict_layers(c["num_nextn_predict_layers"])
        w.add_indexer_head_count(c["index_n_heads"])
        w.add_indexer_key_length(c["index_head_dim"])
        w.add_indexer_top_k(c["index_topk"])
        if "indexer_types" in c:  # add_indexer_types of llama.cpp's later package
            w.add_array(f"{w.arch}.attention.indexer.types", [t == "full" for t in c["indexer_types"]])
    if arch == A.GLM4_MOE:
        w.add_rope_dimension_count(int(head * c.get("partial_rotary_factor", 0.5)))
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_nextn_predict_layers(c.get("num_nextn_predict_layers", 0))
    if arch == A.MINIMAXM2:
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_rope_dimension_count(c["rotary_dim"])
    if arch == A.GPT_OSS:
        w.add_sliding_window(c["sliding_window"])
        w.add_expert_feed_forward_length(c["intermediate_size"])
    for key, add in (("bos_token_id", w.add_bos_token_id), ("eos_token_id", w.add_eos_token_id), ("pad_token_id", w.add_pad_token_id)):
        n = c.get(key)
        if n is not None:
            add(n[0] if isinstance(n, list) else n)


def permute(x, heads):
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def stored(name, x, c, arch):
    """The tensors that one of the folder becomes: (name to map, operation, its number, values)."""
    heads, kv = c["num_attention_heads"], c.get("num_key_value_heads", 0)
    if arch == A.LLAMA and re.search(r"[qk]_proj\.(weight|bias)$", name):
        n = heads if "q_proj" in name else kv
        return [(name, "permute", n, permute(x, n))]
    if name.endswith("kv_b_proj.weight"):
        nope, v = c["qk_nope_head_dim"], c["v_head_dim"]
        both = x.reshape(heads, nope + v, -1)
        return [(name.replace("kv_b", "k_b"), "keys", heads, both[:, :nope].swapaxes(1, 2)), (name.replace("kv_b", "v_b"), "values", heads, both[:, nope:])]
    if name.endswith("e_score_correction_bias"):
        return [(name.replace("_bias", ".bias"), "copy", 0, x)]
    if arch in (A.QWEN35, A.QWEN35MOE) and ".linear_attn." in name and not name.endswith("norm.weight"):
        return tiled(name, x, c)
    if arch in LINEAR:
        if name.endswith(".A_log"):
            return [(name, "negexp", 0, (-np.exp(x.astype(np.float64))).astype(np.float32))]
        if name.endswith(".dt_bias"):
            return [(name.replace("dt_bias", "dt_proj.bias"), "copy", 0, x)]
        if "conv1d" in name:
            return [(name, "copy", 0, x.reshape(x.shape[0], -1))]
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            return [(name, "plus", 1, x + np.float32(1))]
        if name.endswith("in_proj_qkvz.weight"):
            k, n = c["linear_key_head_dim"], c["linear_num_key_heads"]
            v = c["linear_num_value_heads"] // n * c["linear_value_head_dim"]
            y = x.reshape(n, 2 * k + 2 * v, -1)
            q, kk, vv, z = (a.reshape(-1, x.shape[1]) for a in np.split(y, [k, 2 * k, 2 * k + v], axis=1))
            bid = re.search(r"layers\.(\d+)", name)[1]
            return [(f"blk.{bid}.attn_qkv.weight", "qkv", n, np.concatenate([q, kk, vv])), (f"blk.{bid}.attn_gate.weight", "z", n, z)]
    if arch == A.GPT_OSS:
        if name.endswith("sinks"):
            return [(name + ".weight", "copy", 0, x)]
        m = re.search(r"(.*experts\.)(gate_up|down)_proj(_bias)?$", name)
        if m:
            end, y = (".bias", x) if m[3] else (".weight", x.swapaxes(1, 2))
            if m[2] == "down":
                return [(m[1] + "down_proj" + end, "turned", 0, y)]
            return [(m[1] + "gate_proj" + end, "turned even", 0, y[:, ::2]), (m[1] + "up_proj" + end, "turned odd", 0, y[:, 1::2])]
    return [(name, "copy", 0, x)]


def tiled(name, x, c):
    """What _LinearAttentionVReorderBase and Qwen3NextModel make of it: the first value head of every key head, then the second."""
    keys, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    n = 1 if re.search(r"(in_proj_[ab]\.weight|A_log|dt_bias)$", name) else c["linear_value_head_dim"]
    order = lambda y: y.reshape(keys, heads // keys, n, -1).swapaxes(0, 1).reshape(y.shape)
    if "conv1d" in name:
        x = x.reshape(x.shape[0], -1)
    if "out_proj" in name:
        return [(name, "tiled columns", n, np.ascontiguousarray(order(x.T).T))]
    rest = len(x) - heads * n
    y = np.concatenate([x[:rest], order(x[rest:])])
    if name.endswith("A_log"):
        return [(name, "tiled negexp", n, (-np.exp(y.astype(np.float64))).astype(np.float32))]
    return [(name.replace("dt_bias", "dt_proj.bias"), "tiled", n, y)]


def bf16(x):
    n = x.view(np.uint32)
    return ((n + 0x7fff + (n >> 16 & 1)) >> 16).astype(np.uint16)


def make(folder, keep=None):
    """The head and the description of a folder's file, which is kept under the name of keep."""
    c, weights = json.loads((folder / "config.json").read_text()), read(folder)
    if c["model_type"] == "glm_moe_dsa":
        c = c | c["rope_parameters"]
    if "text_config" in c and "rope_parameters" in c["text_config"]:
        c, weights = c["text_config"] | c["text_config"]["rope_parameters"], text_alone(weights)
    arch = ARCHES[c["model_type"]]
    layers = c["num_hidden_layers"] + c.get("num_nextn_predict_layers", 0)
    names = gguf.get_tensor_name_map(arch, layers)
    with tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp) / "model.gguf"
        w = gguf.GGUFWriter(path, LATER.get(c["model_type"], gguf.MODEL_ARCH_NAMES[arch]))
        parameters(w, c, arch)
        parts, made = {}, []
        for name, x in weights.items():
            if name == "lm_head.weight" and c.get("tie_word_embeddings"):
                continue
            m = re.search(r"(.*experts)\.(\d+)\.(.*)", name)
            if m:
                parts.setdefault((m[1], m[3]), {})[int(m[2])] = x
            else:
                made += [(n, op, k, name, y) for n, op, k, y in stored(name, x, c, arch)]
        for (head, tail), e in parts.items():
            target = f"{head}.{tail}" if "block_sparse" not in head or arch == A.MINIMAXM2 else f"{head.replace('model.', '').replace('block_sparse_moe', 'feed_forward')}.{tail}"
            made.append((target, "stack", len(e), f"{head}.*.{tail}", np.stack([e[i] for i in range(len(e))])))
        if (c.get("rope_scaling") or {}).get("rope_type") == "llama3":
            made.append(("rope_freqs.weight", "llama3", 0, "", llama3(c)))
        tensors = []
        for n, op, k, source, y in made:
            new = n if n.startswith(("blk.", "rope_freqs")) else names.get_name(n, try_suffixes=(".weight", ".bias"))
            if new is None:
                raise ValueError(f"no place for {n}")
            wide = np.squeeze(y).ndim <= 1 or "ffn_gate_inp" in new or "ssm_conv1d" in new or "indexer.proj" in new or new.endswith(".bias") or op == "plus"
            y = np.ascontiguousarray(np.squeeze(y), dtype=np.float32)
            if wide:
                w.add_tensor(new, y)
            else:
                w.add_tensor(new, bf16(y).view(np.uint8).reshape(*y.shape[:-1], -1), raw_dtype=T.BF16)
            tensors.append([new, op, k, source])
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        data = path.read_bytes()
        if keep:
            pathlib.Path(keep).write_bytes(data)
    start = gguf_start(data, len(tensors))
    return data[:start], {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "tensors": tensors}


def llama3(c):
    """What LlamaModel.generate_extra_tensors computes."""
    r = c["rope_scaling"]
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    original = r["original_max_position_embeddings"]
    out = []
    for f in 1 / (c["rope_theta"] ** (np.arange(0, dim, 2) / dim)):
        wave = 2 * np.pi / f
        smooth = (original / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
        out.append(1 if wave < original / r["high_freq_factor"] else r["factor"] if wave > original / r["low_freq_factor"]
                   else 1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def gguf_start(data, tensors):
    """Where the bytes of the tensors start."""
    path = tempfile.NamedTemporaryFile(suffix=".gguf")
    path.write(data)
    path.flush()
    return min(int(t.data_offset) for t in gguf.GGUFReader(path.name).tensors)
