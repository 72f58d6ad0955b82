//! How connections and listeners end.

use std::ffi::c_void;
use std::net::{SocketAddr, TcpListener};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::libc;

use crate::calls::*;
use crate::hosts::{READY, SERVER};
use crate::roles::{PORT, listen_at, resolved, resolved_to};

/// Plays a role, if it is one of these.
pub(crate) fn play(role: &str) -> bool {
    // SAFETY: the roles call functions of C as the manual pages have it.
    unsafe {
        match role {
            "rejected-client" => rejected_client(),
            "gone-server" => gone_server(),
            "gone-client" => gone_client(),
            "last-word-server" => last_word_server(),
            "last-word-client" => last_word_client(),
            "again-server" => again_server(),
            "again-client" => again_client(),
            "late-client" => late_client(),
            _ => return false,
        }
    }
    true
}

/// The completion status of what was flushed.
const FLUSHED: u32 = 5;

/// Connects in three ways that fail. Each tells one event; what would come behind it would come
/// between those of the next id.
unsafe fn rejected_client() {
    let channel = rdma_create_event_channel();
    let mut ids = Vec::new();
    let mut buffers = [[0; 16]; 3];
    for (port, buffer) in [PORT, PORT, PORT + 1].into_iter().zip(&mut buffers) {
        let id = resolved(channel, port);
        receive(id, buffer);
        ok(rdma_connect(id, null_mut()));
        assert_eq!(next(channel, RDMA_CM_EVENT_REJECTED).id, id);
        // As librdmacm does, and the engine has done it once the receive is flushed.
        assert_eq!((*(*id).qp).state, IBV_QPS_ERR);
        let flushed = completion(id, (*id).recv_cq, (*id).recv_cq_channel);
        assert_eq!(flushed.0, FLUSHED);
        ids.push(id);
    }
    let last = resolved(channel, PORT);
    ids.push(last);
    for id in ids {
        // rdma_cm goes on to use its context.
        assert_eq!(ibv_close_device((*id).verbs), 0);
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
    rdma_destroy_event_channel(channel);
}

/// Accepts the next peer.
unsafe fn accepted(channel: *mut rdma_event_channel) -> *mut rdma_cm_id {
    let id = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    ok(rdma_create_qp(id, null_mut(), &mut qp_attributes()));
    ok(rdma_accept(id, null_mut()));
    assert_eq!((*(*id).qp).state, IBV_QPS_RTR);
    next(channel, RDMA_CM_EVENT_ESTABLISHED);
    id
}

unsafe fn destroy(id: *mut rdma_cm_id) {
    rdma_destroy_qp(id);
    ok(rdma_destroy_id(id));
}

/// Ends a listener behind its only connection, and tells the client by a second one.
unsafe fn gone_server() {
    let channel = rdma_create_event_channel();
    let listening = listen_at(channel, &format!("{SERVER}:{PORT}"));
    let second = listen_at(channel, &format!("{SERVER}:{}", PORT + 1));
    println!("\n{READY}");
    let id = accepted(channel);
    next(channel, RDMA_CM_EVENT_DISCONNECTED);
    destroy(id);
    ok(rdma_destroy_id(listening));
    let told = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    ok(rdma_reject(told, null_mut(), 0));
    ok(rdma_destroy_id(told));
    // The next word of the client comes when it was refused. The port is the kernel's again.
    let told = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    let address: SocketAddr = format!("{SERVER}:{PORT}").parse().unwrap();
    while let Err(taken) = TcpListener::bind(address) {
        assert_eq!(taken.raw_os_error(), Some(libc::EADDRINUSE));
        thread::sleep(Duration::from_millis(20));
    }
    ok(rdma_reject(told, null_mut(), 0));
    ok(rdma_destroy_id(told));
    ok(rdma_destroy_id(second));
    rdma_destroy_event_channel(channel);
}

/// Connects, which fails. Returns the status.
unsafe fn refused(channel: *mut rdma_event_channel, to: &str) -> i32 {
    let id = resolved_to(channel, to);
    ok(rdma_connect(id, null_mut()));
    let status = next(channel, RDMA_CM_EVENT_REJECTED).status;
    destroy(id);
    status
}

unsafe fn gone_client() {
    let channel = rdma_create_event_channel();
    let id = resolved(channel, PORT);
    ok(rdma_connect(id, null_mut()));
    next(channel, RDMA_CM_EVENT_ESTABLISHED);
    ok(rdma_disconnect(id));
    assert_eq!((*(*id).qp).state, IBV_QPS_SQD);
    next(channel, RDMA_CM_EVENT_DISCONNECTED);
    destroy(id);
    let [one, two] = [PORT, PORT + 1].map(|port| format!("{SERVER}:{port}"));
    assert_eq!(refused(channel, &two), -libc::ECONNRESET);
    // Nobody listens, and the host says so at once.
    assert_eq!(refused(channel, &one), -libc::ECONNREFUSED);
    assert_eq!(refused(channel, &two), -libc::ECONNRESET);
    rdma_destroy_event_channel(channel);
}

/// How long the end of a connection waits for the program to poll what came before it.
const HELD: Duration = Duration::from_millis(100);

/// Asks for a last word and the end. Polls, and the end comes behind that, and before the peer's next
/// request. Then does not poll: the end comes later, and loses nothing.
unsafe fn last_word_server() {
    let channel = rdma_create_event_channel();
    let listening = listen_at(channel, &format!("{SERVER}:{PORT}"));
    println!("\n{READY}");
    for polls in [true, false] {
        let id = accepted(channel);
        let mut message = [0; 16];
        receive(id, &mut message);
        let asked = Instant::now();
        send(id, b"leave");
        let word = || completion(id, (*id).recv_cq, (*id).recv_cq_channel);
        let before = polls.then(word);
        next(channel, RDMA_CM_EVENT_DISCONNECTED);
        assert!(polls || asked.elapsed() >= HELD, "the end did not wait");
        assert_eq!(before.unwrap_or_else(word), (0, 3));
        destroy(id);
    }
    ok(rdma_destroy_id(listening));
    rdma_destroy_event_channel(channel);
}

unsafe fn last_word_client() {
    let channel = rdma_create_event_channel();
    for _ in 0..2 {
        let id = resolved(channel, PORT);
        let mut message = [0; 16];
        receive(id, &mut message);
        ok(rdma_connect(id, null_mut()));
        next(channel, RDMA_CM_EVENT_ESTABLISHED);
        completion(id, (*id).recv_cq, (*id).recv_cq_channel);
        send(id, b"bye");
        ok(rdma_disconnect(id));
        next(channel, RDMA_CM_EVENT_DISCONNECTED);
        destroy(id);
    }
    rdma_destroy_event_channel(channel);
}

/// Ends a listener whose connection lives, and listens anew when the client has come back.
unsafe fn again_server() {
    let channel = rdma_create_event_channel();
    let any = format!("[::]:{PORT}");
    let listening = listen_at(channel, &any);
    println!("\n{READY}");
    let first = accepted(channel);
    let mut message = [0; 16];
    receive(first, &mut message);
    ok(rdma_destroy_id(listening));
    send(first, b"gone");
    completion(first, (*first).recv_cq, (*first).recv_cq_channel);
    let listening = listen_at(channel, &any);
    let second = accepted(channel);
    for _ in 0..2 {
        next(channel, RDMA_CM_EVENT_DISCONNECTED);
    }
    [second, first].into_iter().for_each(|id| destroy(id));
    ok(rdma_destroy_id(listening));
    rdma_destroy_event_channel(channel);
}

unsafe fn again_client() {
    let channel = rdma_create_event_channel();
    let first = resolved(channel, PORT);
    let mut message = [0; 16];
    receive(first, &mut message);
    ok(rdma_connect(first, null_mut()));
    next(channel, RDMA_CM_EVENT_ESTABLISHED);
    completion(first, (*first).recv_cq, (*first).recv_cq_channel);
    // By the other address this is another peer.
    let other = format!("[fd78::1]:{PORT}");
    assert_eq!(refused(channel, &other), -libc::ECONNREFUSED);
    // The same peer waits for the next listener.
    let second = resolved(channel, PORT);
    ok(rdma_connect(second, null_mut()));
    send(first, b"listen");
    assert_eq!(next(channel, RDMA_CM_EVENT_ESTABLISHED).id, second);
    for id in [first, second] {
        ok(rdma_disconnect(id));
        assert_eq!(next(channel, RDMA_CM_EVENT_DISCONNECTED).id, id);
        destroy(id);
    }
    rdma_destroy_event_channel(channel);
}

/// Where a thread is that comes back to a channel while the process ends.
static LATE: AtomicU32 = AtomicU32::new(WAITS);
const WAITS: u32 = 0;
const ASKS: u32 = 1;
const HAS_RETURNED: u32 = 2;

/// The late thread.
static LATE_THREAD: AtomicU64 = AtomicU64::new(0);

// The libc crate has functions that do not unwind, or none.
unsafe extern "C" {
    #[link_name = "pthread_create"]
    fn create_thread(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> i32;
    fn pthread_cancel(thread: libc::pthread_t) -> i32;
    fn pthread_timedjoin_np(
        thread: libc::pthread_t,
        result: *mut *mut c_void,
        until: *const libc::timespec,
    ) -> i32;
}

/// Has the late thread ask. The process fails if that returns, and if the thread does not end when
/// it is cancelled, for which an exit handler may wait.
extern "C" fn ask_late() {
    LATE.store(ASKS, Ordering::Release);
    thread::sleep(Duration::from_millis(100));
    if LATE.load(Ordering::Acquire) == HAS_RETURNED {
        std::process::abort();
    }
    let thread = LATE_THREAD.load(Ordering::Acquire);
    let until = SystemTime::now() + Duration::from_secs(10);
    let until = until.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let until = libc::timespec {
        tv_sec: until.as_secs() as i64,
        tv_nsec: 0,
    };
    // SAFETY: the thread was created, and nobody else joins it.
    let joined = unsafe {
        pthread_cancel(thread);
        pthread_timedjoin_np(thread, null_mut(), &until)
    };
    if joined != 0 {
        std::process::abort();
    }
}

/// Comes back to a channel that is gone when the process ends.
unsafe extern "C-unwind" fn late(channel: *mut c_void) -> *mut c_void {
    while LATE.load(Ordering::Acquire) != ASKS {
        thread::yield_now();
    }
    let mut event = null_mut();
    rdma_get_cm_event(channel.cast(), &mut event);
    LATE.store(HAS_RETURNED, Ordering::Release);
    null_mut()
}

/// Comes back to a channel that is gone: from a thread that goes on, and from one that the end of
/// the process overtakes.
unsafe fn late_client() {
    // What is registered first is called last: behind what rnic does at exit.
    ok(libc::atexit(ask_late));
    let channel = rdma_create_event_channel();
    let id = resolved(channel, PORT);
    destroy(id);
    rdma_destroy_event_channel(channel);
    assert_eq!((*channel).fd, -1);
    let mut event = null_mut();
    fails(rdma_get_cm_event(channel, &mut event), libc::EBADF);
    let mut id = null_mut();
    fails(
        rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP),
        libc::EBADF,
    );
    // Once is enough. The next channels are two.
    rdma_destroy_event_channel(channel);
    let others = [rdma_create_event_channel(), rdma_create_event_channel()];
    assert_ne!(others[0], others[1]);
    // The first one is not given out again yet, and is in the end.
    assert!(!others.contains(&channel));
    let is_it = |_| {
        let new = rdma_create_event_channel();
        rdma_destroy_event_channel(new);
        new == channel
    };
    assert!((0..1000).any(is_it));
    let id = resolved(others[0], PORT);
    destroy(id);
    for other in others {
        rdma_destroy_event_channel(other);
    }
    let mut thread = 0;
    ok(create_thread(&mut thread, null(), late, channel.cast()));
    LATE_THREAD.store(thread, Ordering::Release);
}
