//! Names and services, looked up.
#![allow(unsafe_code, unsafe_op_in_unsafe_fn, reason = "C ABI: entry points")]

use std::ffi::{c_char, c_void};
use std::mem::{take, zeroed};
use std::ptr::{copy_nonoverlapping, null, null_mut};

use nix::libc::{
    AF_INET, AF_INET6, AI_NUMERICHOST, AI_PASSIVE, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM,
    SOCK_STREAM, addrinfo, calloc, freeaddrinfo, getaddrinfo, malloc, sockaddr, strdup,
};

use crate::abi::*;
use crate::adapter::adapters;
use crate::cancellation::PutOff;
use crate::cm::event::EventData;
use crate::cm::id::{Addresses, Id, rdma_freeaddrinfo};
use crate::cm::lifetime::complete;
use crate::errno::{Errno, fail};

/// What a lookup is like: 0, a code of `getaddrinfo`, or -1 with an errno.
type Code = i32;

/// Returns the question for the system's resolver.
fn question(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: zeros are numbers and null pointers.
    let mut question: addrinfo = unsafe { zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        question.ai_flags |= AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        question.ai_flags |= AI_NUMERICHOST;
    }
    // Any other family is none of the Internet's.
    if matches!(hints.ai_family, AF_INET | AF_INET6) {
        question.ai_family = hints.ai_family;
    }
    question.ai_socktype = match hints.ai_qp_type as u32 {
        IBV_QPT_UD => SOCK_DGRAM,
        0 => 0,
        _ => SOCK_STREAM,
    };
    question.ai_protocol = match (hints.ai_port_space as u32, question.ai_socktype) {
        (RDMA_PS_TCP, _) | (RDMA_PS_IB, SOCK_STREAM) => IPPROTO_TCP,
        (RDMA_PS_UDP | RDMA_PS_IPOIB, _) | (RDMA_PS_IB, SOCK_DGRAM) => IPPROTO_UDP,
        _ => 0,
    };
    question
}

/// Copies octets for the program.
///
/// # Safety
/// They can be read.
unsafe fn copied(octets: *const c_void, len: usize) -> Option<*mut c_void> {
    let copy = malloc(len);
    if copy.is_null() {
        return None;
    }
    copy_nonoverlapping(octets.cast::<u8>(), copy.cast(), len);
    Some(copy)
}

/// Copies an address into an answer.
///
/// # Safety
/// The address is NULL, or as long as that.
unsafe fn set_address(
    to: (&mut *mut sockaddr, &mut u32),
    from: (*const sockaddr, u32),
) -> Result<(), Code> {
    if from.0.is_null() {
        return Err(fail(Errno::EINVAL));
    }
    let copy = copied(from.0.cast(), from.1 as usize).ok_or_else(|| fail(Errno::ENOMEM))?;
    *to.0 = copy.cast();
    *to.1 = from.1;
    Ok(())
}

/// Asks the system's resolver. The first answer counts.
///
/// # Safety
/// Each name is NULL or a string.
unsafe fn ask(
    (node, service): (*const c_char, *const c_char),
    hints: Option<&rdma_addrinfo>,
    found: &mut rdma_addrinfo,
) -> Result<(), Code> {
    let question = hints.map(question);
    let asked = question.as_ref().map_or(null(), |one| one as *const _);
    let mut answers: *mut addrinfo = null_mut();
    let code = getaddrinfo(node, service, asked, &raw mut answers);
    if code != 0 {
        return Err(code);
    }
    let answer = &*answers;
    let hinted = |hint: fn(&rdma_addrinfo) -> i32| hints.map_or(0, hint);
    found.ai_family = answer.ai_family;
    found.ai_qp_type = match (hinted(|hints| hints.ai_qp_type), answer.ai_socktype) {
        (0, SOCK_STREAM) => IBV_QPT_RC as i32,
        (0, SOCK_DGRAM) => IBV_QPT_UD as i32,
        (given, _) => given,
    };
    found.ai_port_space = match (hinted(|hints| hints.ai_port_space), answer.ai_protocol) {
        (0, IPPROTO_TCP) => RDMA_PS_TCP as i32,
        (0, IPPROTO_UDP) => RDMA_PS_UDP as i32,
        (given, _) => given,
    };
    let name = if answer.ai_canonname.is_null() {
        null_mut()
    } else {
        strdup(answer.ai_canonname)
    };
    let is_passive = question.is_some_and(|question| question.ai_flags & AI_PASSIVE != 0);
    let to = if is_passive {
        found.ai_flags = RAI_PASSIVE;
        found.ai_src_canonname = name;
        (&mut found.ai_src_addr, &mut found.ai_src_len)
    } else {
        found.ai_dst_canonname = name;
        (&mut found.ai_dst_addr, &mut found.ai_dst_len)
    };
    let set = set_address(to, (answer.ai_addr, answer.ai_addrlen));
    freeaddrinfo(answers);
    set
}

