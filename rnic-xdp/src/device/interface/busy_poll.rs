//! Busy polling: the worker's system calls poll the device, whose interrupts stay off as long as
//! calls are made.
//!
//! The kernel finds the device's queue by its NAPI id. Without one (as on a veth) busy polling only
//! costs time, and with deferred interrupts frames are lost. So it is used only if each queue has
//! one, which sends too where frames are not copied.
#![allow(unsafe_code)]

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use nix::libc;

use super::opening::Opened;
use super::zero_copy::ZeroCopy;
use crate::device::netlink::{Generic, Link, QueueNapi};
use rnic_manager::Maker;

/// The most microseconds for which a call polls.
const POLL_MICROSECONDS: libc::c_int = 20;
/// The most frames that a call takes from the device.
const BUDGET: libc::c_int = 64;

/// How the interrupts of a device are deferred: files in its directory of sysfs, and their values,
/// which the kernel's documentation of AF_XDP recommends.
const DEFERRED: [(&str, &str); 2] = [
    ("napi_defer_hard_irqs", "2"),
    ("gro_flush_timeout", "200000"),
];

/// Whether a port polls busily.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BusyPoll {
    /// It was not requested.
    #[default]
    Off,
    /// It polls busily.
    On,
    /// It was requested and is not possible, for this reason.
    Refused(String),
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On => f.write_str("on"),
            Self::Refused(why) => write!(f, "off: {why}"),
        }
    }
}

/// Defers the interrupts of a device until this is dropped. After a `kill -9` they stay deferred;
/// `rnic-ctl doctor` reports it.
#[derive(Debug)]
pub(super) struct Deferral {
    /// The former content of each file.
    before: Vec<(PathBuf, String)>,
    maker: Maker,
}

impl Deferral {
    fn begin(link: &Link) -> io::Result<Self> {
        let directory = directory(link)
            .ok_or_else(|| io::Error::other("sysfs shows another network namespace"))?;
        // If a later file cannot be written, the earlier ones are restored.
        let mut this = Self {
            before: Vec::new(),
            maker: Maker::this(),
        };
        for (file, value) in DEFERRED {
            let path = directory.join(file);
            let before = fs::read_to_string(&path)?;
            fs::write(&path, value)?;
            this.before.push((path, before));
        }
        Ok(this)
    }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        if self.maker.is_forked() {
            return;
        }
        for (path, value) in &self.before {
            // The device may be gone.
            let _ = fs::write(path, value.trim());
        }
    }
}

/// Returns the directory of a device in sysfs, if the one that is mounted shows this device rather
/// than one of another namespace.
fn directory(link: &Link) -> Option<PathBuf> {
    let directory = PathBuf::from("/sys/class/net").join(&link.name);
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
    let same = read("ifindex")?.trim() == link.index.to_string()
        && read("address")?.trim() == link.mac.to_string();
    same.then_some(directory)
}

/// Returns the current values, file by file. Returns none if sysfs does not show the device.
pub(crate) fn deferred(link: &Link) -> Vec<(PathBuf, String)> {
    let files = DEFERRED.iter().filter_map(|(file, _)| {
        let path = directory(link)?.join(file);
        let value = fs::read_to_string(&path).ok()?;
        Some((path, value.trim().to_string()))
    });
    files.collect()
}

/// Makes the sockets of a device, one for each queue, poll busily if each queue has a NAPI id. Keep
/// the deferral as long as they poll.
pub(super) fn begin(link: &Link, shares: &mut [Opened]) -> (BusyPoll, Option<Deferral>) {
    let queues = || shares.iter().flat_map(|share| &share.rx);
    let sockets: Vec<_> = queues().map(|queue| queue.socket()).collect();
    let zero_copy = shares.iter().any(|share| share.zero_copy == ZeroCopy::On);
    match try_begin(link, &sockets, zero_copy) {
        Ok(deferral) => {
            for queue in shares.iter_mut().flat_map(|share| &mut share.rx) {
                queue.poll_busily();
            }
            (BusyPoll::On, Some(deferral))
        }
        Err(why) => (BusyPoll::Refused(why), None),
    }
}

