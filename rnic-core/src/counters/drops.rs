//! Why received frames are dropped: a name and a sentence for each reason, and a counter for each.

/// Declares the reasons, each with its public name and what it says of a frame.
macro_rules! drop_reasons {
    ($($reason:ident $name:ident $text:literal)*) => {
        /// Why a received frame was dropped (cf. the kernel's `SKB_DROP_REASON_*`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DropReason { $(#[doc = $text] $reason,)* }

        impl DropReason {
            /// Every reason, in the order in which a frame meets them.
            pub const ALL: &[Self] = &[$(Self::$reason,)*];

            /// Returns the name of its counter.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$reason => stringify!($name),)* }
            }

            /// Returns whether the frame was a segment of a connection of this engine: TCP has
            /// counted it as received.
            pub const fn is_of_connection(self) -> bool {
                self as usize >= Self::TcpClosed as usize
            }

            /// Returns what it says of a frame.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$reason => $text,)* }
            }
        }
    };
}

drop_reasons! {
    Truncated truncated "The frame is shorter than its headers say."
    Malformed malformed "A field of its headers contradicts the format."
    NotIp not_ip "Neither IPv4 nor IPv6."
    NotTcp not_tcp "Another protocol than TCP, or TCP behind IPv6 extension headers."
    Fragment fragment "A fragment of an IP datagram: lower the sender's MTU."
    NotUnicast not_unicast "Sent to a group, or from an address that no host can have."
    IpChecksum ip_checksum "The checksum of the IPv4 header is wrong."
    TcpChecksum tcp_checksum "The TCP checksum is wrong."
    Unprotected unprotected "Not protected by ESP, or not to be received at all, where an IPsec policy says so."
    EspUnknown esp_unknown "ESP of an association that is not there: of no such SPI, or from another peer."
    EspReplayed esp_replayed "ESP with a sequence number that was received before, or is older than the replay window."
    EspForged esp_forged "ESP with a wrong ICV: another key, or changed on its way."
    EspMalformed esp_malformed "ESP with a wrong length or padding, or with no whole TCP segment in it."
    EspOutside esp_outside "ESP of an association that is not for what was in it."
    HandOverFull hand_over_full "For a connection of another worker, which had too many such frames waiting."
    Moving moving "Its connection was moving from one worker to another."
    NoConnection no_connection "For no connection and no listener. Answered with RST."
    PeerNotAllowed peer_not_allowed "A SYN from a peer that may not connect to the listener. Answered with RST."
    TooManyConnections too_many_connections "A SYN beyond the number of connections that the device may have. Answered with RST."
    ListenOverflow listen_overflow "A SYN to a listener with too many requests waiting. The peer tries again."
    StartupOverflow startup_overflow "A SYN while too many connections were in MPA start-up. The peer tries again."
    TcpClosed tcp_closed "For a connection that is over."
    TcpNoSyn tcp_no_syn "Neither SYN nor RST, where the peer's SYN is waited for."
    TcpNoAck tcp_no_ack "A segment without the ACK flag."
    TcpInvalidSyn tcp_invalid_syn "A SYN inside a connection (RFC 5961 section 4)."
    TcpInvalidReset tcp_invalid_reset "A RST that has not the very next sequence number (RFC 5961 section 3)."
    TcpPaws tcp_paws "An older timestamp than one received before (RFC 7323 section 5)."
    TcpOldData tcp_old_data "Nothing but octets that were received before."
    TcpOutOfWindow tcp_out_of_window "Nothing inside the receive window."
    TcpInvalidAck tcp_invalid_ack "An acknowledgment of what was never sent."
    TcpOldAck tcp_old_ack "A much older acknowledgment than one received before (RFC 5961 section 5)."
    TcpOutOfOrderFull tcp_out_of_order_full "One more gap in the peer's stream than are kept track of."
    StartupOutOfOrder startup_out_of_order "Far ahead of order before MPA start-up was over."
}

const REASONS: usize = DropReason::ALL.len();

/// Received frames that were dropped, by the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropCounters([u64; REASONS]);

impl Default for DropCounters {
    fn default() -> Self {
        Self([0; REASONS])
    }
}

impl DropCounters {
    /// Counts a frame.
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// Returns the number of frames dropped for a reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Returns the number of frames dropped, for whatever reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns every counter with its reason.
    pub fn entries(&self) -> impl Iterator<Item = (DropReason, u64)> + use<> {
        DropReason::ALL.iter().copied().zip(self.0)
    }

    /// Adds another set to this one.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = sum.wrapping_add(more);
        }
    }
}
