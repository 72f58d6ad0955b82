//! How the receive window follows what the path holds.

use core::time::Duration;

use super::script::{Script, ms, plain};
use crate::tcp::TcpConfig;

fn growing() -> TcpConfig {
    TcpConfig {
        receive_window: 10_000,
        receive_window_limit: 100_000,
        ..plain()
    }
}

/// A peer that sends segments of 1000 octets.
struct Peer {
    script: Script,
    sent: u64,
}

impl Peer {
    fn new(config: &TcpConfig, options: &str) -> Self {
        let script = Script::over_path(config, options, ms(10));
        Self { script, sent: 0 }
    }

    /// Sends so many segments at once, and waits. Returns the window that they were acknowledged
    /// with.
    fn round(&mut self, segments: u64, wait: Duration) -> u64 {
        for _ in 0..segments {
            let start = self.sent + 1;
            self.sent += 1000;
            self.script
                .inject(&format!("P. {start}:{}(1000) ack 1", start + 1000));
        }
        while self.script.next_turn().is_some() {}
        self.script.pass(wait);
        self.script.tcp.facts(self.script.now).receive_window
    }
}

#[test]
fn the_window_stays_ahead_of_slow_start_up_to_its_limit() {
    let mut peer = Peer::new(&growing(), "mss 1000,wscale 0");
    let rounds = [1, 2, 4, 8, 15, 29, 56, 90];
    let windows = rounds.map(|segments| peer.round(segments, ms(10)));
    for (window, next) in windows.iter().zip(&rounds[1..]) {
        assert!(*window > (next - 1) * 1000, "{windows:?}");
    }
    assert_eq!(windows[rounds.len() - 1], 100_000);
}

#[test]
fn a_steady_rate_is_given_four_times_what_the_path_holds() {
    let mut peer = Peer::new(&growing(), "mss 1000,wscale 0");
    for _ in 0..20 {
        peer.round(5, ms(10));
    }
    let window = peer.round(5, ms(10));
    assert!((19_900..=20_000).contains(&window), "{window}");
}

#[test]
fn a_queue_on_the_way_is_not_fed() {
    let mut peer = Peer::new(&growing(), "mss 1000,wscale 0");
    // The whole window in each round trip, which has become four times as long.
    for _ in 0..20 {
        assert_eq!(peer.round(10, ms(40)), 10_000);
    }
}

#[test]
fn a_pause_says_nothing_about_the_path() {
    let mut peer = Peer::new(&growing(), "mss 1000,wscale 0");
    peer.round(10, ms(10_000));
    assert_eq!(peer.round(1, ms(10)), 10_000);
}

#[test]
fn without_scaling_64_kib_are_all() {
    let mut peer = Peer::new(&growing(), "mss 1000");
    for _ in 0..20 {
        peer.round(10, ms(1));
    }
    assert_eq!(peer.round(10, ms(10)), 65_535);
    peer.script.tcp.set_buffered(20_000, 0);
    assert_eq!(peer.round(30, ms(10)), 45_535);
}
