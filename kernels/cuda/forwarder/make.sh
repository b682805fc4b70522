#!/bin/sh
# Makes the static libcuda.a: make.sh SOURCES OUT. A function is one jump through the
# table that forward.c fills.
set -eu
src=$1 out=$2
awk '{ printf "\"%s\",\n", $1 }' "$src/names.txt" >"$out/names.inc"
{
	echo .text
	awk '{ printf ".globl %s\n.type %s,@function\n%s: jmp *kr_cu_table+%d(%%rip)\n", $1, $1, $1, 8 * (NR - 1) }' "$src/names.txt"
	printf '.globl kr_cu_missing\nkr_cu_missing: movl $3, %%eax\nret\n.section .note.GNU-stack,"",@progbits\n'
} >"$out/jumps.S"
${CC:-gcc} -O2 -Wall -fPIC -I"$out" -c "$src/forward.c" -o "$out/forward.o"
${CC:-gcc} -fPIC -c "$out/jumps.S" -o "$out/jumps.o"
rm -f "$out/libcuda.a"
ar rcsD "$out/libcuda.a" "$out/forward.o" "$out/jumps.o"
