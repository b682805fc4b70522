#!/usr/bin/env python3
"""Dumps what a Hugging Face model computes for one prompt, for `krater compare --golden OUT`.

    pip install torch transformers safetensors
    python3 dump.py MODEL OUT --text "What is a lighthouse?"
    python3 dump.py MODEL OUT --ids 3,141,59,26,5 --layers 0,1,27 --dtype bfloat16

OUT/goldens.safetensors then holds the operators of the layers (all of them unless --layers
says otherwise), the residual stream after every layer, the router's choices, the logits and a
greedy continuation, under the names of testdata/goldens/README.md. Tolerances are
made for float32 on the CPU; with --dtype bfloat16 compare with --relative 0.06.

How it works: forward hooks on the modules keep their outputs; what happens between modules
(rope) is caught by wrapping the function in the model's own file. Modules that a model does not
have are left out. Nothing of the model is changed.
"""

import argparse
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

# Operators by the names their modules have in an attention block. The name is that of the golden.
ATTENTION = {
    "q_a_proj": "q_a", "q_b_proj": "q", "q_proj": "q", "k_proj": "k", "v_proj": "v",
    "kv_a_proj_with_mqa": "kv_a", "kv_a_layernorm": "kv_norm", "kv_b_proj": "kv_b",
}


class Recorder:
    """Hooks on a model. Rows of the values are tokens."""

    def __init__(self, model, layers):
        self.model, self.layers, self.values, self.handles = model, layers, {}, []
        core = model.model
        self.keep("embed", core.embed_tokens)
        self.keep("final_norm", core.norm)
        for i, layer in enumerate(core.layers):
            self.keep(f"hidden.{i}", layer)
            self.router(i, layer)
            if i in layers:
                self.layer(f"ops.{i}.", layer)
        self.rope = RopeTap(sys.modules[type(model).__module__])

    def hook(self, module, function, before=False):
        if module is not None:
            register = module.register_forward_pre_hook if before else module.register_forward_hook
            self.handles.append(register(function))

    def keep(self, name, module):
        """Keeps a module's output, the first one if it has several."""
        def hook(_, args, out):
            self.values[name] = rows(out[0] if isinstance(out, tuple) else out)
        self.hook(module, hook)

    def layer(self, p, layer):
        attention, mlp = getattr(layer, "self_attn", None), layer.mlp
        self.keep(p + "input_norm", layer.input_layernorm)
        self.keep(p + "post_norm", layer.post_attention_layernorm)
        self.keep(p + "mixer_out", attention)
        self.keep(p + "mlp_out", mlp)
        self.keep(p + "layer_out", layer)
        for attr, name in ATTENTION.items():
            self.keep(p + name, getattr(attention, attr, None))
        self.hook(getattr(attention, "o_proj", None), lambda _, args: self.values.__setitem__(p + "attn", rows(args[0])), before=True)
        if hasattr(mlp, "experts") and not isinstance(mlp.experts, torch.nn.ModuleList):
            self.keep(p + "experts_out", mlp.experts)  # a list of experts is never called as one
        self.keep(p + "shared_out", getattr(mlp, "shared_experts", None))

    def router(self, i, layer):
        """A router gives logits, weights and ids in an order of its own: told apart by type and width."""
        gate = None
        if hasattr(layer.mlp, "experts"):
            gate = getattr(layer.mlp, "gate", getattr(layer.mlp, "router", None))

        def hook(_, args, out):
            out = [t.detach() for t in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(t) and t.dim() >= 2]
            ids = next((t for t in out if not t.is_floating_point()), None)
            floats = [t for t in out if t.is_floating_point()]
            if ids is None:
                return
            weights = next(t for t in floats if t.shape[-1] == ids.shape[-1])
            logits = next((t for t in floats if t.shape[-1] > ids.shape[-1]), None)
            ids, weights = rows(ids), rows(weights).float()
            # By falling weight, then rising id.
            order = sorted_choices(ids, weights)
            self.values[f"router.{i}.ids"] = ids.gather(1, order).to(torch.int32)
            self.values[f"router.{i}.weights"] = weights.gather(1, order)
            if logits is not None:
                self.values[f"router.{i}.logits"] = rows(logits)
        self.hook(gate, hook)

    def run(self, ids):
        """One forward pass over ids; logits [T, V]."""
        logits = forward(self.model, ids)
        for h in self.handles:
            h.remove()
        self.rope.close()
        n = len(self.model.model.layers)
        for i, (q, k) in enumerate(self.rope.calls if len(self.rope.calls) == n else []):
            if i in self.layers:
                self.values[f"ops.{i}.q_pe"], self.values[f"ops.{i}.k_pe"] = q, k
        self.values["hidden"] = torch.stack([self.values.pop(f"hidden.{i}") for i in range(n)])
        self.values["logits"] = logits
        return logits


