//! The routines that access memory which others watch, or which may be gone.
//!
//! They use no stack, and so can be left at any instruction: the handler goes on at the landing
//! pad, which returns to the caller that it faulted. Each has the addresses where a fault is
//! expected in x9 (the first) and x10 (past the last), where the handler finds them.
//!
//! The copies go upwards, and access each octet once: aligned words up to the first multiple of 8,
//! then whole words of 8 octets, then what is left in words that become smaller.
//!
//! This processor lets others see stores in any order, so what is stored for others says which
//! stores are to be seen first. Up to 256 octets, each word is a store-release, which is seen behind
//! all words before it. Of more, blocks of 64 octets are seen one behind the other, with a barrier
//! between them, and the last word behind all. A pair of registers is stored as words of 8 octets
//! that are not torn, where it starts at a multiple of 8.

use std::arch::global_asm;
use std::ops::Range;

use nix::libc::ucontext_t;

/// Octets of the largest page, by which some faults are told.
pub(super) const PAGE: usize = 64 << 10;

/// The text of a routine `copy(x0: to, x1: from, x2: octets, x3: octets up to the first word, x4:
/// first, x5: end)`. `$store`, `$half` and `$octet` store words of 8 and 4, 2 and 1 octets; `$barrier`
/// stands between blocks.
macro_rules! copy {
    ($name:literal, $store:literal, $half:literal, $octet:literal, $barrier:literal) => {
        concat!(
            ".hidden ", $name, "\n",
            ".globl ", $name, "\n",
            ".p2align 6\n",
            $name, ":\n",
            ".cfi_startproc\n",
            "mov x9, x4\n",
            "mov x10, x5\n",
            "cbnz x3, 30f\n",
            // What is left starts at a word: x11 octets in front of the last word, x2 from there on.
            "21:\n",
            "cbz x2, 29f\n",
            "sub x11, x2, #1\n",
            "and x11, x11, #0xfffffffffffffff8\n",
            "sub x2, x2, x11\n",
            "cmp x11, #256\n",
            "b.lo 24f\n",
            "sub x11, x11, #64\n",
            "22:\n",
            "ldp q0, q1, [x1], #64\n",
            "ldp q2, q3, [x1, #-32]\n",
            $barrier,
            "\n",
            "stp q0, q1, [x0], #64\n",
            "stp q2, q3, [x0, #-32]\n",
            "subs x11, x11, #64\n",
            "b.hs 22b\n",
            "add x11, x11, #64\n",
            "24:\n",
            "cbz x11, 26f\n",
            "25:\n",
            "ldr x6, [x1], #8\n",
            $store, " x6, [x0]\n",
            "add x0, x0, #8\n",
            "subs x11, x11, #8\n",
            "b.ne 25b\n",
            // The last word, or smaller ones.
            "26:\n",
            "tbz x2, #3, 27f\n",
            "ldr x6, [x1]\n",
            $store, " x6, [x0]\n",
            "b 29f\n",
            // Fewer than 8 octets, as many as x2 says, at a multiple of the largest word that they
            // hold.
            "27:\n",
            "tbz x2, #2, 40f\n",
            "ldr w6, [x1], #4\n",
            $store, " w6, [x0]\n",
            "add x0, x0, #4\n",
            "40:\n",
            "tbz x2, #1, 41f\n",
            "ldrh w6, [x1], #2\n",
            $half, " w6, [x0]\n",
            "add x0, x0, #2\n",
            "41:\n",
            "tbz x2, #0, 29f\n",
            "ldrb w6, [x1]\n",
            $octet, " w6, [x0]\n",
            "29:\n",
            "mov w0, #0\n",
            "ret\n",
            // Up to the first word, as far as there are so many octets.
            "30:\n",
            "cbz x2, 29b\n",
            "tbz x3, #0, 31f\n",
            "ldrb w6, [x1], #1\n",
            $octet, " w6, [x0]\n",
            "add x0, x0, #1\n",
            "sub x2, x2, #1\n",
            "31:\n",
            "tbz x3, #1, 32f\n",
            "cmp x2, #2\n",
            "b.lo 27b\n",
            "ldrh w6, [x1], #2\n",
            $half, " w6, [x0]\n",
            "add x0, x0, #2\n",
            "sub x2, x2, #2\n",
            "32:\n",
            "tbz x3, #2, 21b\n",
            "cmp x2, #4\n",
            "b.lo 27b\n",
            "ldr w6, [x1], #4\n",
            $store, " w6, [x0]\n",
            "add x0, x0, #4\n",
            "sub x2, x2, #4\n",
            "b 21b\n",
            ".cfi_endproc\n",
        )
    };
}