fn try_begin(link: &Link, sockets: &[BorrowedFd<'_>], zero_copy: bool) -> Result<Deferral, String> {
    let queues = Generic::open().and_then(|mut socket| socket.napi_ids(link.index));
    let queues = queues.map_err(|why| why.to_string())?;
    can_be_polled(sockets.len() as u32, zero_copy, &queues)
        .map_err(|why| format!("the queues of {} {why}", link.name))?;
    let deferral =
        Deferral::begin(link).map_err(|why| format!("the interrupts cannot be deferred: {why}"))?;
    for socket in sockets {
        prefer(socket).map_err(|why| format!("the sockets refuse it: {why}"))?;
    }
    Ok(deferral)
}

/// Fails unless each queue has a NAPI instance, which in zero-copy mode sends too: the kernel polls
/// the receiving one alone, and does not wake the sending one for a socket that prefers busy
/// polling, so that frames would stay in the transmit ring.
fn can_be_polled(count: u32, zero_copy: bool, queues: &[QueueNapi]) -> Result<(), &'static str> {
    let napi = |queue, receives| {
        let of = |each: &&QueueNapi| each.queue == queue && each.receives == receives;
        queues.iter().find(of).map(|each| each.napi)
    };
    for queue in 0..count {
        let receiving = napi(queue, true).ok_or("have no NAPI id")?;
        if zero_copy && napi(queue, false) != Some(receiving) {
            return Err("do not receive and send in one NAPI instance");
        }
    }
    Ok(())
}

/// Makes a socket poll busily.
fn prefer(socket: &impl AsFd) -> io::Result<()> {
    for (option, value) in [
        (libc::SO_PREFER_BUSY_POLL, 1),
        (libc::SO_BUSY_POLL, POLL_MICROSECONDS),
        (libc::SO_BUSY_POLL_BUDGET, BUDGET),
    ] {
        let value: libc::c_int = value;
        // SAFETY: the kernel reads a number of that length.
        let result = unsafe {
            libc::setsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::fs::File;
    use std::ptr;

    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::device::netlink::{RouteSocket, link_by_name};
    use crate::testing::{Namespace, VethEnd, veth_pair};

    fn mount(kind: &CStr, at: &CStr, flags: libc::c_ulong) {
        // SAFETY: the strings end, and no data is given.
        let result = unsafe {
            libc::mount(
                c"none".as_ptr(),
                at.as_ptr(),
                kind.as_ptr(),
                flags,
                ptr::null(),
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    #[test]
    fn a_queue_that_sends_elsewhere_is_not_polled_busily() {
        let queue = |queue, receives, napi| QueueNapi {
            receives,
            queue,
            napi,
        };
        let both = |rx, tx| {
            [
                queue(0, true, 7),
                queue(0, false, 7),
                queue(1, true, rx),
                queue(1, false, tx),
            ]
        };
        assert_eq!(can_be_polled(2, true, &both(8, 8)), Ok(()));
        assert_eq!(can_be_polled(2, false, &both(8, 9)), Ok(()));
        assert_eq!(
            can_be_polled(2, true, &both(8, 9)),
            Err("do not receive and send in one NAPI instance")
        );
        assert_eq!(can_be_polled(3, false, &both(8, 8)), Err("have no NAPI id"));
        assert!(can_be_polled(2, true, &both(8, 8)[..3]).is_err());
    }

    #[test]
    #[cfg_attr(not(root), ignore = "needs root: network namespaces, XDP and AF_XDP")]
    fn interrupts_are_deferred_and_restored() {
        let namespace = Namespace::new("busy").unwrap();
        let end = |name| VethEnd {
            namespace: &namespace,
            name,
            addresses: "",
        };
        veth_pair(end("one"), end("other"), 2).unwrap();
        namespace.run(|| {
            let link = || {
                let mut socket = RouteSocket::open().unwrap();
                link_by_name(&mut socket, "one").unwrap().unwrap()
            };
            // The sysfs of the namespace that this process came from.
            assert!(deferred(&link()).is_empty());
            assert!(Deferral::begin(&link()).is_err());

            // That of this one, for this thread alone.
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE);
            mount(c"sysfs", c"/sys", 0);
            let values = || -> Vec<String> {
                let found = deferred(&link());
                found.into_iter().map(|(_, value)| value).collect()
            };
            fs::write("/sys/class/net/one/gro_flush_timeout", "7000").unwrap();
            assert_eq!(values(), ["0", "7000"]);
            let deferral = Deferral::begin(&link()).unwrap();
            assert_eq!(values(), ["2", "200000"]);
            drop(deferral);
            assert_eq!(values(), ["0", "7000"]);

            // A veth's queues have no NAPI id: nothing is touched.
            let any = File::open("/dev/null").unwrap();
            let refused = try_begin(&link(), &[any.as_fd(), any.as_fd()], true).unwrap_err();
            assert_eq!(refused, "the queues of one have no NAPI id");
            assert_eq!(values(), ["0", "7000"]);
        });
    }
}
