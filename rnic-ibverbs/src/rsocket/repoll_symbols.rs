//! The functions of `rdma/rsocket.h` that begin with `repoll`.
#![allow(unsafe_code, reason = "C ABI: entry points")]

use std::slice;
use std::time::Duration;

use nix::libc::{EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};

use super::children;
use super::repoll::{self, Change};
use super::symbols::run;
use crate::errno::{Errno, result};

#[unsafe(export_name = "rnic_cm_repoll_create")]
pub(super) extern "C-unwind" fn repoll_create(flags: i32) -> i32 {
    children::register();
    run(|| match flags & !EPOLL_CLOEXEC {
        0 => repoll::create(flags & EPOLL_CLOEXEC != 0),
        _ => Err(Errno::EINVAL),
    })
}

/// Returns 0 or an errno, as rdma-core does.
#[unsafe(export_name = "rnic_cm_repoll_ctl")]
pub(super) unsafe extern "C-unwind" fn repoll_ctl(
    epfd: i32,
    op: i32,
    fd: i32,
    event: *mut epoll_event,
) -> i32 {
    result((|| {
        let set = repoll::get(epfd)?;
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        if fd == epfd {
            return Err(Errno::EINVAL);
        }
        // SAFETY: it is NULL, or an event of the program. (Its members may be unaligned.)
        let event = || (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        let change = match op {
            EPOLL_CTL_ADD => Change::Add(event().ok_or(Errno::EFAULT)?),
            EPOLL_CTL_MOD => Change::Modify(event().ok_or(Errno::EFAULT)?),
            EPOLL_CTL_DEL => Change::Delete,
            _ => return Err(Errno::EINVAL),
        };
        set.change(fd, change)
    })())
}

#[unsafe(export_name = "rnic_cm_repoll_wait")]
pub(super) unsafe extern "C-unwind" fn repoll_wait(
    epfd: i32,
    events: *mut epoll_event,
    maxevents: i32,
    timeout: i32,
) -> i32 {
    run(|| {
        let set = repoll::get(epfd)?;
        let room = match usize::try_from(maxevents) {
            Ok(0) | Err(_) => return Err(Errno::EINVAL),
            Ok(_) if events.is_null() => return Err(Errno::EFAULT),
            // SAFETY: the program has room for so many events, which no other thread uses during
            // the call.
            Ok(count) => unsafe { slice::from_raw_parts_mut(events, count) },
        };
        let most = u64::try_from(timeout).ok().map(Duration::from_millis);
        Ok(set.wait(room, most)? as i32)
    })
}
