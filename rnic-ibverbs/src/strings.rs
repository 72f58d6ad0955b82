//! Names for people.
#![allow(unsafe_code, reason = "C ABI: entry points")]

use std::ffi::{CStr, c_char};

/// Returns the name of this number.
fn name(names: &'static [&'static CStr], number: u32) -> *const c_char {
    let found = usize::try_from(number).ok().and_then(|n| names.get(n));
    found.copied().unwrap_or(c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_node_type_str(node_type: i32) -> *const c_char {
    let names = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(names, node_type as u32)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_port_state_str(state: u32) -> *const c_char {
    let names = &[
        c"no state change (NOP)",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
    ];
    name(names, state)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_event_type_str(event: u32) -> *const c_char {
    let names = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"Device link speed change",
    ];
    name(names, event)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wc_status_str(status: u32) -> *const c_char {
    let names = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(names, status)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_wr_opcode_str(opcode: u32) -> *const c_char {
    let names = &[
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    name(names, opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_names_are_unknown() {
        // SAFETY: the functions return strings that stay.
        let text = |name| unsafe { CStr::from_ptr(name) }.to_str().unwrap();
        assert_eq!(text(ibv_wc_status_str(0)), "success");
        assert_eq!(text(ibv_wc_status_str(23)), "TM software rendezvous");
        assert_eq!(text(ibv_wc_status_str(24)), "unknown");
        assert_eq!(text(ibv_node_type_str(-1)), "unknown");
        assert_eq!(text(ibv_node_type_str(4)), "iWARP NIC");
        assert_eq!(text(ibv_event_type_str(9)), "port active");
        assert_eq!(text(ibv_event_type_str(20)), "Device link speed change");
    }
}
