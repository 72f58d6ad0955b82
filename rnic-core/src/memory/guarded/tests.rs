use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use nix::libc::{self, c_int, c_void, siginfo_t};
use nix::sys::signal::SigSet;

use super::*;
use crate::memory::program::{PAGE, ProgramMemory, TakeAway};
use crate::memory::table::StagTable;

/// The environment variable that names the fault which a process is to provoke.
const PROVOKE: &str = "RNIC_TEST_PROVOKE";

impl ProgramMemory {
    fn at(&self, offset: usize) -> *mut u8 {
        install().unwrap();
        self.as_ptr().wrapping_add(offset)
    }

    fn write(&self, offset: usize, octets: &[u8]) -> Result<(), Fault> {
        // SAFETY: the octets are of this memory, or gone.
        unsafe { write(self.at(offset), octets) }
    }

    fn read(&self, offset: usize, octets: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the octets are of this memory, or gone.
        unsafe { read(self.at(offset), octets) }
    }

    fn update(&self, offset: usize, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        // SAFETY: the octets are of this memory, or gone.
        unsafe { update(self.at(offset).cast(), change) }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 256) as u8).collect()
}

#[test]
fn copies_of_any_length_and_place_are_whole() {
    let pages = ProgramMemory::map(2 * PAGE, false);
    for len in (0..700).chain([1440, 2000, 4000]) {
        for start in [0, 1, 7, 8, 33] {
            let data = pattern(len);
            pages.write(0, &[0xee; 4200]).unwrap();
            pages.write(start, &data).unwrap();
            let mut back = vec![0; len];
            pages.read(start, &mut back).unwrap();
            assert!(back == data, "{len} octets at {start}");
            let mut around = [0; 1];
            pages.read(start + len, &mut around).unwrap();
            assert_eq!(around, [0xee], "behind {len} octets at {start}");
            if start > 0 {
                pages.read(start - 1, &mut around).unwrap();
                assert_eq!(around, [0xee], "before {len} octets at {start}");
            }
        }
    }
}

const LENGTHS: [usize; 17] = [
    1, 3, 4, 7, 8, 9, 15, 16, 17, 40, 63, 64, 200, 256, 300, 1440, 4000,
];

/// The first page stays and the second is taken away, in each way and at each place of a copy.
#[test]
fn a_fault_at_any_octet_is_caught() {
    for how in [
        TakeAway::Unmap,
        TakeAway::Protect,
        TakeAway::MakeReadOnly,
        TakeAway::Truncate,
    ] {
        let pages = ProgramMemory::map(2 * PAGE, how == TakeAway::Truncate);
        let readable = how == TakeAway::MakeReadOnly;
        let mut back = vec![0; 2 * PAGE];
        pages.write(0, &pattern(2 * PAGE)).unwrap();
        pages.take_away(PAGE, how);
        for len in LENGTHS {
            for inside in [1, len / 2, len - 1, len] {
                let start = PAGE - len + inside.clamp(1, len);
                let data = pattern(len);
                let what = format!("{how:?}: {len} octets at {start}");
                assert_eq!(pages.write(start, &data), Err(Fault), "{what}");
                let read = pages.read(start, &mut back[..len]);
                assert_eq!(read.is_ok(), readable, "{what}");
            }
        }
        assert_eq!(pages.update(PAGE, |was| was + 1), Err(Fault));
        assert_eq!(
            pages.update(PAGE - 8, |was| was),
            pages.update(PAGE - 8, |was| was)
        );
        assert_eq!(pages.write(PAGE - 8, &[1; 8]), Ok(()));
    }
}

#[test]
fn atomics_change_words() {
    let pages = ProgramMemory::map(PAGE, false);
    pages.write(64, &40_u64.to_ne_bytes()).unwrap();
    assert_eq!(pages.update(64, |was| was + 2), Ok(40));
    assert_eq!(pages.update(64, |was| was), Ok(42));
}

/// Several threads add to one word: none of their changes is lost.
#[test]
fn atomics_of_several_threads_add_up() {
    let pages = ProgramMemory::map(PAGE, false);
    let at = pages.at(64).expose_provenance();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for _ in 0..10_000 {
                    let word = std::ptr::with_exposed_provenance_mut(at);
                    // SAFETY: it is a word of the pages, which outlive the threads.
                    unsafe { update(word, |was| was + 1) }.unwrap();
                }
            });
        }
    });
    assert_eq!(pages.update(64, |was| was), Ok(40_000));
}

