// The switch between two stacks: kr_emu_switch(&save, to) stores where it stopped and
// goes on where to stopped. prepare_stack makes a "to" that begins a function.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
extern "C" void kr_emu_switch(void **save, void *to);
asm(R"(
.text
.globl kr_emu_switch
.hidden kr_emu_switch
.type kr_emu_switch,@function
kr_emu_switch:
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
.size kr_emu_switch,.-kr_emu_switch
)");

static inline void *prepare_stack(unsigned char *base, size_t size, void (*f)()) {
	void **top = reinterpret_cast<void **>((reinterpret_cast<uintptr_t>(base) + size) & ~(uintptr_t)15);
	*--top = nullptr;                      // f returns to nowhere: it never does
	*--top = reinterpret_cast<void *>(f);  // for ret; leaves the stack as a call would
	for (int i = 0; i < 6; i++) *--top = nullptr;
	return top;
}
#else
// Elsewhere: ucontext, its record at the top of the stack.
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