global_asm!(
    ".pushsection .text.rnic_core_guarded, \"ax\", %progbits",
    ".hidden rnic_core_guarded_begin",
    ".hidden rnic_core_guarded_end",
    ".hidden rnic_core_guarded_fault",
    ".hidden rnic_core_guarded_load",
    ".hidden rnic_core_guarded_exchange",
    ".globl rnic_core_guarded_begin",
    ".globl rnic_core_guarded_end",
    ".globl rnic_core_guarded_fault",
    ".globl rnic_core_guarded_load",
    ".globl rnic_core_guarded_exchange",
    ".p2align 6",
    "rnic_core_guarded_begin:",
    // What others read: they see the words in order.
    copy!(
        "rnic_core_guarded_store",
        "stlr",
        "stlrh",
        "stlrb",
        "dmb ishst"
    ),
    // What only the caller reads, at any address.
    copy!("rnic_core_guarded_fetch", "str", "strh", "strb", ""),
    // load(x0: from, x1: where the word goes, x2: first, x3: end)
    "rnic_core_guarded_load:",
    ".cfi_startproc",
    "mov x9, x2",
    "mov x10, x3",
    "ldar x4, [x0]",
    "str x4, [x1]",
    "mov w0, #0",
    "ret",
    ".cfi_endproc",
    // exchange(x0: at, x1: what is expected, and where what is found goes, x2: new, x3: first,
    // x4: end)
    "rnic_core_guarded_exchange:",
    ".cfi_startproc",
    "mov x9, x3",
    "mov x10, x4",
    "ldr x5, [x1]",
    "50:",
    "ldaxr x6, [x0]",
    "cmp x6, x5",
    "b.ne 51f",
    "stlxr w7, x2, [x0]",
    "cbnz w7, 50b",
    "mov w0, #0",
    "ret",
    "51:",
    "clrex",
    "str x6, [x1]",
    "mov w0, #2",
    "ret",
    ".cfi_endproc",
    "rnic_core_guarded_end:",
    // The landing pad.
    "rnic_core_guarded_fault:",
    ".cfi_startproc",
    "mov w0, #1",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    static rnic_core_guarded_begin: u8;
    static rnic_core_guarded_end: u8;
    static rnic_core_guarded_fault: u8;

    fn rnic_core_guarded_store(
        to: *mut u8,
        from: *const u8,
        len: usize,
        head: usize,
        first: usize,
        end: usize,
    ) -> u32;
    fn rnic_core_guarded_fetch(
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
    let registers = &context.uc_mcontext.regs;
    registers[9] as usize..registers[10] as usize
}

/// Has a thread that faulted in one of these routines go on at its landing pad. Returns whether it
/// was in one.
pub(super) fn leave(context: &mut ucontext_t) -> bool {
    let address = |label: *const u8| label.addr();
    let routines =
        address(&raw const rnic_core_guarded_begin)..address(&raw const rnic_core_guarded_end);
    let is_there = routines.contains(&(context.uc_mcontext.pc as usize));
    if is_there {
        context.uc_mcontext.pc = address(&raw const rnic_core_guarded_fault) as u64;
    }
    is_there
}

/// Copies `len` octets to where others watch, of which `head` lie in front of the first multiple of
/// 8. A fault is expected at the addresses `guarded`.
///
/// # Safety
///
/// What is not guarded can be accessed so.
#[inline]
pub(super) unsafe fn store(
    to: *mut u8,
    from: *const u8,
    len: usize,
    head: usize,
    guarded: &Range<usize>,
) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { rnic_core_guarded_store(to, from, len, head, guarded.start, guarded.end) }
}

/// Copies `len` octets from where others write, of which `head` lie in front of the first multiple
/// of 8. A fault is expected at the addresses `guarded`.
///
/// # Safety
///
/// What is not guarded can be accessed so.
#[inline]
pub(super) unsafe fn fetch(
    to: *mut u8,
    from: *const u8,
    len: usize,
    head: usize,
    guarded: &Range<usize>,
) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { rnic_core_guarded_fetch(to, from, len, head, guarded.start, guarded.end) }
}
