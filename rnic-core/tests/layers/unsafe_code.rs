//! Where `unsafe` may stand.

use crate::source::Token;
use crate::words::{files_with, outside};

/// Where `unsafe` may stand: files, or directories with all that is in them.
const UNSAFE: [&str; 10] = [
    "rnic-core/src/memory",
    "rnic-core/src/wire/crc/lanes",
    "rnic-core/src/wire/crc/wide",
    // The C ABI.
    "rnic-ibverbs/src",
    "rnic-manager/src/peer",
    "rnic-xdp/src/device/icmp/filter",
    "rnic-xdp/src/device/placement/ioctl",
    "rnic-xdp/src/device/port",
    "rnic-xdp/src/device/steering/attach",
    "rnic-xdp/src/shared/reservation",
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

#[test]
fn unsafe_stands_where_it_is_allowed() {
    let astray = outside(&files_with(has_unsafe), &UNSAFE);
    assert!(
        astray.is_empty(),
        "unsafe code stands outside of the files that are listed here: {astray:?}"
    );
}

#[test]
fn every_place_that_is_allowed_has_some() {
    let found = files_with(has_unsafe);
    let is_left = |place: &&str| !found.iter().any(|file| file.starts_with(place));
    let left: Vec<_> = UNSAFE.into_iter().filter(is_left).collect();
    assert!(left.is_empty(), "no unsafe code any more: {left:?}");
}
