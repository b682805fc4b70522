#!/usr/bin/env python3
"""Writes wgmma.cuh: the wgmma instructions of every width as functions.

wgmma_rs<N>(d, a, desc)   bf16, A [64, 16] in registers as m16n8k16 has it (warp w: rows 16w..)
wgmma_ss<N>(d, da, db)    bf16, A [64, 16] in shared memory, K-major like B
..._t                     B is [k][n] in shared memory (N-major), for P * V
wgmma_f16_...             as these, for f16
wgmma_s8_rs/ss<N>         int8, k32, int32 sums
d: thread t of the warpgroup, lane 4g+c of warp w: d[4j], d[4j+1] row 16w+g columns 8j+2c, +1;
d[4j+2], d[4j+3] row 16w+g+8.
"""
import sys

WIDTHS = [8, 16, 24, 32, 64, 96, 128, 192, 256]
F16_WIDTHS = [64, 128, 256]  # of attention
TYPES = {"bf16": "f32.bf16.bf16", "f16": "f32.f16.f16", "s8": "s32.s8.s8"}


def func(name, n, kind, a, trans):
    regs = n // 2
    elem, c, k = ("int", "r", 32) if kind == "s8" else ("float", "f", 16)
    types = TYPES[kind]
    d = ",".join("%%%d" % i for i in range(regs))
    out = ",".join('"+%s"(d[%d])' % (c, i) for i in range(regs))
    if a == "rs":
        src = "{%s},%%%d" % (",".join("%%%d" % (regs + i) for i in range(4)), regs + 4)
        ins = '"r"(a[0]),"r"(a[1]),"r"(a[2]),"r"(a[3]),"l"(db)'
        arg = "const uint32_t (&a)[4], uint64_t db"
        imm = ",p" if kind == "s8" else ",p,1,1,%d" % trans
    else:
        src = "%%%d,%%%d" % (regs, regs + 1)
        ins = '"l"(da),"l"(db)'
        arg = "uint64_t da, uint64_t db"
        imm = ",p" if kind == "s8" else ",p,1,1,0,%d" % trans
    return ('template <> __device__ __forceinline__ void %s<%d>(%s (&d)[%d], %s) {\n'
            '\tasm volatile("{.reg .pred p; setp.ne.b32 p,1,0; wgmma.mma_async.sync.aligned.m64n%dk%d.%s {%s},%s%s;}"\n'
            '\t             : %s : %s);\n}\n') % (name, n, elem, regs, arg, n, k, types, d, src, imm, out, ins)


def main():
    out = ["// Written by gen_wgmma.py; see there. Part of kr.cuh.\n#pragma once\n"]
    for name, kind, a, trans in [("wgmma_rs", "bf16", "rs", 0), ("wgmma_ss", "bf16", "ss", 0),
                                 ("wgmma_rs_t", "bf16", "rs", 1), ("wgmma_ss_t", "bf16", "ss", 1),
                                 ("wgmma_f16_ss", "f16", "ss", 0), ("wgmma_f16_rs_t", "f16", "rs", 1),
                                 ("wgmma_s8_rs", "s8", "rs", 0), ("wgmma_s8_ss", "s8", "ss", 0)]:
        elem = "int" if kind == "s8" else "float"
        arg = "const uint32_t (&a)[4], uint64_t db" if a == "rs" else "uint64_t da, uint64_t db"
        out.append("template <int N> __device__ void %s(%s (&d)[N / 2], %s);\n" % (name, elem, arg))
        for n in F16_WIDTHS if kind == "f16" else WIDTHS:
            out.append(func(name, n, kind, a, trans))
    open(sys.argv[1], "w").write("".join(out))


main()