/// Runs one of these tests in a process of its own, which is to provoke a fault.
fn provoked(test: &str, what: &str) -> ExitStatus {
    let path = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &path, "--nocapture"])
        .env(PROVOKE, what)
        .output()
        .unwrap()
        .status
}

fn to_provoke() -> Option<String> {
    std::env::var(PROVOKE).ok()
}

/// Accesses a page that is not there, by other means than a guarded access.
fn fault_elsewhere() {
    let pages = ProgramMemory::map(PAGE, false);
    pages.take_away(0, TakeAway::Protect);
    // A guarded access, to other memory.
    let others = ProgramMemory::map(PAGE, false);
    others.write(0, b"x").unwrap();
    // SAFETY: it is not, and the process dies of it.
    unsafe { pages.as_ptr().read_volatile() };
}

#[test]
fn a_fault_elsewhere_ends_the_process() {
    match to_provoke().as_deref() {
        Some("access") => fault_elsewhere(),
        // The other side of a guarded copy is not guarded.
        Some("other side") => {
            let pages = ProgramMemory::map(2 * PAGE, false);
            pages.take_away(PAGE, TakeAway::Protect);
            let mut to = [0; 64];
            let from = pages.at(PAGE);
            let guarded = guarded(to.as_ptr(), to.len());
            // SAFETY: it is not, and the process dies of it.
            unsafe { code::fetch(to.as_mut_ptr(), from, to.len(), 0, &guarded) };
        }
        Some(_) => {
            // Rust's own handler lets what was sent pass.
            handle_with(libc::SIGBUS, libc::SIG_DFL, 0);
            install().unwrap();
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGBUS).unwrap();
        }
        None => {
            let name = "a_fault_elsewhere_ends_the_process";
            let died = |what| provoked(name, what).signal();
            assert_eq!(died("access"), Some(libc::SIGSEGV));
            assert_eq!(died("other side"), Some(libc::SIGSEGV));
            assert_eq!(died("signal"), Some(libc::SIGBUS));
        }
    }
}

/// As daemons do that leave all signals to one thread.
#[test]
fn a_thread_that_blocked_all_signals_survives() {
    if to_provoke().is_none() {
        let status = provoked("a_thread_that_blocked_all_signals_survives", "fault");
        assert!(status.success(), "{status}");
        return;
    }
    let table = Arc::new(StagTable::new(4, [7; 32]));
    let pages = ProgramMemory::map(PAGE, false);
    // A batch before there is a handler.
    drop(table.worker().enter());
    pages.write(0, b"there").unwrap();
    SigSet::all().thread_block().unwrap();
    let worker = table.worker();
    let _batch = worker.enter();
    pages.take_away(0, TakeAway::Unmap);
    assert_eq!(pages.write(0, b"gone"), Err(Fault));
}

const HANDLED: c_int = 42;

/// Sets a handler, as a program would before it uses RDMA.
fn handle_with(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: an action without mask and restorer is a valid one, and the handler has the arguments
    // that the flags say.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

extern "C" fn plain(signal: c_int) {
    // SAFETY: it may be called in a handler.
    unsafe { libc::_exit(HANDLED + signal) }
}

extern "C" fn with_info(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes it, and `_exit` may be called in a handler.
    unsafe {
        let page = (*info).si_addr().addr() & !(PAGE - 1) != 0;
        let whole = page && !context.is_null();
        libc::_exit(if whole { HANDLED - signal } else { 1 })
    }
}

#[test]
fn the_handler_that_was_there_before_is_called() {
    match to_provoke().as_deref() {
        Some("plain") => {
            handle_with(libc::SIGSEGV, plain as extern "C" fn(c_int) as usize, 0);
            fault_elsewhere();
        }
        Some(_) => {
            let handler = with_info as extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            let flags = libc::SA_SIGINFO | libc::SA_NODEFER;
            handle_with(libc::SIGSEGV, handler as usize, flags);
            fault_elsewhere();
        }
        None => {
            let name = "the_handler_that_was_there_before_is_called";
            let code = |what| provoked(name, what).code();
            assert_eq!(code("plain"), Some(HANDLED + libc::SIGSEGV));
            assert_eq!(code("with info"), Some(HANDLED - libc::SIGSEGV));
        }
    }
}
