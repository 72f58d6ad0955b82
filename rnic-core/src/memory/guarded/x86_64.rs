//! The routines that access memory which others watch, or which may be gone.
//!
//! They use no stack, and so can be left at any instruction: the handler goes on at a landing pad,
//! which returns to the caller that it faulted. Each has the addresses where a fault is expected in
//! r10 (the first) and r11 (past the last), where the handler finds them.
//!
//! The copies go upwards, and access each octet once: aligned words up to the first multiple of 8,
//! then whole words of 8 octets, several with one instruction, then what is left in words that
//! become smaller. The last word has an instruction of its own: the halves of a wide store that
//! crosses a cache line may become visible in any order. A wide access never tears an aligned word
//! of 8, because it starts at one, and processors cut accesses at cache lines or into halves.

use std::arch::{global_asm, is_x86_feature_detected};
use std::ops::Range;

use nix::libc::{REG_R10, REG_R11, REG_RIP, c_int, ucontext_t};

/// Octets of the smallest page. Some faults are told by page.
pub(super) const PAGE: usize = 4096;

/// Octets from which wide registers pay.
const WIDE: usize = 256;

global_asm!(
    ".pushsection .text.rnic_core_guarded, \"ax\", @progbits",
    ".hidden rnic_core_guarded_begin",
    ".hidden rnic_core_guarded_wide",
    ".hidden rnic_core_guarded_end",
    ".hidden rnic_core_guarded_fault",
    ".hidden rnic_core_guarded_wide_fault",
    ".hidden rnic_core_guarded_copy",
    ".hidden rnic_core_guarded_copy_wide",
    ".hidden rnic_core_guarded_load",
    ".hidden rnic_core_guarded_exchange",
    ".globl rnic_core_guarded_begin",
    ".globl rnic_core_guarded_wide",
    ".globl rnic_core_guarded_end",
    ".globl rnic_core_guarded_fault",
    ".globl rnic_core_guarded_wide_fault",
    ".globl rnic_core_guarded_copy",
    ".globl rnic_core_guarded_copy_wide",
    ".globl rnic_core_guarded_load",
    ".globl rnic_core_guarded_exchange",
    ".p2align 6",
    "rnic_core_guarded_begin:",
    // copy(rdi: to, rsi: from, rdx: octets, ecx: octets up to the first word, r8: first, r9: end)
    "rnic_core_guarded_copy:",
    ".cfi_startproc",
    "mov r10, r8",
    "mov r11, r9",
    "test ecx, ecx",
    "jnz 30f",
    // What is left starts at a word. From here on rdx is one less than is left: so its bits above
    // the lowest three count the words in front of the last one.
    "21:",
    "sub rdx, 1",
    "jb 29f",
    "sub rdx, 64",
    "jb 23f",
    "22:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "jae 22b",
    "23:",
    "test dl, 32",
    "jz 24f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "add rsi, 32",
    "add rdi, 32",
    "24:",
    "test dl, 16",
    "jz 25f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "25:",
    "test dl, 8",
    "jz 26f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    // The last word, or smaller ones.
    "26:",
    "and edx, 7",
    "cmp edx, 7",
    "jne 27f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret",
    "27:",
    "inc edx",
    // Fewer than 8 octets, as many as edx says, at a multiple of the largest word that they hold.
    "28:",
    "test dl, 4",
    "jz 40f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "add rsi, 4",
    "add rdi, 4",
    "40:",
    "test dl, 2",
    "jz 41f",
    "mov ax, [rsi]",
    "mov [rdi], ax",
    "add rsi, 2",
    "add rdi, 2",
    "41:",
    "test dl, 1",
    "jz 29f",
    "mov al, [rsi]",
    "mov [rdi], al",
    "29:",
    "xor eax, eax",
    "ret",
    // Up to the first word, as far as there are so many octets.
    "30:",
    "test cl, 1",
    "jz 31f",
    "sub rdx, 1",
    "jb 29b",
    "mov al, [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "31:",
    "test cl, 2",
    "jz 32f",
    "cmp rdx, 2",
    "jb 28b",
    "mov ax, [rsi]",
    "mov [rdi], ax",
    "add rsi, 2",
    "add rdi, 2",
    "sub rdx, 2",
    "32:",
    "test cl, 4",
    "jz 21b",
    "cmp rdx, 4",
    "jb 28b",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "add rsi, 4",
    "add rdi, 4",
    "sub rdx, 4",
    "jmp 21b",
    ".cfi_endproc",
    // load(rdi: from, rsi: where the word goes, rdx: first, rcx: end)
    "rnic_core_guarded_load:",
    ".cfi_startproc",
    "mov r10, rdx",
    "mov r11, rcx",
    "mov rax, [rdi]",
    "mov [rsi], rax",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    // exchange(rdi: at, rsi: what is expected, and where what is found goes, rdx: new, rcx: first,
    // r8: end)
    "rnic_core_guarded_exchange:",
    ".cfi_startproc",
    "mov r10, rcx",
    "mov r11, r8",
    "mov rax, [rsi]",
    "lock cmpxchg [rdi], rdx",
    "jne 50f",
    "xor eax, eax",
    "ret",
    "50:",
    "mov [rsi], rax",
    "mov eax, 2",
    "ret",
    ".cfi_endproc",
    // copy_wide: as copy, at least 256 octets, on a processor with AVX.
    "rnic_core_guarded_wide:",
    "rnic_core_guarded_copy_wide:",
    ".cfi_startproc",
    "mov r10, r8",
    "mov r11, r9",
    "test ecx, ecx",
    "jz 53f",
    "test cl, 1",
    "jz 51f",
    "mov al, [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "51:",
    "test cl, 2",
    "jz 52f",
    "mov ax, [rsi]",
    "mov [rdi], ax",
    "add rsi, 2",
    "add rdi, 2",
    "52:",
    "test cl, 4",
    "jz 53f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "add rsi, 4",
    "add rdi, 4",
    // rdx as in copy, and 128 less.
    "53:",
    "sub rdx, rcx",
    "sub rdx, 129",
    "54:",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu ymm2, [rsi + 64]",
    "vmovdqu ymm3, [rsi + 96]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    "vmovdqu [rdi + 64], ymm2",
    "vmovdqu [rdi + 96], ymm3",
    "sub rsi, -128",
    "sub rdi, -128",
    "sub rdx, 128",
    "jae 54b",
    "test dl, 64",
    "jz 55f",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu ymm1, [rsi + 32]",
    "vmovdqu [rdi], ymm0",
    "vmovdqu [rdi + 32], ymm1",
    "add rsi, 64",
    "add rdi, 64",
    "55:",
    "vzeroupper",
    "jmp 23b",
    ".cfi_endproc",
    "rnic_core_guarded_end:",
    // The landing pads.
    "rnic_core_guarded_wide_fault:",
    ".cfi_startproc",
    "vzeroupper",
    "rnic_core_guarded_fault:",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    static rnic_core_guarded_begin: u8;
    static rnic_core_guarded_wide: u8;
    static rnic_core_guarded_end: u8;
    static rnic_core_guarded_fault: u8;
    static rnic_core_guarded_wide_fault: u8;

    fn rnic_core_guarded_copy(
        to: *mut u8,
        from: *const u8,
        len: usize,
        head: usize,
        first: usize,
        end: usize,
    ) -> u32;
    fn rnic_core_guarded_copy_wide(
        to: *mut u8,
        from: *const u8,
        len: usize,
        head: usize,
        first: usize,
        end: usize,
    ) -> u32;
}

