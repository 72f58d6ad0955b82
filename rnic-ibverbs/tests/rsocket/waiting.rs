//! Connections that wait to be accepted, and calls that wait while signals come.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::libc::*;

use crate::calls::{Socket, errno};
use crate::hosts::{READY, SERVER};
use crate::roles::{PORT, UNUSED, listen, receive_exactly, server};

/// Plays a role, if it is one of these.
pub(crate) fn play(role: &str) -> bool {
    match role {
        "crowded" => crowded(),
        "crowd" => crowd(),
        "late" => late(),
        "interrupted" => interrupted(),
        "refused" => refused(),
        _ => return false,
    }
    true
}

fn control() -> String {
    format!("{SERVER}:{}", PORT + 2)
}

/// Listens with room for two connections, and accepts them when the client says so.
fn crowded() {
    let listener = Socket::new();
    listener.bind(&server()).unwrap();
    listener.listen(2).unwrap();
    let control = Socket::listening(&control());
    println!("\n{READY}");
    let told = control.accept().unwrap();
    let _accepted = [listener.accept().unwrap(), listener.accept().unwrap()];
    told.send(b"!", 0).unwrap();
    let third = listener.accept().unwrap();
    assert_eq!(third.recv(&mut [0], 0).unwrap(), 0);
}

fn crowd() {
    let _within = [Socket::connected(&server()), Socket::connected(&server())];
    for _ in 0..5 {
        assert_eq!(errno(Socket::new().connect(&server())), ECONNREFUSED);
    }
    let told = Socket::connected(&control());
    assert_eq!(receive_exactly(&told, 1), b"!");
    // The places of those that were accepted are free again.
    let _third = Socket::connected(&server());
}

/// Sends when its client asks for it.
fn late() {
    let listener = listen();
    let (bulk, control) = (listener.accept().unwrap(), listener.accept().unwrap());
    assert_eq!(receive_exactly(&control, 1), b"!");
    bulk.send(b"late", 0).unwrap();
    assert_eq!(bulk.recv(&mut [0], 0).unwrap(), 0);
}

static CAUGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn caught(_signal: i32) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

fn handle_signals(flags: i32) {
    // SAFETY: 0 is a value of each member.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = caught as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: the handler counts, and does nothing else.
    let done = unsafe { sigaction(SIGUSR1, &action, std::ptr::null_mut()) };
    assert_eq!(done, 0);
}

/// Interrupts a thread, and returns when it has caught the signal: of two that wait for a thread
/// it catches one. Then its call has time to wait again.
fn interrupt(thread: pthread_t) {
    let before = CAUGHT.load(Ordering::Relaxed);
    // SAFETY: the thread waits for the one that calls this.
    unsafe { pthread_kill(thread, SIGUSR1) };
    while CAUGHT.load(Ordering::Relaxed) == before {
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(5));
}

fn interrupted() {
    let (bulk, control) = (Socket::connected(&server()), Socket::connected(&server()));
    // SAFETY: it takes nothing.
    let this = unsafe { pthread_self() };
    handle_signals(SA_RESTART);
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..20).for_each(|_| interrupt(this));
            control.send(b"!", 0).unwrap();
        });
        assert_eq!(receive_exactly(&bulk, 4), b"late");
    });
    assert_eq!(CAUGHT.load(Ordering::Relaxed), 20);
    // Without that flag the call returns.
    handle_signals(0);
    let returned = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !returned.load(Ordering::Relaxed) {
                interrupt(this);
            }
        });
        assert_eq!(errno(bulk.recv(&mut [0], 0)), EINTR);
        returned.store(true, Ordering::Relaxed);
    });
}

/// Learns once why it was refused.
fn refused() {
    let socket = Socket::of_type(AF_INET, SOCK_STREAM | SOCK_NONBLOCK).unwrap();
    let nobody = format!("{SERVER}:{UNUSED}");
    assert_eq!(errno(socket.connect(&nobody)), EINPROGRESS);
    assert_eq!(socket.poll(POLLOUT, -1) & POLLERR, POLLERR);
    assert_eq!(socket.error(), ECONNREFUSED);
    // What would be wrong comes soon; what is right does not come.
    for _ in 0..30 {
        assert_eq!(socket.error(), 0);
        thread::sleep(Duration::from_millis(10));
    }
}
