//! The routines that access memory which may be gone.
//!
//! They use no stack, and so can be left at any instruction: the handler goes on at a landing pad, which returns
//! [`FAULTED`] to the caller. Each has the addresses where a fault is expected in r10 (the first) and r11 (past the
//! last), where the handler finds them.

use std::arch::{global_asm, is_x86_feature_detected};
use std::ops::Range;

/// What a routine returns: it has done its work.
pub(super) const DONE: u32 = 0;
/// An exchange has found, and returned, another word than it was told.
pub(super) const CHANGED: u32 = 2;

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
    ".hidden rnic_core_guarded_store",
    ".hidden rnic_core_guarded_load",
    ".hidden rnic_core_guarded_exchange",
    ".globl rnic_core_guarded_begin",
    ".globl rnic_core_guarded_wide",
    ".globl rnic_core_guarded_end",
    ".globl rnic_core_guarded_fault",
    ".globl rnic_core_guarded_wide_fault",
    ".globl rnic_core_guarded_copy",
    ".globl rnic_core_guarded_copy_wide",
    ".globl rnic_core_guarded_store",
    ".globl rnic_core_guarded_load",
    ".globl rnic_core_guarded_exchange",
    ".p2align 6",
    "rnic_core_guarded_begin:",
    // copy(rdi: to, rsi: from, rdx: octets, rcx: first, r8: end)
    "rnic_core_guarded_copy:",
    ".cfi_startproc",
    "mov r10, rcx",
    "mov r11, r8",
    "20:",
    "cmp rdx, 16",
    "jb 40f",
    "21:",
    "cmp rdx, 64",
    "jb 22f",
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
    "jmp 21b",
    // Up to 63 octets behind at least as many as are needed to copy 16 at the end.
    "22:",
    "cmp rdx, 16",
    "jb 23f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rdx, 16",
    "jmp 22b",
    "23:",
    "test rdx, rdx",
    "jz 24f",
    "movups xmm0, [rsi + rdx - 16]",
    "movups [rdi + rdx - 16], xmm0",
    "24:",
    "xor eax, eax",
    "ret",
    // Fewer than 16 octets.
    "40:",
    "cmp rdx, 8",
    "jb 41f",
    "mov rax, [rsi]",
    "mov rcx, [rsi + rdx - 8]",
    "mov [rdi], rax",
    "mov [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    "41:",
    "cmp rdx, 4",
    "jb 42f",
    "mov eax, [rsi]",
    "mov ecx, [rsi + rdx - 4]",
    "mov [rdi], eax",
    "mov [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    "42:",
    "test rdx, rdx",
    "jz 24b",
    "mov al, [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec rdx",
    "jmp 42b",
    ".cfi_endproc",
    // store(rdi: to, rsi: word, rdx: first, rcx: end)
    "rnic_core_guarded_store:",
    ".cfi_startproc",
    "mov r10, rdx",
    "mov r11, rcx",
    "mov [rdi], rsi",
    "xor eax, eax",
    "ret",
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
    // exchange(rdi: at, rsi: what is expected, and where what is found goes, rdx: new, rcx: first, r8: end)
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
    // copy_wide: as copy, at least 128 octets, on a processor with AVX.
    "rnic_core_guarded_wide:",
    "rnic_core_guarded_copy_wide:",
    ".cfi_startproc",
    "mov r10, rcx",
    "mov r11, r8",
    "30:",
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
    "add rdx, -128",
    "cmp rdx, 128",
    "jae 30b",
    "31:",
    "cmp rdx, 32",
    "jb 32f",
    "vmovdqu ymm0, [rsi]",
    "vmovdqu [rdi], ymm0",
    "add rsi, 32",
    "add rdi, 32",
    "sub rdx, 32",
    "jmp 31b",
    "32:",
    "test rdx, rdx",
    "jz 33f",
    "vmovdqu ymm0, [rsi + rdx - 32]",
    "vmovdqu [rdi + rdx - 32], ymm0",
    "33:",
    "vzeroupper",
    "xor eax, eax",
    "ret",
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
        first: usize,
        end: usize,
    ) -> u32;
    fn rnic_core_guarded_copy_wide(
        to: *mut u8,
        from: *const u8,
        len: usize,
        first: usize,
        end: usize,
    ) -> u32;
    fn rnic_core_guarded_store(to: *mut u64, word: u64, first: usize, end: usize) -> u32;
    fn rnic_core_guarded_load(from: *const u64, word: *mut u64, first: usize, end: usize) -> u32;
    fn rnic_core_guarded_exchange(
        at: *mut u64,
        expected: *mut u64,
        new: u64,
        first: usize,
        end: usize,
    ) -> u32;
}

/// Returns where to go on behind a fault of the instruction at `at`, if it is one of these routines'.
pub(super) fn landing_pad(at: usize) -> Option<usize> {
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

/// Copies `len` octets. A fault is expected at the addresses `guarded`.
///
/// # Safety
///
/// What is not guarded can be accessed so.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize, guarded: &Range<usize>) -> u32 {
    let Range { start, end } = *guarded;
    if len >= WIDE && is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise; there are enough octets, and the processor has AVX.
        return unsafe { rnic_core_guarded_copy_wide(to, from, len, start, end) };
    }
    // SAFETY: the caller's promise.
    unsafe { rnic_core_guarded_copy(to, from, len, start, end) }
}

/// Stores a word. A fault is expected at the addresses `guarded`.
///
/// # Safety
///
/// What is not guarded can be accessed so.
pub(super) unsafe fn store_word(to: *mut u64, word: u64, guarded: &Range<usize>) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { rnic_core_guarded_store(to, word, guarded.start, guarded.end) }
}

/// Loads a word. A fault is expected at the addresses `guarded`.
///
/// # Safety
///
/// What is not guarded can be accessed so.
pub(super) unsafe fn load_word(from: *const u64, word: &mut u64, guarded: &Range<usize>) -> u32 {
    // SAFETY: the caller's promise; `word` is a unique reference.
    unsafe { rnic_core_guarded_load(from, word, guarded.start, guarded.end) }
}

/// Replaces a word by `new` in one step if it is `expected`, which is replaced by what was found otherwise. A fault is expected
/// at the addresses `guarded`.
///
/// # Safety
///
/// What is not guarded can be accessed so.
pub(super) unsafe fn exchange_word(
    at: *mut u64,
    expected: &mut u64,
    new: u64,
    guarded: &Range<usize>,
) -> u32 {
    // SAFETY: the caller's promise; `expected` is a unique reference.
    unsafe { rnic_core_guarded_exchange(at, expected, new, guarded.start, guarded.end) }
}
