//! TCP of a connection: its fields for programs, and a line in the words of `ss -ti` for people.

use std::fmt;
use std::time::Duration;

use rnic_core::tcp::TcpFacts;
use serde::{Deserialize, Serialize};

/// TCP's facts of a connection. Times are in milliseconds, sizes in octets, rates in octets a
/// second. `Display` writes them as `ss -ti` does: windows in segments, rates in Mbps, and what is
/// zero left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpResource {
    /// What steers the congestion window.
    pub congestion: String,
    /// Whether selective acknowledgements are in use.
    pub sack: bool,
    /// Whether window scaling is in use.
    pub wscale: bool,
    /// Whether timestamps are in use.
    pub ts: bool,
    /// Whether explicit congestion notification is in use.
    pub ecn: bool,
    /// The smoothed round-trip time, once measured.
    pub rtt: Option<f64>,
    /// Its variation.
    pub rttvar: Option<f64>,
    /// The least of the last minutes.
    pub minrtt: Option<f64>,
    /// How much later than its successors a segment may arrive before it is taken for lost.
    pub reordering_window: f64,
    /// The retransmission timeout, with its backoff.
    pub rto: f64,
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
    /// Octets sent for the first time.
    pub bytes_sent: u64,
    /// Octets that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Octets received in order.
    pub bytes_received: u64,
    /// Segments sent.
    pub segs_out: u64,
    /// Segments received.
    pub segs_in: u64,
    /// Segments sent again, from the beginning.
    pub retransmits: u64,
    /// Octets sent and not acknowledged.
    pub unacked: u64,
    /// Of those, thought to be in the network.
    pub in_flight: u64,
    /// Of those, selectively acknowledged.
    pub sacked: u64,
    /// Of those, thought lost and not sent again yet.
    pub lost: u64,
    /// Of those, sent again and not acknowledged yet.
    pub retransmitted: u64,
    /// How often segments were found to have arrived late and not lost.
    pub reord_seen: u64,
    /// Segments received ahead of order.
    pub rcv_ooopack: u64,
    /// What the peer's window has room for beyond.
    pub send_window: u64,
    /// What the peer may send before it hears of more.
    pub receive_window: u64,
    /// What new data is paced at, if it is.
    pub pacing_rate: Option<u64>,
    /// How fast octets reached the peer in the last round trip.
    pub delivery_rate: Option<u64>,
    /// Whether the application had too little to send in that round trip.
    pub application_limited: Option<bool>,
    /// The time since data was last sent.
    pub last_sent: Option<f64>,
    /// The time since anything was received.
    pub last_received: f64,
    /// The time to the next timer.
    pub timer: Option<f64>,
}

impl From<&TcpFacts> for TcpResource {
    fn from(tcp: &TcpFacts) -> Self {
        let millis = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let (rtt, rttvar) = tcp.rtt.unzip();
        let [sack, wscale, ts, ecn] = tcp.options;
        let counted = &tcp.counters;
        Self {
            congestion: tcp.congestion.clone().into_owned(),
            sack,
            wscale,
            ts,
            ecn,
            rtt: rtt.map(millis),
            rttvar: rttvar.map(millis),
            minrtt: tcp.min_rtt.map(millis),
            reordering_window: millis(tcp.reo_wnd),
            rto: millis(tcp.rto),
            backoff: tcp.backoff,
            mss: tcp.mss,
            path_mss: tcp.path_mss,
            cwnd: tcp.cwnd,
            ssthresh: tcp.ssthresh,
            bytes_sent: counted.octets_sent,
            bytes_acked: tcp.acked,
            bytes_received: tcp.received,
            segs_out: counted.segments_sent,
            segs_in: counted.segments_received,
            retransmits: counted.retransmits,
            unacked: tcp.unacked,
            in_flight: tcp.in_flight,
            sacked: tcp.sacked,
            lost: tcp.lost,
            retransmitted: tcp.retransmitted,
            reord_seen: counted.reordering_seen,
            rcv_ooopack: counted.out_of_order,
            send_window: tcp.send_window,
            receive_window: tcp.receive_window,
            pacing_rate: tcp.pacing_rate,
            delivery_rate: tcp.delivery_rate.map(|rate| rate.octets_per_second),
            application_limited: tcp.delivery_rate.map(|rate| rate.application_limited),
            last_sent: tcp.last_sent.map(millis),
            last_received: millis(tcp.last_received),
            timer: tcp.timer.map(millis),
        }
    }
}

impl TcpResource {
    fn segments(&self, octets: u64) -> u64 {
        octets.div_ceil(self.mss.max(1).into())
    }

    /// Returns what the congestion window lets through, in octets a second.
    fn send_rate(&self) -> Option<f64> {
        let rtt = self.rtt.filter(|rtt| *rtt > 0.0)?;
        Some(self.cwnd as f64 * 1e3 / rtt)
    }
}