/// Fills a new answer.
///
/// # Safety
/// Each name is NULL or a string. The hints have addresses as long as they say.
unsafe fn fill(
    (node, service): (*const c_char, *const c_char),
    hints: Option<&rdma_addrinfo>,
    found: &mut rdma_addrinfo,
) -> Result<(), Code> {
    if !node.is_null() || !service.is_null() {
        ask((node, service), hints, found)?;
    } else if let Some(hints) = hints {
        found.ai_flags = hints.ai_flags;
        found.ai_family = hints.ai_family;
        found.ai_qp_type = hints.ai_qp_type;
        found.ai_port_space = hints.ai_port_space;
        if hints.ai_dst_len > 0 {
            let to = (&mut found.ai_dst_addr, &mut found.ai_dst_len);
            set_address(to, (hints.ai_dst_addr, hints.ai_dst_len))?;
        }
    }
    match hints {
        Some(hints) if found.ai_src_len == 0 && hints.ai_src_len > 0 => {
            let to = (&mut found.ai_src_addr, &mut found.ai_src_len);
            set_address(to, (hints.ai_src_addr, hints.ai_src_len))
        }
        _ => Ok(()),
    }
}

#[unsafe(export_name = "rnic_cm_rdma_getaddrinfo")]
pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> i32 {
    let _whole = PutOff::new();
    let hints = hints.as_ref();
    if node.is_null() && service.is_null() && hints.is_none() {
        return fail(Errno::EINVAL);
    }
    if adapters().is_empty() {
        return fail(Errno::ENODEV);
    }
    // Service records are kept by InfiniBand's subnet administration.
    if hints.is_some_and(|hints| hints.ai_flags & RAI_SA != 0) {
        return fail(Errno::EOPNOTSUPP);
    }
    let Some(found) = calloc(1, size_of::<rdma_addrinfo>())
        .cast::<rdma_addrinfo>()
        .as_mut()
    else {
        return fail(Errno::ENOMEM);
    };
    match fill((node, service), hints, found) {
        Ok(()) => {
            *res = found;
            0
        }
        Err(code) => {
            rdma_freeaddrinfo(found);
            code
        }
    }
}

#[unsafe(export_name = "rnic_cm_rdma_resolve_addrinfo")]
pub(crate) unsafe extern "C-unwind" fn rdma_resolve_addrinfo(
    id: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> i32 {
    let Ok(this) = Id::of(id) else {
        return fail(Errno::EINVAL);
    };
    if std::mem::replace(&mut this.state().resolved.is_asked, true) {
        return fail(Errno::EBUSY);
    }
    let mut found = null_mut();
    let code = rdma_getaddrinfo(node, service, hints, &raw mut found);
    if code != 0 {
        this.state().resolved.is_asked = false;
        // The codes of the resolver are no errnos.
        return if code == -1 { -1 } else { fail(Errno::ENOENT) };
    }
    this.state().resolved.first = Some(Addresses(found));
    this.tell(EventData::new(RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0));
    complete(id).map_or_else(fail, |()| 0)
}

#[unsafe(export_name = "rnic_cm_rdma_query_addrinfo")]
pub(crate) unsafe extern "C" fn rdma_query_addrinfo(
    id: *mut rdma_cm_id,
    info: *mut *mut rdma_addrinfo,
) -> i32 {
    let (Ok(this), false) = (Id::of(id), info.is_null()) else {
        return fail(Errno::EINVAL);
    };
    match take(&mut this.state().resolved).first {
        Some(found) => {
            *info = found.0;
            0
        }
        None => fail(Errno::ENOENT),
    }
}
