//! A process that forks while it has a device, and what its children have of it.

use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::process::exit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll as poll_fds};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, dup2_stderr, fork};

use crate::alone;
use crate::calls::*;
use crate::end::{End, qp_attributes};
use crate::there::connect;

unsafe extern "C" {
    #[link_name = "rnic_cm_rdma_create_event_channel"]
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    #[link_name = "rnic_cm_rdma_destroy_event_channel"]
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    #[link_name = "rnic_cm_rdma_get_cm_event"]
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> i32;
    #[link_name = "rnic_cm_rsocket"]
    fn rsocket(domain: i32, r#type: i32, protocol: i32) -> i32;
    #[link_name = "rnic_cm_rlisten"]
    fn rlisten(socket: i32, backlog: i32) -> i32;
    #[link_name = "rnic_cm_rclose"]
    fn rclose(socket: i32) -> i32;
}

const LONGEST: u32 = 120;
const ECHOES: u32 = 100;

/// Forks. The child does something, and ends by `exit`, which runs what was registered for that.
unsafe fn in_child(what: impl FnOnce()) -> nix::unistd::Pid {
    match fork().unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            alarm::set(LONGEST);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
            exit(i32::from(outcome.is_err()))
        }
    }
}

fn ended_well(child: nix::unistd::Pid) {
    assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
}

/// The files of this process that hold an interface: sockets of AF_XDP, and programs that are
/// attached.
fn held() -> Vec<String> {
    let mut held = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(file) = fs::read_link(entry.path()) else {
            continue;
        };
        let fd: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        let (mut domain, mut length) = (0i32, size_of::<i32>() as u32);
        // SAFETY: an option of 4 octets, for which there is room.
        unsafe {
            let to = (&raw mut domain).cast();
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, to, &mut length);
        }
        let file = file.to_str().unwrap().to_owned();
        if domain == libc::AF_XDP || file.contains("bpf_link") || file.contains("bpf-link") {
            held.push(file);
        }
    }
    // Rings that are mapped keep their socket as well.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    held.extend(
        maps.lines()
            .filter(|m| m.contains("socket:["))
            .map(str::to_owned),
    );
    held
}

/// What a child may call on what it has inherited: all of it fails or does nothing.
unsafe fn everything_inherited(end: &End) {
    assert_eq!(held(), Vec::<String>::new());
    let mut wc = ibv_wc::default();
    let context = (*end.id).verbs;
    for _ in 0..100 {
        assert_eq!((*context).ops.poll_cq.unwrap()(end.send_cq, 1, &mut wc), -1);
    }
    assert_eq!(errno(), libc::ENODEV);
    let mut send: ibv_send_wr = std::mem::zeroed();
    assert_eq!(post_send(end.qp(), &mut send), libc::ENODEV);
    let mut receive: ibv_recv_wr = std::mem::zeroed();
    assert_eq!(post_recv(end.qp(), &mut receive), libc::ENODEV);
    let notified = (*context).ops.req_notify_cq.unwrap()(end.send_cq, 0);
    assert_eq!(notified, libc::ENODEV);
    refused(ibv_alloc_pd(context), libc::ENODEV);
    refused(ibv_create_comp_channel(context), libc::ENODEV);
    refused(
        ibv_create_cq(context, 4, null_mut(), null_mut(), 0),
        libc::ENODEV,
    );
    refused(
        ibv_create_qp(end.pd, &mut qp_attributes(end.send_cq)),
        libc::ENODEV,
    );
    let mut word = 0u64;
    refused(
        ibv_reg_mr(end.pd, (&raw mut word).cast(), 8, 0),
        libc::ENODEV,
    );
    let mut failed: ibv_qp_attr = std::mem::zeroed();
    failed.qp_state = IBV_QPS_ERR;
    assert_eq!(
        ibv_modify_qp(end.qp(), &mut failed, IBV_QP_STATE),
        libc::ENODEV
    );
    assert_eq!(rdma_disconnect(end.id), -1);
    assert_eq!(errno(), libc::ENODEV);
    // Who waits for an event wakes up, and learns why there is none.
    let channel = std::os::fd::BorrowedFd::borrow_raw((*end.channel).fd);
    let mut fds = [PollFd::new(channel, PollFlags::POLLIN)];
    assert_eq!(poll_fds(&mut fds, PollTimeout::NONE), Ok(1));
    let (mut cq, mut mark) = (null_mut(), null_mut());
    assert_eq!(ibv_get_cq_event(end.channel, &mut cq, &mut mark), -1);
    assert_eq!(errno(), libc::ENODEV);
    let mut event: ibv_async_event = std::mem::zeroed();
    assert_eq!(ibv_get_async_event(context, &mut event), -1);
    // As destructors do.
    rdma_destroy_qp(end.id);
    ok(ibv_dereg_mr(end.memory.mr));
    ok(ibv_destroy_cq(end.recv_cq));
    ok(ibv_destroy_cq(end.send_cq));
    ok(ibv_destroy_comp_channel(end.channel));
    ok(ibv_dealloc_pd(end.pd));
    ok(rdma_destroy_id(end.id));
    ok(ibv_close_device(context));
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

unsafe fn has_errno(outcome: i32, wanted: i32) {
    assert_eq!((outcome, errno()), (-1, wanted));
}

/// Events of rdma_cm, and rsockets. A number that the child has given to something else stays that
/// in a child of its own.
unsafe fn other_calls() {
    let channel = made(rdma_create_event_channel());
    let mut id = null_mut();
    ok(rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP));
    let socket = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
    assert!(socket >= 0);
    ended_well(in_child(|| {
        let mut event = null_mut();
        has_errno(rdma_get_cm_event(channel, &mut event), libc::ENODEV);
        has_errno(rdma_listen(id, 1), libc::ENODEV);
        has_errno(rlisten(socket, 1), libc::ENODEV);
        let number = (*channel).fd;
        ok(rdma_destroy_id(id));
        rdma_destroy_event_channel(channel);
        ok(rclose(socket));
        let file = fs::File::open("/dev/null").unwrap();
        assert_eq!(libc::dup2(file.as_raw_fd(), number), number);
        ended_well(in_child(|| {
            let now = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
            assert_eq!(now.to_str(), Some("/dev/null"));
        }));
    }));
    ok(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
    ok(rclose(socket));
}

unsafe fn echo(end: &End, number: u32) {
    end.say(&number.to_ne_bytes());
    assert_eq!(end.message().1, number.to_ne_bytes());
}

/// Children use what they have inherited, only compute, or execute a program; their parent's
/// connection goes on meanwhile.
pub(crate) unsafe fn forks() {
    alarm::set(LONGEST);
    let (end, _) = connect(0);
    assert!(!held().is_empty());
    let (mut said, saying) = pipe().unwrap();
    let uses = in_child(|| {
        dup2_stderr(&saying).unwrap();
        everything_inherited(&end);
    });
    drop(saying);
    let (waits, lets_go) = pipe().unwrap();
    let in_child_too = lets_go.as_raw_fd();
    let computes = in_child(move || {
        libc::close(in_child_too);
        wait_for_end(waits);
    });
    for number in 0..ECHOES {
        echo(&end, number);
    }
    ended_well(uses);
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    assert_eq!(text.matches("rnic: ").count(), 1, "{text}");
    for part in ["ENODEV", "fork()", "daemon()"] {
        assert!(text.contains(part), "{text}");
    }
    other_calls();
    let executed = std::process::Command::new("true").status().unwrap();
    assert!(executed.success());
    // Threads use the device while the process forks: no child hangs, whatever they hold.
    let over = AtomicBool::new(false);
    let shared = Threads(&end);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // SAFETY: the objects live as long as the scope, and calls of several threads may
                // use them at once.
                while_not(&over, || unsafe { shared.use_them() });
            });
        }
        for _ in 0..20 {
            ended_well(in_child(|| {
                let mut wc = ibv_wc::default();
                let context = (*shared.0.id).verbs;
                assert_eq!(
                    (*context).ops.poll_cq.unwrap()(shared.0.send_cq, 1, &mut wc),
                    -1
                );
            }));
        }
        over.store(true, Ordering::Relaxed);
    });
    echo(&end, ECHOES);
    drop(lets_go);
    ended_well(computes);
    echo(&end, ECHOES + 1);
    end.close();
}

