//! A connection as an administrator sees it: what `ss -ti` shows of the kernel's.

use core::time::Duration;
use std::borrow::Cow;

use super::{DeliveryRate, State, Tcp};
use crate::counters::TcpCounters;
use crate::time::Instant;

/// One connection at one moment. Sizes are octets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpFacts {
    /// The state.
    pub state: State,
    /// The smoothed round-trip time and its variation, once measured.
    pub rtt: Option<(Duration, Duration)>,
    /// The least round-trip time of the last minutes.
    pub min_rtt: Option<Duration>,
    /// How much later than its successors a segment may arrive before it is taken for lost (RFC
    /// 8985).
    pub reo_wnd: Duration,
    /// The retransmission timeout, with its backoff.
    pub rto: Duration,
    /// Retransmission timeouts since the peer last answered.
    pub backoff: u8,
    /// Payload of a full segment.
    pub mss: u16,
    /// The largest segment that the path is thought to take, without options.
    pub path_mss: u16,
    /// The congestion window.
    pub cwnd: u64,
    /// The slow-start threshold, once there was a loss.
    pub ssthresh: Option<u64>,
    /// What steers that window, by its name in Linux: a kernel's TCP may have others than ours.
    pub congestion: Cow<'static, str>,
    /// What new data is paced at, in octets a second, if it is.
    pub pacing_rate: Option<u64>,
    /// How fast octets reached the peer in the last round trip, once one has ended.
    pub delivery_rate: Option<DeliveryRate>,
    /// Sent and not acknowledged.
    pub unacked: u64,
    /// Of those, thought to be in the network.
    pub in_flight: u64,
    /// Of those, selectively acknowledged.
    pub sacked: u64,
    /// Of those, thought lost and not sent again yet.
    pub lost: u64,
    /// Of those, sent again and not acknowledged yet.
    pub retransmitted: u64,
    /// What the peer's window has room for beyond.
    pub send_window: u64,
    /// What the peer may send before it hears of more.
    pub receive_window: u64,
    /// Octets of our stream that the peer has acknowledged.
    pub acked: u64,
    /// Octets of the peer's stream that were taken in order.
    pub received: u64,
    /// Whether SACK, window scaling, timestamps and ECN are in use.
    pub options: [bool; 4],
    /// The time to the next timer.
    pub timer: Option<Duration>,
    /// The time since data was last sent, if ever, and since the peer was last heard.
    pub last_sent: Option<Duration>,
    /// The time since anything was received.
    pub last_received: Duration,
    /// What was counted from the beginning.
    pub counters: TcpCounters,
}

impl Tcp {
    /// Returns the smoothed round-trip time, once it has been measured.
    pub fn srtt(&self) -> Option<Duration> {
        self.rtt.srtt().map(Duration::from)
    }

    /// Returns how much the round-trip time varies (RTTVAR).
    pub fn rttvar(&self) -> Duration {
        self.rtt.rttvar().into()
    }

    /// Returns the least round-trip time of the last minutes, once it has been measured.
    pub fn min_rtt(&self) -> Option<Duration> {
        self.rtt.min_rtt().map(Duration::from)
    }

    /// Returns how much later than its successors a segment may arrive before it counts as lost.
    pub fn reo_wnd(&self) -> Duration {
        self.recovery.reo_wnd(&self.send, &self.rtt).into()
    }

    /// Returns the congestion window and the slow-start threshold, in octets.
    pub fn cwnd(&self) -> (u64, u64) {
        let congestion = self.recovery.congestion();
        (congestion.cwnd(), congestion.ssthresh())
    }

    /// Returns the rate at which new data is sent, in octets per second, where the path is long
    /// enough to be paced.
    pub fn pacing_rate(&self) -> Option<u64> {
        self.pacer.rate()
    }

    /// Returns how fast octets reached the peer in the last round trip.
    pub fn delivery_rate(&self) -> Option<DeliveryRate> {
        self.recovery.rounds().last_rate()
    }

    /// Returns whether both ends use explicit congestion notification (RFC 3168).
    pub fn uses_ecn(&self) -> bool {
        self.ecn.is_used()
    }

    /// Returns what an administrator may want to know.
    pub fn facts(&self, now: Instant) -> TcpFacts {
        let flight = self.send.flight_facts();
        let (cwnd, ssthresh) = self.cwnd();
        TcpFacts {
            state: self.state,
            rtt: self.srtt().map(|rtt| (rtt, self.rttvar())),
            min_rtt: self.min_rtt(),
            reo_wnd: self.reo_wnd(),
            rto: self.rtt.rto().into(),
            backoff: self.retries,
            mss: self.options.max_payload(),
            path_mss: self.options.mss,
            cwnd,
            ssthresh: (ssthresh < u64::MAX).then_some(ssthresh),
            congestion: self.recovery.congestion().algorithm().name().into(),
            pacing_rate: self.pacing_rate(),
            delivery_rate: self.delivery_rate(),
            unacked: self.send.flight(),
            in_flight: self.recovery.pipe(&self.send),
            sacked: flight.sacked,
            lost: flight.lost,
            retransmitted: flight.retransmitted,
            send_window: self.send.window_room(),
            receive_window: self.recv.edge() - self.recv.nxt(),
            acked: self.send.acked(),
            received: self.recv.data_nxt(),
            options: [
                self.options.sack,
                self.options.scaling,
                self.options.stamp(now).is_some(),
                self.uses_ecn(),
            ],
            timer: self.next_timeout().map(|at| at.since(now)),
            last_sent: self.sent_at.map(|at| now.since(at)),
            last_received: now.since(self.liveness.last_received_at),
            counters: self.counters,
        }
    }
}
