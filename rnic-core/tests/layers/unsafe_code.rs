//! Where `unsafe` may stand.

use std::path::{Path, PathBuf};

use crate::source::Token;
use crate::words::{files_with, outside};

/// Where `unsafe` may stand: files, or directories with all that is in them.
const UNSAFE: [&str; 13] = [
    "rnic-core/src/memory",
    "rnic-core/src/wire/crc/lanes",
    "rnic-core/src/wire/crc/wide",
    "rnic-manager/src/peer",
    "rnic-sockets/src/sys",
    "rnic-sysfs/src/next",
    "rnic-sysfs/src/symbols",
    "rnic-sysfs/src/tree",
    "rnic-xdp/src/device/icmp/filter",
    "rnic-xdp/src/device/queue_choice/ioctl",
    "rnic-xdp/src/device/interface",
    "rnic-xdp/src/device/steering/attach",
    "rnic-xdp/src/shared/reservation",
];

/// The files of rnic-ibverbs that hold the C ABI: entry points, and what follows pointers of the
/// program or calls the C library. No other file there has `unsafe`.
const C_ABI: [&str; 54] = [
    "abi/zeros",
    "absent",
    "ah",
    "asynchronous",
    "channel",
    "children",
    "cm/address",
    "cm/addrinfo",
    "cm/channel",
    "cm/children",
    "cm/connect",
    "cm/deliver",
    "cm/devices",
    "cm/endpoint",
    "cm/event",
    "cm/given",
    "cm/id",
    "cm/lifetime",
    "cm/listen",
    "cm/options",
    "cm/qp",
    "cm/request",
    "cm/resolve",
    "cm/verbs",
    "context",
    "cq",
    "cq_ex",
    "device",
    "kern",
    "modify",
    "mr",
    "mw",
    "objects",
    "pd",
    "post",
    "process",
    "qp",
    "qp_ex",
    "query",
    "rates",
    "registry",
    "rsocket/address",
    "rsocket/buffer",
    "rsocket/children",
    "rsocket/endpoint",
    "rsocket/identifier",
    "rsocket/pieces",
    "rsocket/repoll_symbols",
    "rsocket/symbols",
    "section",
    "srq",
    "strings",
    "sysfs",
    "system",
];

/// Whether there is unsafe code. The types of functions that are unsafe to call have none:
/// `unsafe extern "C" fn(u32)`.
pub(super) fn has_unsafe(tokens: &[Token<'_>]) -> bool {
    let mut at = 0..tokens.len();
    at.any(|at| tokens[at] == Token::Word("unsafe") && !is_type(&tokens[at + 1..]))
}

/// Whether the type of a function goes on like this behind `unsafe`.
fn is_type(rest: &[Token<'_>]) -> bool {
    let rest = match rest {
        [Token::Word("extern"), Token::Literal(_), rest @ ..] => rest,
        [Token::Word("extern"), rest @ ..] => rest,
        rest => rest,
    };
    rest.starts_with(&[Token::Word("fn"), Token::Other('(')])
}

fn places() -> Vec<PathBuf> {
    let c_abi = C_ABI.map(|file| Path::new("rnic-ibverbs/src").join(file));
    UNSAFE.map(PathBuf::from).into_iter().chain(c_abi).collect()
}

#[test]
fn unsafe_stands_where_it_is_allowed() {
    let astray = outside(&files_with(has_unsafe), &places());
    assert!(
        astray.is_empty(),
        "unsafe code stands outside of the files that are listed here: {astray:?}"
    );
}

#[test]
fn every_place_that_is_allowed_has_some() {
    let found = files_with(has_unsafe);
    let mut places = places();
    places.retain(|place| !found.iter().any(|file| file.starts_with(place)));
    assert!(places.is_empty(), "no unsafe code any more: {places:?}");
}