impl fmt::Display for TcpResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.congestion)?;
        for (is_used, name) in [
            (self.sack, "sack"),
            (self.wscale, "wscale"),
            (self.ts, "ts"),
            (self.ecn, "ecn"),
        ] {
            if is_used {
                write!(f, " {name}")?;
            }
        }
        write!(f, " rto:{:.0}", self.rto)?;
        if self.backoff > 0 {
            write!(f, " backoff:{}", self.backoff)?;
        }
        if let Some(rtt) = self.rtt {
            write!(f, " rtt:{rtt:.3}/{:.3}", self.rttvar.unwrap_or_default())?;
        }
        if let Some(minrtt) = self.minrtt {
            write!(f, " minrtt:{minrtt:.3}")?;
        }
        let mss = u64::from(self.mss.max(1));
        write!(f, " mss:{} pmss:{}", self.mss, self.path_mss)?;
        write!(f, " cwnd:{}", self.cwnd / mss)?;
        if let Some(ssthresh) = self.ssthresh {
            write!(f, " ssthresh:{}", ssthresh / mss)?;
        }
        for (name, count) in [
            ("bytes_sent", self.bytes_sent),
            ("bytes_acked", self.bytes_acked),
            ("bytes_received", self.bytes_received),
            ("segs_out", self.segs_out),
            ("segs_in", self.segs_in),
        ] {
            write!(f, " {name}:{count}")?;
        }
        let mbps = |octets: f64| octets * 8.0 / 1e6;
        if let Some(rate) = self.send_rate() {
            write!(f, " send {:.1}Mbps", mbps(rate))?;
        }
        if let Some(rate) = self.pacing_rate {
            write!(f, " pacing_rate {:.1}Mbps", mbps(rate as f64))?;
        }
        if let Some(rate) = self.delivery_rate {
            write!(f, " delivery_rate {:.1}Mbps", mbps(rate as f64))?;
        }
        if self.application_limited == Some(true) {
            f.write_str(" app_limited")?;
        }
        if let Some(age) = self.last_sent {
            write!(f, " lastsnd:{age:.0}")?;
        }
        write!(f, " lastrcv:{:.0}", self.last_received)?;
        if let Some(timer) = self.timer {
            write!(f, " timer:{timer:.0}")?;
        }
        if self.retransmitted > 0 || self.retransmits > 0 {
            let now = self.segments(self.retransmitted);
            write!(f, " retrans:{now}/{}", self.retransmits)?;
        }
        for (name, count) in [
            ("unacked", self.segments(self.unacked)),
            ("lost", self.segments(self.lost)),
            ("sacked", self.segments(self.sacked)),
            ("reord_seen", self.reord_seen),
            ("rcv_ooopack", self.rcv_ooopack),
        ] {
            if count > 0 {
                write!(f, " {name}:{count}")?;
            }
        }
        let (snd, rcv) = (self.send_window, self.receive_window);
        write!(f, " snd_wnd:{snd} rcv_wnd:{rcv}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_words_and_units_of_ss() {
        let quiet = TcpResource {
            congestion: "cubic".into(),
            rto: 201.4,
            mss: 1448,
            path_mss: 1460,
            cwnd: 14_480,
            last_received: 3.2,
            ..TcpResource::default()
        };
        assert_eq!(
            quiet.to_string(),
            "cubic rto:201 mss:1448 pmss:1460 cwnd:10 bytes_sent:0 bytes_acked:0 bytes_received:0 segs_out:0 segs_in:0 \
             lastrcv:3 snd_wnd:0 rcv_wnd:0"
        );
        let busy = TcpResource {
            sack: true,
            ecn: true,
            rtt: Some(0.04),
            rttvar: Some(0.012_3),
            minrtt: Some(0.02),
            backoff: 1,
            ssthresh: Some(2896),
            retransmits: 4,
            retransmitted: 1449,
            unacked: 2896,
            sacked: 1,
            lost: 1448,
            pacing_rate: Some(125_000_000),
            delivery_rate: Some(12_500_000),
            application_limited: Some(true),
            last_sent: Some(0.4),
            timer: Some(7.6),
            send_window: 9,
            receive_window: 8,
            ..quiet
        };
        assert_eq!(
            busy.to_string(),
            "cubic sack ecn rto:201 backoff:1 rtt:0.040/0.012 minrtt:0.020 mss:1448 pmss:1460 cwnd:10 ssthresh:2 bytes_sent:0 \
             bytes_acked:0 bytes_received:0 segs_out:0 segs_in:0 send 2896.0Mbps pacing_rate 1000.0Mbps delivery_rate 100.0Mbps \
             app_limited lastsnd:0 lastrcv:3 timer:8 retrans:2/4 unacked:2 lost:1 sacked:1 snd_wnd:9 rcv_wnd:8"
        );
    }
}
