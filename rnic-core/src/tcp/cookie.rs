//! SYN cookies (RFC 4987 section 3.6): a SYN is answered and forgotten, and the connection comes to
//! life with the ACK.
//!
//! The cookie is our initial sequence number, and the caller's business: it tells the peer's
//! segment size and that the SYN was real. The window scale and SACK do not fit in. They travel in
//! the lowest bits of our timestamp, which the peer echoes; a peer without timestamps goes without
//! them.

use super::seq::Seq;
use super::{Tcp, TcpConfig};
use crate::time::Instant;
use crate::wire::tcp::{Flags, MAX_WINDOW_SCALE, TcpHeader, TcpOptions, TcpSegment};

/// The bits of a timestamp that tell options: a window scale, or 15 for none, and whether SACK is
/// permitted.
const OPTION_BITS: u32 = 0x1f;
const SCALE_BITS: u32 = 0x0f;
const SACK_BIT: u32 = 0x10;

impl Tcp {
    /// Returns the SYN-ACK for a SYN of which nothing is kept but the cookie.
    pub fn cookie_syn_ack(
        now: Instant,
        config: &TcpConfig,
        cookie: Seq,
        syn: &TcpSegment<'_>,
    ) -> TcpHeader {
        let mut syn = *syn;
        syn.header.flags = Flags::SYN;
        let options = &mut syn.header.options;
        if !config.timestamps || options.timestamps.is_none() {
            let mss = options.mss;
            *options = TcpOptions {
                mss,
                ..TcpOptions::default()
            };
        }
        let mut header = Self::accept(now, config, cookie, &syn).syn(now).header;
        if let Some(stamps) = &mut header.options.timestamps {
            stamps.value = mark(stamps.value, &syn.header.options);
        }
        header
    }

    /// Opens the connection whose cookie has come back with `ack`; `mss` is the segment size that
    /// the cookie holds. The segment is to be [received](Self::receive) next.
    pub fn accept_cookie(
        now: Instant,
        config: &TcpConfig,
        cookie: Seq,
        mss: u16,
        ack: &TcpSegment<'_>,
    ) -> Self {
        let stamps = ack.header.options.timestamps.filter(|_| config.timestamps);
        let options = match stamps {
            Some(stamps) => TcpOptions {
                timestamps: Some(stamps),
                ..marked(stamps.echo)
            },
            None => TcpOptions::default(),
        };
        let syn = TcpHeader {
            seq: Seq(ack.header.seq.0.wrapping_sub(1)),
            flags: Flags::SYN,
            options: TcpOptions {
                mss: Some(mss),
                ..options
            },
            ..ack.header
        };
        let syn = TcpSegment {
            header: syn,
            payload: &[],
        };
        let mut tcp = Self::accept(now, config, cookie, &syn);
        tcp.syn(now);
        // When it was sent is not known, and the echoed timestamp is not exact either.
        tcp.syn_sent_at = None;
        tcp
    }
}

/// Returns a timestamp that encodes options. It is not later than the clock: later timestamps must
/// not seem older.
fn mark(clock: u32, options: &TcpOptions) -> u32 {
    let scale = options.window_scale.map_or(SCALE_BITS, u32::from);
    let sack = if options.sack_permitted { SACK_BIT } else { 0 };
    let marked = clock & !OPTION_BITS | scale | sack;
    if marked > clock {
        marked.wrapping_sub(OPTION_BITS + 1)
    } else {
        marked
    }
}

/// Returns the options that a timestamp encodes.
fn marked(stamp: u32) -> TcpOptions {
    let scale = (stamp & SCALE_BITS) as u8;
    TcpOptions {
        window_scale: (scale <= MAX_WINDOW_SCALE).then_some(scale),
        sack_permitted: stamp & SACK_BIT != 0,
        ..TcpOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_timestamp_tells_the_options_and_is_never_late(
            clock: u32, scale in proptest::option::of(0..=14_u8), sack_permitted: bool,
        ) {
            let options = TcpOptions { window_scale: scale, sack_permitted, ..TcpOptions::default() };
            let stamp = mark(clock, &options);
            prop_assert_eq!(marked(stamp), options);
            prop_assert!(clock.wrapping_sub(stamp) <= OPTION_BITS);
        }
    }
}