class RopeTap:
    """Wraps the function that rotates queries and keys, which is called once a layer.

    Latent attention is dumped where the pairs stay where they are (apply_rotary_emb); other code
    puts them into halves, which gives the same dot products in another order.
    """

    def __init__(self, module):
        self.module, self.calls = module, []
        latent = hasattr(module, "apply_rotary_emb") and "kv_a_proj_with_mqa" in open(module.__file__).read()
        grouped = hasattr(module, "apply_rotary_pos_emb") and "kv_a_proj_with_mqa" not in open(module.__file__).read()
        self.name = "apply_rotary_emb" if latent else "apply_rotary_pos_emb" if grouped else None
        if self.name is None:
            return
        self.original = getattr(module, self.name)

        def wrapper(*args, **kwargs):
            q, k = self.original(*args, **kwargs)
            self.calls.append(tuple(x.detach()[0].transpose(0, 1).reshape(x.shape[2], -1) for x in (q, k)))
            return q, k
        setattr(module, self.name, wrapper)

    def close(self):
        if self.name:
            setattr(self.module, self.name, self.original)


def rows(x):
    """[.., T, width] or [T, width] as [T, width]."""
    return x.detach().reshape(-1, x.shape[-1])


def sorted_choices(ids, weights):
    order = [sorted(range(len(i)), key=lambda j: (-w[j], i[j])) for i, w in zip(ids.tolist(), weights.tolist())]
    return torch.tensor(order, device=ids.device)


def forward(model, ids):
    with torch.no_grad():
        device = next(model.parameters()).device
        return model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0]


def greedy(model, ids, count):
    """The continuation, the whole text anew for each token: slow and without a cache to get wrong."""
    ids, out, margins = list(ids), [], []
    for _ in range(count):
        top = forward(model, ids)[-1].float().topk(2)
        out.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        ids.append(out[-1])
    return torch.tensor(out, dtype=torch.int32), torch.tensor(margins)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("model", help="folder or hub name")
    a.add_argument("out", help="folder to write")
    a.add_argument("--text", help="the prompt; no chat template is applied")
    a.add_argument("--ids", help="the prompt as token ids, such as 3,141,59")
    a.add_argument("--layers", default="all", help="layers whose operators are kept, such as 0,1,27 (default: all)")
    a.add_argument("--tokens", type=int, default=8, help="length of the greedy continuation (default: 8)")
    a.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    a.add_argument("--device-map", help="as transformers takes it, such as auto")
    a.add_argument("--trust-remote-code", action="store_true")
    o = a.parse_args()
    if (o.text is None) == (o.ids is None):
        a.error("give one of --text and --ids")
    trust = {"trust_remote_code": True} if o.trust_remote_code else {}
    model = AutoModelForCausalLM.from_pretrained(o.model, torch_dtype=getattr(torch, o.dtype), device_map=o.device_map,
                                                 attn_implementation="eager", **trust).eval()
    ids = [int(i) for i in o.ids.split(",")] if o.ids else AutoTokenizer.from_pretrained(o.model, **trust)(o.text).input_ids
    n = len(model.model.layers)
    layers = range(n) if o.layers == "all" else [int(i) for i in o.layers.split(",")]

    continuation, margins = greedy(model, ids, o.tokens)
    recorder = Recorder(model, set(layers))
    logits = recorder.run(ids)
    p = f"p{len(ids)}."
    gold = {p + name: v for name, v in recorder.values.items()}
    gold.update({p + "input_ids": torch.tensor(ids, dtype=torch.int32), p + "logits_last": logits[-1],
                 p + "greedy_ids": continuation, p + "greedy_margin": margins})
    inv = getattr(getattr(model.model, "rotary_emb", None), "inv_freq", None)
    if inv is not None:
        gold["rope.inv_freq"] = inv
    gold = {k: (v if v.dtype == torch.int32 else v.float()).cpu().contiguous().clone() for k, v in gold.items()}
    os.makedirs(o.out, exist_ok=True)
    save_file(gold, os.path.join(o.out, "goldens.safetensors"))
    print(f"{o.out}/goldens.safetensors: {len(gold)} vectors of {len(ids)} tokens, {n} layers")


if __name__ == "__main__":
    main()
