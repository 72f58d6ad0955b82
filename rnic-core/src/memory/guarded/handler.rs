//! The handler of SIGSEGV and SIGBUS.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use nix::libc::{self, c_int, c_void, siginfo_t};

use super::code::{PAGE, expected, leave};

/// What the program did about each signal before. Never freed, as a handler may use it at any time.
static BEFORE_SEGV: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
static BEFORE_BUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// The default action, `SIG_DFL`: all of it is zero.
static DEFAULT: MaybeUninit<libc::sigaction> = MaybeUninit::zeroed();

static INSTALLED: Mutex<bool> = Mutex::new(false);

/// As `INSTALLED`, for those who do not wait.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Installs the handler, once in the life of the process.
pub(in crate::memory) fn install() -> io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            install_for(signal)?;
        }
        *installed = true;
        // Release: a thread that finds it so has the handler for its faults.
        IS_INSTALLED.store(true, Ordering::Release);
    }
    Ok(())
}

/// Lets the signals of faults reach the handler on this thread, if there is one. Returns whether
/// there is.
pub(in crate::memory) fn admit() -> bool {
    let is_installed = IS_INSTALLED.load(Ordering::Acquire);
    if is_installed {
        let mut faults = MaybeUninit::uninit();
        // SAFETY: the set is made before it is used, and has signals that exist, so that none of
        // these calls fails.
        unsafe {
            libc::sigemptyset(faults.as_mut_ptr());
            libc::sigaddset(faults.as_mut_ptr(), libc::SIGSEGV);
            libc::sigaddset(faults.as_mut_ptr(), libc::SIGBUS);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, faults.as_ptr(), ptr::null_mut());
        }
    }
    is_installed
}

fn before(signal: c_int) -> &'static AtomicPtr<libc::sigaction> {
    match signal {
        libc::SIGBUS => &BEFORE_BUS,
        _ => &BEFORE_SEGV,
    }
}

fn install_for(signal: c_int) -> io::Result<()> {
    let previous = action(signal, None)?;
    // Known before the handler can be called.
    before(signal).store(Box::into_raw(Box::new(previous)), Ordering::Release);
    let mut ours = previous;
    // It runs as the previous one would: on the same stack, and with the same signals blocked.
    let kept = libc::SA_NODEFER | libc::SA_RESTART | libc::SA_ONSTACK;
    ours.sa_flags = libc::SA_SIGINFO | previous.sa_flags & kept;
    if [libc::SIG_DFL, libc::SIG_IGN].contains(&previous.sa_sigaction) {
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    }
    ours.sa_sigaction = handle as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    action(signal, Some(&ours)).map(|_| ())
}

/// Sets what is done about a signal. Returns what was done before.
fn action(signal: c_int, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::uninit();
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `new` is null or a whole action, whose handler lives as long as the process; `old`
    // has room for one.
    match unsafe { libc::sigaction(signal, new, old.as_mut_ptr()) } {
        // SAFETY: it succeeded, so it has written the old action.
        0 => Ok(unsafe { old.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Leaves a guarded access that has faulted where it was expected to, and else does what the
/// program did before.
///
/// Everything that is called here may be called in a handler.
extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the state of this thread, which it goes on with behind the handler.
    // Nobody else has it.
    let thread = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // SAFETY: the kernel passes what it knows of the signal.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    // A signal that somebody sent has no address.
    let faulted = code > 0;
    let expected = expected(thread);
    let is_expected = (expected.start & !(PAGE - 1)..expected.end).contains(&address);
    if !(faulted && is_expected && leave(thread)) {
        pass_on(signal, info, context, faulted);
    }
}

/// Handles the signal as the program did before.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void, faulted: bool) {
    // SAFETY: it was set before the handler was installed, and is never freed.
    let previous = unsafe { &*before(signal).load(Ordering::Acquire) };
    if previous.sa_flags & libc::SA_RESETHAND != 0 {
        // Such a handler is called once.
        before(signal).store(DEFAULT.as_ptr().cast_mut(), Ordering::Release);
    }
    match previous.sa_sigaction {
        // The kernel ignores no fault.
        libc::SIG_IGN if !faulted => {}
        libc::SIG_DFL | libc::SIG_IGN => die_of(signal, faulted),
        function if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: with this flag it is such a function.
            let function: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(function) };
            function(signal, info, context);
        }
        function => {
            // SAFETY: without that flag it is such a function.
            let function: extern "C" fn(c_int) = unsafe { std::mem::transmute(function) };
            function(signal);
        }
    }
}

/// Lets the process die of the signal, as it would without a handler.
fn die_of(signal: c_int, faulted: bool) {
    let mut default = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: an action without flags, mask and restorer is a valid one.
    let default = unsafe {
        (*default.as_mut_ptr()).sa_sigaction = libc::SIG_DFL;
        default.assume_init()
    };
    let _ = action(signal, Some(&default));
    // A fault comes again when the handler returns. What was sent does not.
    if !faulted {
        // SAFETY: it takes no memory.
        unsafe { libc::raise(signal) };
    }
}
