//! The settings of a connection.

use core::time::Duration;

use crate::fast_paths::FastPaths;

use super::{CongestionAlgorithm, EcnMode};

/// Settings of a connection. `Default` suits a path of Ethernet's MTU.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// The largest segment to receive, and to send if the peer takes it: the path's MTU less the IP
    /// header less 20 octets of TCP header. TCP options reduce the payload further (RFC 6691).
    pub mss: u16,
    /// Octets of receive window to offer at first.
    pub receive_window: u32,
    /// The most octets of it, where the path holds so many: not used if less than `receive_window`.
    pub receive_window_limit: u32,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Added to the millisecond clock in timestamps: unpredictable to others, and the same for all
    /// connections between two hosts (RFC 7323 section 5.4).
    pub timestamp_offset: u32,
    /// Offer selective acknowledgments (RFC 2018).
    pub sack: bool,
    /// How the congestion window grows and shrinks.
    pub congestion: CongestionAlgorithm,
    /// Whether ECN is used (RFC 3168).
    pub ecn: EcnMode,
    /// Retransmission timeout before there is a sample of the round-trip time.
    pub initial_rto: Duration,
    /// The least difference between the retransmission timeout and the round-trip time.
    pub min_rto: Duration,
    /// The longest retransmission timeout, and the longest interval between zero-window probes.
    pub max_rto: Duration,
    /// How long an ACK may wait for a second segment or for data to travel with.
    pub delayed_ack: Duration,
    /// Retransmissions of a SYN before the connection fails.
    pub syn_retries: u8,
    /// Retransmissions of the same octets, or zero-window probes without any answer, before the
    /// connection fails.
    pub max_retries: u8,
    /// Keepalive, if it is on.
    pub keepalive: Option<Keepalive>,
    /// How long data may stay unacknowledged before the connection fails. It replaces `max_retries`
    /// and the number of keepalive probes.
    pub user_timeout: Option<Duration>,
    /// How long a peer that has acknowledged our FIN may be silent without sending its own.
    pub fin_wait: Duration,
    /// How long a connection that closed first stays to answer late segments: twice the segment
    /// lifetime.
    pub time_wait: Duration,
    /// The fast paths to take.
    pub fast_paths: FastPaths,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            mss: 1460,
            // rfc: 5041-s19 the window lets many segments be in flight
            receive_window: 512 * 1024,
            // What scaling by 256 can express.
            receive_window_limit: 0xffff << 8,
            timestamps: true,
            timestamp_offset: 0,
            sack: true,
            congestion: CongestionAlgorithm::Cubic,
            ecn: EcnMode::Accept,
            initial_rto: Duration::from_secs(1),
            min_rto: Duration::from_millis(200),
            max_rto: Duration::from_secs(60),
            delayed_ack: Duration::from_millis(40),
            syn_retries: 7,
            max_retries: 10,
            keepalive: None,
            user_timeout: None,
            fin_wait: Duration::from_secs(60),
            time_wait: Duration::from_secs(60),
            fast_paths: FastPaths::ALL,
        }
    }
}

/// When to probe a silent peer. `Default` has the values of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// The silence after which the first probe is sent.
    pub idle: Duration,
    /// The time between probes.
    pub interval: Duration,
    /// Probes without an answer after which the connection fails.
    pub count: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(2 * 3600),
            interval: Duration::from_secs(75),
            count: 9,
        }
    }
}
