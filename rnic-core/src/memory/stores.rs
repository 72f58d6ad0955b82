//! What stores change memory, one by one, for tests.
//!
//! The processor runs the code under test step by step: behind each instruction it calls a handler
//! of SIGTRAP, which looks at the memory. So it is seen what another thread could see, always, and
//! not only if that thread looks at the right moment.

#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::libc::{self, c_int, c_void, siginfo_t};

use super::region::Region;

/// The trap flag: the processor traps behind the next instruction.
const TRAP_FLAG: i64 = 0x100;

/// What the handler works with. One thread at a time is watched.
static WATCH: AtomicPtr<Watch> = AtomicPtr::new(ptr::null_mut());
static STEPPING: AtomicBool = AtomicBool::new(false);
static TURN: Mutex<()> = Mutex::new(());

struct Watch {
    memory: *mut u8,
    /// What was seen of it.
    octets: Vec<u8>,
    /// As many zeros.
    zeros: Vec<u8>,
    /// The octets that each store has changed, as far as there is room.
    stores: Vec<Range<usize>>,
}

/// Runs `work`, which stores to the first `len` octets of a region, all of which are 0 before.
/// Returns the octets that each store has changed, in their order, and what they hold. A store of
/// zeros is not seen.
///
/// A second store to an octet is seen too, whatever its value: the handler sets what it has seen to
/// 0 again. So an octet that is stored once is 0 in memory at the end.
///
/// # Panics
///
/// If there are fewer octets, or they are not 0 before.
pub fn stores_to(region: &Region, len: usize, work: impl FnOnce()) -> (Vec<Range<usize>>, Vec<u8>) {
    assert!(len <= region.len(), "the region has so many octets");
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut watch = Watch {
        memory: region.as_ptr(),
        octets: vec![0; len],
        zeros: vec![0; len],
        stores: Vec::with_capacity(len + 1),
    };
    assert!(watch.is_unchanged(), "the octets are 0");
    // Release: the handler, which acquires it, finds it as it was made.
    WATCH.store(&raw mut watch, Ordering::Release);
    handle_traps();
    STEPPING.store(true, Ordering::SeqCst);
    // The handler of this signal sets the trap flag.
    // SAFETY: the signal is handled.
    unsafe { libc::raise(libc::SIGTRAP) };
    work();
    // The next trap clears the flag.
    STEPPING.store(false, Ordering::SeqCst);
    // SAFETY: as above, where there was no trap since.
    unsafe { libc::raise(libc::SIGTRAP) };
    WATCH.store(ptr::null_mut(), Ordering::Release);
    (watch.stores, watch.octets)
}

fn handle_traps() {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = handle;
    // SAFETY: an action without mask and restorer is a valid one, and the handler has the arguments
    // that the flag says.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()),
            0,
            "SIGTRAP is handled"
        );
    }
}

/// Handles a signal. Everything that is called here may be called in a handler.
extern "C" fn handle(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the state of this thread, which it goes on with behind the handler.
    // Nobody else has it.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let flags = &mut registers[libc::REG_EFL as usize];
    if !STEPPING.load(Ordering::SeqCst) {
        *flags &= !TRAP_FLAG;
        return;
    }
    *flags |= TRAP_FLAG;
    // SAFETY: it is null, or a watch that this thread has made and does not use while it is set.
    if let Some(watch) = unsafe { WATCH.load(Ordering::Acquire).as_mut() } {
        watch.look();
    }
}

impl Watch {
    fn is_unchanged(&self) -> bool {
        let (memory, zeros) = (self.memory.cast(), self.zeros.as_ptr().cast());
        // SAFETY: the region has as many octets, and they are there. The thread that stores to them
        // stands still.
        unsafe { libc::memcmp(memory, zeros, self.zeros.len()) == 0 }
    }

    fn look(&mut self) {
        if self.is_unchanged() || self.stores.len() == self.stores.capacity() {
            return;
        }
        let len = self.octets.len();
        // SAFETY: as above.
        let octet = |n: usize| unsafe { self.memory.add(n).read_volatile() };
        let first = (0..len).find(|&n| octet(n) != 0).unwrap_or(len);
        let last = (first..len).rfind(|&n| octet(n) != 0);
        let behind = last.map_or(first, |n| n + 1);
        self.stores.push(first..behind);
        for n in first..behind {
            self.octets[n] = octet(n);
            // SAFETY: as above.
            unsafe { self.memory.add(n).write_volatile(0) };
        }
    }
}

/// Checks that the pieces, given by their octets, were stored in their order as an adapter does it:
/// each octet once and in the order of addresses, each aligned word of 2, 4 or 8 octets whole if it
/// lies in one piece, and the last such word of a piece by itself. The memory begins at a multiple
/// of 8.
///
/// # Panics
///
/// If they were not.
pub fn assert_whole_words(stores: &[Range<usize>], pieces: &[Range<usize>], what: &str) {
    let mut stores = stores.iter();
    for piece in pieces {
        let mut at = piece.start;
        while at < piece.end {
            let store = stores
                .next()
                .unwrap_or_else(|| panic!("{what}: nothing at {at}"));
            assert_eq!(store.start, at, "{what}: in order, each once");
            assert!(store.end <= piece.end, "{what}: {store:?} is of one piece");
            assert!(!tears(store.end, piece), "{what}: torn at {}", store.end);
            let is_last = store.end == piece.end;
            assert!(
                !is_last || *store == last_word(piece),
                "{what}: {store:?} alone"
            );
            at = store.end;
        }
    }
    assert_eq!(stores.next(), None, "{what}: stored again");
}

/// Returns whether a word lies in a piece as a whole, and on both sides of this octet.
fn tears(at: usize, piece: &Range<usize>) -> bool {
    [2, 4, 8].into_iter().any(|word| {
        let first = at - at % word;
        first < at && first >= piece.start && first + word <= piece.end
    })
}

/// Returns the last aligned word of a piece.
fn last_word(piece: &Range<usize>) -> Range<usize> {
    let fits = |word: &usize| piece.end.is_multiple_of(*word) && piece.len() >= *word;
    let word = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
    piece.end - word..piece.end
}
