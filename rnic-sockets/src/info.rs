//! What the kernel tells of a connection (`TCP_INFO`), as facts for an administrator.

use std::borrow::Cow;
use std::time::Duration;

use rnic_core::counters::TcpCounters;
use rnic_core::tcp::{DeliveryRate, State, TcpFacts};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct tcp_info` of Linux, up to what Linux 6.2 has. A kernel that knows less writes less.
#[derive(Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct TcpInfo {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    window_scales: u8,
    flags: u8,
    /// In microseconds.
    rto: u32,
    ato: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    /// In milliseconds, and the next three.
    last_data_sent: u32,
    last_ack_sent: u32,
    last_data_recv: u32,
    last_ack_recv: u32,
    pmtu: u32,
    rcv_ssthresh: u32,
    /// In microseconds.
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
    dsack_dups: u32,
    reord_seen: u32,
    rcv_ooopack: u32,
    snd_wnd: u32,
    rcv_wnd: u32,
    rehash: u32,
}

/// What `options` has.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const SCALING: u8 = 4;
const ECN: u8 = 8;

/// The slow-start threshold before there was a loss.
const NO_SSTHRESH: u32 = 0x7fff_ffff;

/// The delivery rate was limited by the application. The member is the first of its bit field.
const APPLICATION_LIMITED: u8 = if cfg!(target_endian = "little") {
    1
} else {
    0x80
};

impl TcpInfo {
    /// Returns the state.
    pub(crate) fn state(&self) -> State {
        match self.state {
            1 => State::Established,
            2 => State::SynSent,
            // A connection of which an ACK is not there yet, in two forms.
            3 | 12 => State::SynReceived,
            4 => State::FinWait1,
            5 => State::FinWait2,
            6 => State::TimeWait,
            8 => State::CloseWait,
            9 => State::LastAck,
            11 => State::Closing,
            _ => State::Closed,
        }
    }

    /// Returns the facts of a connection with `outstanding` octets that are not acknowledged, sent
    /// or not. `ip_header` is the size of an IP header, `congestion` what steers the congestion
    /// window.
    pub(crate) fn facts(
        &self,
        outstanding: u64,
        ip_header: u32,
        congestion: Cow<'static, str>,
    ) -> TcpFacts {
        let octets = |segments: u32| u64::from(segments) * u64::from(self.snd_mss);
        let unacked = outstanding.saturating_sub(self.notsent_bytes.into());
        let gone = self.sacked.saturating_add(self.lost);
        let in_flight = self.unacked.saturating_sub(gone) + self.retrans;
        let has = |option| self.options & option != 0;
        TcpFacts {
            state: self.state(),
            rtt: (self.rtt != 0).then_some((micros(self.rtt), micros(self.rttvar))),
            min_rtt: (self.rtt != 0 && self.min_rtt != u32::MAX).then_some(micros(self.min_rtt)),
            reo_wnd: Duration::ZERO,
            rto: micros(self.rto),
            backoff: self.backoff,
            mss: saturated(self.snd_mss),
            path_mss: saturated(self.pmtu.saturating_sub(ip_header + 20)),
            cwnd: octets(self.snd_cwnd),
            ssthresh: (self.snd_ssthresh < NO_SSTHRESH).then_some(octets(self.snd_ssthresh)),
            congestion,
            pacing_rate: (!matches!(self.pacing_rate, 0 | u64::MAX)).then_some(self.pacing_rate),
            delivery_rate: self.rate(),
            unacked,
            in_flight: octets(in_flight),
            sacked: octets(self.sacked),
            lost: octets(self.lost),
            retransmitted: octets(self.retrans),
            send_window: u64::from(self.snd_wnd).saturating_sub(unacked),
            receive_window: self.rcv_wnd.into(),
            acked: self.bytes_acked,
            received: self.bytes_received,
            options: [has(SACK), has(SCALING), has(TIMESTAMPS), has(ECN)],
            timer: None,
            last_sent: (self.data_segs_out != 0).then_some(millis(self.last_data_sent)),
            last_received: millis(self.last_data_recv.min(self.last_ack_recv)),
            counters: self.counters(),
        }
    }

    fn rate(&self) -> Option<DeliveryRate> {
        (self.delivery_rate != 0).then_some(DeliveryRate {
            octets_per_second: self.delivery_rate,
            application_limited: self.flags & APPLICATION_LIMITED != 0,
        })
    }

    /// Returns what the kernel has counted. The rest is zero.
    fn counters(&self) -> TcpCounters {
        TcpCounters {
            segments_received: self.segs_in.into(),
            segments_sent: self.segs_out.into(),
            octets_received: self.bytes_received,
            octets_sent: self.bytes_sent.saturating_sub(self.bytes_retrans),
            retransmits: self.total_retrans.into(),
            reordering_seen: self.reord_seen.into(),
            dsacks_received: self.dsack_dups.into(),
            out_of_order: self.rcv_ooopack.into(),
            ..TcpCounters::default()
        }
    }
}

fn micros(micros: u32) -> Duration {
    Duration::from_micros(micros.into())
}

fn millis(millis: u32) -> Duration {
    Duration::from_millis(millis.into())
}

fn saturated(octets: u32) -> u16 {
    u16::try_from(octets).unwrap_or(u16::MAX)
}
