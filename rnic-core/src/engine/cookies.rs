//! The sequence numbers of SYN cookies (RFC 4987 section 3.6).

use std::hash::BuildHasher;
use std::time::Duration;

use crate::connection::FlowKey;
use crate::tcp::Seq;
use crate::time::Instant;
use crate::wire::tcp::TcpHeader;

use super::flows::Keyed;

/// A cookie is good for the rest of the period in which it was made, and for the next one.
const PERIOD: Duration = Duration::from_secs(64);

/// The segment sizes that a cookie can hold; a peer's is rounded down to one of them. They are
/// Ethernet's, also with tunnels in between and with jumbo frames; the first is the least that a
/// peer is believed (RFC 9293 section 3.7.1).
const SEGMENT_SIZES: [u16; 8] = [48, 536, 1220, 1300, 1440, 1460, 8940, 8960];
/// The segment size of a peer that states none (RFC 9293 section 3.7.1).
const DEFAULT_SIZE: u16 = 536;

/// Makes and checks cookies. A cookie has five bits of the period, three of the segment size, and
/// 24 of a keyed hash, which nobody can guess without the secret.
pub(super) struct Cookies {
    secret: Keyed,
    /// Until then a cookie may come back. Later none is accepted, so that nobody can guess one.
    expected_until: Instant,
}

impl Cookies {
    pub(super) fn new(secret: Keyed) -> Self {
        Self {
            secret,
            expected_until: Instant::ZERO,
        }
    }

    /// Returns the cookie for a SYN.
    pub(super) fn make(&mut self, now: Instant, key: &FlowKey, syn: &TcpHeader) -> Seq {
        self.expected_until = now + 2 * PERIOD;
        let size = syn.options.mss.unwrap_or(DEFAULT_SIZE);
        let index = SEGMENT_SIZES.iter().rposition(|known| *known <= size);
        self.cookie(period(now), key, syn.seq, index.unwrap_or(0))
    }

    /// Returns the cookie that a segment acknowledges, and the peer's segment size.
    pub(super) fn check(&self, now: Instant, key: &FlowKey, ack: &TcpHeader) -> Option<(Seq, u16)> {
        if now >= self.expected_until {
            return None;
        }
        let before = |seq: Seq| Seq(seq.0.wrapping_sub(1));
        let (cookie, syn) = (before(ack.ack), before(ack.seq));
        let index = (cookie.0 >> 24 & 7) as usize;
        let current = period(now);
        [current, current.wrapping_sub(1)]
            .into_iter()
            .any(|period| self.cookie(period, key, syn, index) == cookie)
            .then(|| (cookie, SEGMENT_SIZES[index]))
    }

    fn cookie(&self, period: u64, key: &FlowKey, syn: Seq, index: usize) -> Seq {
        let hash = self.secret.hash_one((period, key, syn, index)) as u32 & 0x00ff_ffff;
        Seq((period as u32) << 27 | (index as u32) << 24 | hash)
    }
}

fn period(now: Instant) -> u64 {
    now.as_millis() / PERIOD.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tcp::TcpOptions;

    const LATER: Instant = Instant::from_nanos(1_000_000_000_000);

    fn key() -> FlowKey {
        FlowKey {
            local: "192.0.2.1:4420".parse().unwrap(),
            remote: "192.0.2.2:50000".parse().unwrap(),
        }
    }

    fn syn(mss: Option<u16>) -> TcpHeader {
        TcpHeader {
            seq: Seq(u32::MAX),
            options: TcpOptions {
                mss,
                ..TcpOptions::default()
            },
            ..TcpHeader::default()
        }
    }

    fn ack(cookie: Seq) -> TcpHeader {
        TcpHeader {
            seq: Seq(0),
            ack: cookie + 1,
            ..TcpHeader::default()
        }
    }

    #[test]
    fn a_cookie_tells_the_segment_size_rounded_down() {
        let mut cookies = Cookies::new(Keyed::new(&[7; 16]));
        let sizes = [
            (Some(1), 48),
            (Some(535), 48),
            (None, 536),
            (Some(1459), 1440),
            (Some(1460), 1460),
            (Some(8961), 8960),
        ];
        for (mss, size) in sizes {
            let cookie = cookies.make(LATER, &key(), &syn(mss));
            let found = cookies.check(LATER, &key(), &ack(cookie));
            assert_eq!(found, Some((cookie, size)));
        }
    }

    #[test]
    fn a_cookie_is_good_for_its_flow_and_its_time_only() {
        let mut cookies = Cookies::new(Keyed::new(&[7; 16]));
        let cookie = cookies.make(LATER, &key(), &syn(Some(1460)));
        let good = ack(cookie);
        let finds = |cookies: &Cookies, now, key: &FlowKey, ack: &TcpHeader| {
            cookies.check(now, key, ack).is_some()
        };
        assert!(finds(&cookies, LATER + PERIOD, &key(), &good));
        let mut other = key();
        other.remote.set_port(50_001);
        assert!(!finds(&cookies, LATER, &other, &good));
        assert!(!finds(&cookies, LATER, &key(), &ack(cookie + 1)));
        assert!(!finds(&cookies, LATER, &key(), &ack(cookie + (1 << 24))));
        let elsewhere = TcpHeader {
            seq: Seq(1),
            ..good
        };
        assert!(!finds(&cookies, LATER, &key(), &elsewhere));
        let others = Cookies {
            expected_until: LATER + PERIOD,
            ..Cookies::new(Keyed::new(&[8; 16]))
        };
        assert!(!finds(&others, LATER, &key(), &good), "another secret");
        // An old cookie is not accepted while new ones are made, not even when the five bits of the
        // period wrap.
        for periods in [2, 32] {
            let now = LATER + PERIOD * periods;
            cookies.make(now, &other, &syn(None));
            assert!(!finds(&cookies, now, &key(), &good));
        }
    }

    #[test]
    fn nobody_looks_for_a_cookie_where_none_was_made() {
        let mut cookies = Cookies::new(Keyed::new(&[7; 16]));
        let cookie = cookies.make(LATER, &key(), &syn(None));
        cookies.expected_until = LATER;
        assert_eq!(cookies.check(LATER, &key(), &ack(cookie)), None);
    }
}
