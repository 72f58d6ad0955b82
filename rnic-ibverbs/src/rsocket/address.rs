//! Addresses as programs pass them.
#![allow(unsafe_code, reason = "addresses of programs")]

use std::ptr;

use nix::libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

use crate::abi::{Zeros, rdma_sockaddr};
use crate::errno::Errno;

/// Returns the octets of an address of this family.
fn octets_of(family: i32) -> usize {
    if family == AF_INET {
        size_of::<sockaddr_in>()
    } else {
        size_of::<sockaddr_in6>()
    }
}

fn family_of(address: &rdma_sockaddr) -> i32 {
    // SAFETY: both functions that make addresses here, and rdma_cm, begin with zeros and write an
    // address of a family over them, so that every member has a value.
    unsafe { address.addr.sa_family }.into()
}

/// Returns an address without a value.
fn unspecified(domain: i32) -> rdma_sockaddr {
    let mut address = rdma_sockaddr::zeros();
    address.addr.sa_family = domain as u16;
    address
}

/// Reads an address of the program.
///
/// # Safety
///
/// It is NULL, or `length` octets can be read there.
pub(super) unsafe fn read(
    address: *const sockaddr,
    length: socklen_t,
) -> Result<rdma_sockaddr, Errno> {
    if address.is_null() {
        return Err(Errno::EFAULT);
    }
    if (length as usize) < size_of::<sockaddr>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: there are octets enough for a `sockaddr`. Nothing says that they are aligned.
    let family = i32::from(unsafe { (&raw const (*address).sa_family).read_unaligned() });
    if family != AF_INET && family != AF_INET6 {
        return Err(Errno::EAFNOSUPPORT);
    }
    let octets = octets_of(family);
    if (length as usize) < octets {
        return Err(Errno::EINVAL);
    }
    let mut read = unspecified(family);
    // SAFETY: there are so many octets, as was checked, and any address fits into `read`, which is
    // on this stack.
    unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut read).cast(), octets) };
    Ok(read)
}

/// Returns the address, or one without a value if rdma_cm knows none.
pub(super) fn or_unspecified(address: rdma_sockaddr, domain: i32) -> rdma_sockaddr {
    if is_known(&address) {
        address
    } else {
        unspecified(domain)
    }
}

/// Returns whether rdma_cm knows this address.
pub(super) fn is_known(address: &rdma_sockaddr) -> bool {
    family_of(address) != 0
}

/// Writes an address for the program, as much as it has room for, and how long it is.
///
/// # Safety
///
/// `length` is NULL, or can be read and written. `to` is NULL, or `*length` octets can be written
/// there.
pub(super) unsafe fn write(
    address: &rdma_sockaddr,
    to: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    if length.is_null() {
        return Err(Errno::EFAULT);
    }
    let octets = octets_of(family_of(address));
    // SAFETY: it is not NULL, so the program has its length there.
    let room = (unsafe { *length } as usize).min(octets);
    if room > 0 {
        if to.is_null() {
            return Err(Errno::EFAULT);
        }
        let from: *const rdma_sockaddr = address;
        // SAFETY: `room` is no more than the program has there, nor than an address has. It is the
        // program's memory, which `address` is not.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), room) };
    }
    // SAFETY: as where it was read.
    unsafe { *length = octets as socklen_t };
    Ok(())
}
