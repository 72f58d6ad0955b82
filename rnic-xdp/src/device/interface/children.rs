//! Mappings that a process which is forked from this one is not to have: a ring of a socket, which
//! it would share, and whose mapping keeps the socket open; and a UMEM, of which it would get a
//! copy.
#![allow(unsafe_code)]

use std::fs;
use std::os::fd::AsFd;

use nix::libc;
use nix::sys::stat::fstat;

/// Keeps a mapping from children.
///
/// # Safety
/// The caller owns the mapping, and unmaps it in this process alone.
pub(super) unsafe fn do_not_get(start: usize, octets: usize) {
    let start = std::ptr::without_provenance_mut(start);
    // Fails only for what is not mapped: then there is nothing to keep from anybody.
    // SAFETY: says the caller; nothing changes in this process.
    unsafe { libc::madvise(start, octets, libc::MADV_DONTFORK) };
}

/// Keeps all mappings of a socket from children: those of xsk-rs too, which does not say where they
/// are.
pub(super) fn are_not_to_map(socket: &impl AsFd) {
    let Ok(inode) = fstat(socket).map(|stat| stat.st_ino) else {
        return;
    };
    let of_socket = format!("socket:[{inode}]");
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for (start, end) in ranges(&maps, &of_socket) {
        // SAFETY: a mapping of the caller's socket, which no child is to use.
        unsafe { do_not_get(start, end - start) };
    }
}

/// Returns where the mappings of a file begin and end, by the text of `/proc/PID/maps`.
fn ranges(maps: &str, file: &str) -> impl Iterator<Item = (usize, usize)> {
    maps.lines().filter_map(move |line| {
        let (range, rest) = line.split_once(' ')?;
        if rest.split_ascii_whitespace().next_back() != Some(file) {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?, number(end)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_found_by_their_file() {
        let maps = "7f00-7f10 rw-s 100000000 00:09 77 socket:[77]\n\
                    7f10-7f20 rw-p 00000000 00:00 0 \n\
                    8000-9000 rw-s 00000000 00:09 177 socket:[177]\n\
                    a000-b000 rw-s 180000000 00:09 77 socket:[77]\n";
        let found: Vec<_> = ranges(maps, "socket:[77]").collect();
        assert_eq!(found, [(0x7f00, 0x7f10), (0xa000, 0xb000)]);
    }
}
