//! A forked process drops its copies of a device's objects, and those of its parent still work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::libc::_exit;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::rig::{Rig, Runs, SOON};

/// Runs `destructors` in a child process, and `meanwhile` here until the child has ended.
#[allow(unsafe_code)]
fn with_child(destructors: impl FnOnce(), mut meanwhile: impl FnMut()) {
    // SAFETY: the child frees memory and closes descriptors, and leaves by `_exit`.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let done = catch_unwind(AssertUnwindSafe(destructors));
            // SAFETY: it only ends the process.
            unsafe { _exit(i32::from(done.is_err())) }
        }
        ForkResult::Parent { child } => child,
    };
    struct Killed(Pid);
    impl Drop for Killed {
        fn drop(&mut self) {
            // It has ended, unless the test failed.
            if std::thread::panicking() {
                let _ = kill(self.0, Signal::SIGKILL);
                let _ = waitpid(self.0, None);
            }
        }
    }
    let killed = Killed(child);
    let deadline = Instant::now() + SOON;
    loop {
        meanwhile();
        match waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap() {
            WaitStatus::StillAlive => assert!(Instant::now() < deadline, "the child hangs"),
            status => {
                assert_eq!(status, WaitStatus::Exited(killed.0, 0));
                return;
            }
        }
    }
}

#[test]
#[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
fn what_a_forked_process_drops_stays_its_parents() {
    for runs in [Runs::Thread(Duration::from_millis(1)), Runs::Inline] {
        let rig = Rig::new(1500, 2, runs);
        let (mut client, mut server) = rig.connect("10.77.0.2:4420", 1 << 16);
        let address = "10.77.0.2:4421".parse().unwrap();
        let listener = rig.west.run(|| rig.server.listen(address)).unwrap();
        let events = rig.client.async_events().unwrap();
        rig.exchange(&mut client, &mut server, 1 << 16);
        // Both processes have the objects; each drops its own.
        let all = (client, server, listener, events, rig);
        let all = std::cell::RefCell::new(Some(all));
        let destructors = || {
            let (client, server, listener, events, rig) = all.take().unwrap();
            drop((client, server, listener, events));
            let Rig {
                client,
                server,
                east,
                west,
            } = rig;
            drop((client, server));
            // Their destructors would remove the namespaces.
            std::mem::forget((east, west));
        };
        with_child(destructors, || {
            let mut all = all.borrow_mut();
            let (client, server, _, _, rig) = all.as_mut().unwrap();
            rig.exchange(client, server, 1 << 16);
        });
        let (mut client, mut server, _listener, _events, rig) = all.take().unwrap();
        for _ in 0..10 {
            rig.exchange(&mut client, &mut server, 1 << 16);
        }
        let (mut client, mut server) = rig.connect("10.77.0.2:4422", 1 << 16);
        rig.exchange(&mut client, &mut server, 1 << 16);
    }
}