/// Returns the addresses where the routine that a thread is in expects a fault.
pub(super) fn expected(context: &ucontext_t) -> Range<usize> {
    let register = |name: c_int| context.uc_mcontext.gregs[name as usize] as usize;
    register(REG_R10)..register(REG_R11)
}

/// Has a thread that faulted in one of these routines go on at its landing pad. Returns whether it
/// was in one.
pub(super) fn leave(context: &mut ucontext_t) -> bool {
    let next = &mut context.uc_mcontext.gregs[REG_RIP as usize];
    let pad = landing_pad(*next as usize);
    *next = pad.map_or(*next, |pad| pad as i64);
    pad.is_some()
}

/// Returns where to go on behind a fault of the instruction at `at`, if it is one of these
/// routines'.
fn landing_pad(at: usize) -> Option<usize> {
    let address = |label: *const u8| label.addr();
    let wide = address(&raw const rnic_core_guarded_wide);
    if (address(&raw const rnic_core_guarded_begin)..wide).contains(&at) {
        Some(address(&raw const rnic_core_guarded_fault))
    } else if (wide..address(&raw const rnic_core_guarded_end)).contains(&at) {
        Some(address(&raw const rnic_core_guarded_wide_fault))
    } else {
        None
    }
}

/// Copies `len` octets, of which `head` lie in front of the first multiple of 8 on the side that is
/// watched. A fault is expected at the addresses `guarded`.
///
/// # Safety
///
/// What is not guarded can be accessed so.
#[inline]
pub(super) unsafe fn copy(
    to: *mut u8,
    from: *const u8,
    len: usize,
    head: usize,
    guarded: &Range<usize>,
) -> u32 {
    let Range { start, end } = *guarded;
    if is_wide(len) {
        // SAFETY: the caller's promise; there are enough octets, and the processor has AVX.
        return unsafe { rnic_core_guarded_copy_wide(to, from, len, head, start, end) };
    }
    // SAFETY: the caller's promise.
    unsafe { rnic_core_guarded_copy(to, from, len, head, start, end) }
}

/// Others see this processor's stores in order, so both ways are one.
pub(super) use self::{copy as fetch, copy as store};

#[inline(always)]
fn is_wide(len: usize) -> bool {
    len >= WIDE && is_x86_feature_detected!("avx")
}
