#!/usr/bin/env python3
"""The peer of `krater bench model --device cuda --shape deepseek-v2-lite`: transformers with
the same shape and random bfloat16 weights, on the same card.

Prints one JSON object: prefill {tokens: tok/s} and decode {streams: tok/s} at 2,048 tokens
of context, of each the best of what a user can choose: experts by grouped_mm or
batched_mm, a captured graph with a static cache, and the MoE and the norms compiled.
What it does goes to standard error. Needs torch and transformers 5, a GPU with 40 GB.

usage: transformers_v2lite.py [--seconds 200] [--prefill 512,2048,8192] [--batch 1,32]
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import traceback

CONFIG = dict(
    model_type="deepseek_v2", architectures=["DeepseekV2ForCausalLM"], vocab_size=102400, hidden_size=2048,
    intermediate_size=10944, moe_intermediate_size=1408, num_hidden_layers=27, num_attention_heads=16,
    num_key_value_heads=16, n_shared_experts=2, n_routed_experts=64, num_experts_per_tok=6, first_k_dense_replace=1,
    moe_layer_freq=1, kv_lora_rank=512, q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
    topk_method="greedy", n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0,
    scoring_func="softmax", hidden_act="silu", max_position_embeddings=163840, rms_norm_eps=1e-6, rope_theta=10000,
    rope_scaling=dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707,
                      original_max_position_embeddings=4096),
    attention_bias=False, tie_word_embeddings=False, bos_token_id=100000, eos_token_id=100001)
CONTEXT, CACHE, STEPS = 2048, 2176, 20


def say(*what):
    print(*what, file=sys.stderr, flush=True)


def load(torch):
    from transformers import AutoConfig, AutoModelForCausalLM
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = model.eval()
    model.to_empty(device="cuda")
    for name, p in model.named_parameters():
        p.fill_(1) if "norm" in name else p.normal_(0, 0.02)
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to("cuda")
    return model, config


def timed(torch, f, n=5, warm=2):
    """Median milliseconds of f."""
    for _ in range(warm):
        f()
    torch.cuda.synchronize()
    times = []
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        f()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return statistics.median(times)


def stepper(torch, model, config, batch):
    """A decode step of batch streams at CONTEXT over a static cache, and what rewinds it."""
    from transformers import StaticCache
    cache = StaticCache(config=config, max_cache_len=CACHE)
    ids = torch.randint(0, 100000, (batch, 1), device="cuda")
    pos = torch.full((batch, 1), CONTEXT, device="cuda")
    mask = torch.zeros(batch, 1, 1, CACHE, dtype=torch.bool, device="cuda")
    mask[..., :CONTEXT + 1] = True

    def step():
        return model(ids, past_key_values=cache, attention_mask=mask, position_ids=pos,
                     use_cache=True).logits[:, -1].argmax(-1)

    def rewind():
        for layer in cache.layers:
            layer.cumulative_length.fill_(CONTEXT)

    step()
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
    rewind()
    return step, rewind


def decode(torch, model, config, batch, experts):
    """Tokens a second of a step captured as a graph."""
    model.set_experts_implementation(experts)
    step, rewind = stepper(torch, model, config, batch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    rewind()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    rewind()
    for _ in range(3):
        graph.replay()
    rewind()
    torch.cuda.synchronize()
    start = time.time()
    for _ in range(STEPS):
        graph.replay()
    torch.cuda.synchronize()
    return batch * STEPS / (time.time() - start)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--seconds", type=float, default=200, help="start no new measurement after this time")
    ap.add_argument("--prefill", default="512,2048,8192")
    ap.add_argument("--batch", default="1,32")
    args = ap.parse_args()
    start = time.time()
    import torch
    import transformers
    torch.set_grad_enabled(False)
    model, config = load(torch)
    result = dict(card=torch.cuda.get_device_name(0), torch=torch.__version__, transformers=transformers.__version__,
                  prefill={}, decode={}, tried=[])

    def attempt(name, streams, f):
        if time.time() - start > args.seconds:
            say("no time for", name)
            return
        try:
            rate = f()
        except Exception:
            say("FAILED", name)
            traceback.print_exc(limit=-2)
            return
        finally:
            torch.cuda.empty_cache()
        say(f"{name}: {rate:.0f} tok/s")
        result["tried"].append([name, rate])
        key = str(streams)
        result["decode"][key] = max(rate, result["decode"].get(key, 0))

    model.set_experts_implementation("grouped_mm")
    for n in map(int, args.prefill.split(",")):
        ids = torch.randint(0, 100000, (1, n), device="cuda")
        ms = timed(torch, lambda: model(ids, use_cache=True, logits_to_keep=1))
        result["prefill"][str(n)] = n / ms * 1e3
        say(f"prefill {n}: {n / ms * 1e3:.0f} tok/s")
    batches = [int(b) for b in args.batch.split(",")]
    for b in batches:
        for experts in ("grouped_mm", "batched_mm"):
            attempt(f"decode {b}, {experts}, graph", b, lambda: decode(torch, model, config, b, experts))
    for layer in model.model.layers:
        layer.mlp.compile(dynamic=False)
        layer.input_layernorm.compile(dynamic=False)
        layer.post_attention_layernorm.compile(dynamic=False)
        layer.self_attn.kv_a_layernorm.compile(dynamic=False)
    for b in batches:
        attempt(f"decode {b}, grouped_mm, graph, compiled", b, lambda: decode(torch, model, config, b, "grouped_mm"))
    print(json.dumps(result))


main()
