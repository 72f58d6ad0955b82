//! What queue pairs leave behind of the process's descriptors.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::calls::*;
use crate::datagrams;
use crate::itself::{Side, Talk, ask_at, assert_rejected, connect_and_talk, hello};

/// Longer than two ends need to close a connection.
const SOON: Duration = Duration::from_secs(30);

/// Over sockets of the kernel, queue pairs that are gone leave no descriptor behind: neither those of
/// their connections nor those at which others found them.
pub(crate) unsafe fn leave_nothing(is_server: bool) {
    let mut talk = Talk::of(is_server);
    let mut side = Side::new(is_server);
    // The first one makes the memory in which datagrams arrive for all.
    ok(ibv_destroy_qp(side.datagrams(1)));
    let before = descriptors();
    for round in 0..3 {
        let [qp, other] = [side.queue_pair(), side.queue_pair()];
        let number = (*qp).qp_num;
        connect_and_talk(&mut side, &mut talk, qp, is_server);
        datagrams::exchange(&mut side, &mut talk);
        ok(ibv_destroy_qp(qp));
        // Another one is behind the port: who asks there gets an answer.
        let to_the_former = hello(1, number);
        let mut socket = ask_at((side.at[0], (number >> 8) as u16), &to_the_former);
        assert_rejected(&mut socket, &to_the_former);
        drop(socket);
        ok(ibv_destroy_qp(other));
        while poll(side.cq).is_some() {}
        let refused = TcpStream::connect((side.at[0], (number >> 8) as u16));
        let refused = refused.map_err(|why| why.kind());
        assert_eq!(refused.err(), Some(ErrorKind::ConnectionRefused));
        // A connection is over when both ends have closed.
        let deadline = Instant::now() + SOON;
        loop {
            let now = descriptors();
            if now == before {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "round {round}: {now:#?} {before:#?}"
            );
            std::thread::yield_now();
        }
        talk.meet();
    }
    side.close();
}

/// Returns what the descriptors of this process are, and how many of each.
fn descriptors() -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        // That of the directory is gone by now.
        if let Ok(target) = std::fs::read_link(entry.unwrap().path()) {
            let what = target.to_string_lossy().into_owned();
            // Sockets have numbers.
            let kind = what
                .split_once(":[")
                .map_or(what.as_str(), |(kind, _)| kind);
            *found.entry(kind.to_owned()).or_default() += 1;
        }
    }
    found
}
