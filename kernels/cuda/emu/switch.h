// The switch between two stacks: kr_emu_switch(&save, to) stores the current position and continues
// at to. prepare_stack makes a "to" that begins a function.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && !defined(KR_EMU_UCONTEXT)
#define KR_EMU_JUMPS 1
// It is inline and uses a jump: a call and its return would be two more returns that the processor
// mispredicts, which is the cost of a switch. All registers count as changed, so the compiler saves
// only those that it needs. The caller must not use the memory below its stack pointer
// (-mno-red-zone).
static inline __attribute__((always_inline)) void kr_emu_switch(void **save, void *to) {
	asm volatile(
	    "pushq %%rbp\n\t"
	    "leaq 1f(%%rip), %%rax\n\t"
	    "pushq %%rax\n\t"
	    "movq %%rsp, (%0)\n\t"
	    "movq %1, %%rsp\n\t"
	    "popq %%rax\n\t"
	    "jmpq *%%rax\n"
	    "1:\n\t"
	    "popq %%rbp"
	    : "+D"(save), "+S"(to)
	    :
	    : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
	      "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}

static inline void *prepare_stack(unsigned char *base, size_t size, void (*f)()) {
	void **top = reinterpret_cast<void **>((reinterpret_cast<uintptr_t>(base) + size) & ~(uintptr_t)15);
	*--top = nullptr;                      // f returns to nowhere: it never does
	*--top = reinterpret_cast<void *>(f);  // leaves the stack as a call would
	return top;
}
#else
// On other systems (to try it: EMU_CXX='g++ -DKR_EMU_UCONTEXT'): ucontext, with its record at the
// top of the stack. It is ten times slower.
#include <ucontext.h>
#include <new>

static inline void kr_emu_switch(void **save, void *to) {
	ucontext_t here;
	*save = &here;
	swapcontext(&here, static_cast<ucontext_t *>(to));
}
static inline void *prepare_stack(unsigned char *base, size_t size, void (*f)()) {
	uintptr_t at = (reinterpret_cast<uintptr_t>(base) + size - sizeof(ucontext_t)) & ~(uintptr_t)63;
	ucontext_t *u = new (reinterpret_cast<void *>(at)) ucontext_t;
	getcontext(u);
	u->uc_stack.ss_sp = base;
	u->uc_stack.ss_size = at - reinterpret_cast<uintptr_t>(base);
	u->uc_link = nullptr;
	makecontext(u, f, 0);
	return u;
}
#endif