struct Threads<'a>(&'a End);

// SAFETY: any thread may use objects of verbs.
unsafe impl Sync for Threads<'_> {}

impl Threads<'_> {
    unsafe fn use_them(&self) {
        let (mut now, mut init) = (std::mem::zeroed(), qp_attributes(self.0.send_cq));
        ok(ibv_query_qp(self.0.qp(), &mut now, IBV_QP_STATE, &mut init));
        let cq = made(ibv_create_cq(
            (*self.0.id).verbs,
            16,
            null_mut(),
            null_mut(),
            0,
        ));
        assert!(poll(cq).is_none());
        ok(ibv_destroy_cq(cq));
    }
}

fn while_not(over: &AtomicBool, something: impl Fn()) {
    while !over.load(Ordering::Relaxed) {
        something();
    }
}

fn wait_for_end(mut waits: PipeReader) {
    assert_eq!(waits.read(&mut [0]).unwrap(), 0);
}

/// A process opens the device, forks, and ends. Its child lives on: the interface is free, for the
/// child as for any other.
pub(crate) unsafe fn heirs() {
    alarm::set(LONGEST);
    let (waits, lets_go) = pipe().unwrap();
    let (mut answers, answer) = pipe().unwrap();
    let in_child_too = lets_go.as_raw_fd();
    let parent = in_child(move || daemon((waits, in_child_too), answer));
    ended_well(parent);
    drop(lets_go);
    let mut outcome = Vec::new();
    answers.read_to_end(&mut outcome).unwrap();
    assert_eq!(outcome, b"well");
}

unsafe fn daemon((waits, in_child_too): (PipeReader, i32), mut answer: PipeWriter) {
    let context = alone::open();
    let pd = made(ibv_alloc_pd(context));
    in_child(move || {
        libc::close(in_child_too);
        wait_for_end(waits);
        refused(
            ibv_create_cq(context, 4, null_mut(), null_mut(), 0),
            libc::ENODEV,
        );
        ok(ibv_dealloc_pd(pd));
        let (end, _) = connect(0);
        for number in 0..ECHOES {
            echo(&end, number);
        }
        end.close();
        answer.write_all(b"well").unwrap();
    });
}
