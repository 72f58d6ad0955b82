//! Counters: one plain struct per layer, owned by one worker, read by copying.

mod drops;

pub use drops::{DropCounters, DropReason};

/// Declares a struct of `u64` counters that can be added up and listed by name.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: u64,)* }

        impl $name {
            /// Returns every counter with its name, in declaration order.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }

            /// Adds another set to this one.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)*
            }
        }
    };
}

counters! {
    /// Frames as the engine sees them.
    EngineCounters {
        /// Frames handed to the engine.
        frames_received,
        /// Frames handed to the device.
        frames_sent,
        /// Frames that came here and belong to a connection of another engine of this device, which
        /// got a copy.
        handed_over,
        /// Frames of connections of this engine that came to another.
        taken_over,
        /// SYNs answered with a cookie, because too many connections were half open.
        syn_cookies_sent,
        /// Connections that came to be by such a cookie.
        syn_cookies_received,
        /// Frames opened that were protected by ESP.
        frames_opened,
        /// Frames sealed by ESP.
        frames_sealed,
        /// Frames that a policy protects, and that were not sent because there was no association
        /// or no sequence number for them. TCP sends them again.
        frames_unsealed,
        /// Timers of connections that went off.
        timers_expired,
        /// Times a connection could not go on sending because the device had no room or no frame
        /// was free.
        no_transmit_frame,
    }
}

counters! {
    /// TCP, summed over connections.
    TcpCounters {
        /// Segments received.
        segments_received,
        /// Segments sent, retransmissions included.
        segments_sent,
        /// Payload octets accepted.
        octets_received,
        /// Payload octets sent for the first time.
        octets_sent,
        /// Segments sent again.
        retransmits,
        /// Retransmission timeouts.
        timeouts,
        /// Fast retransmits begun.
        fast_retransmits,
        /// Tail loss probes sent.
        tail_probes,
        /// Segments found lost by RACK.
        rack_losses,
        /// Recoveries that were spurious, and were undone.
        spurious_recoveries,
        /// ACKs that showed reordering of our segments.
        reordering_seen,
        /// Reports of the peer that it received octets twice (DSACK).
        dsacks_received,
        /// Reports to the peer that octets were received twice (DSACK).
        dsacks_sent,
        /// Segments received that a congested router had marked (ECN).
        congestion_marks,
        /// Reductions of the congestion window upon ECE (ECN).
        congestion_echoes,
        /// Segments that arrived beyond the next expected octet.
        out_of_order,
        /// Segments with nothing new.
        duplicates,
        /// Zero-window probes sent.
        window_probes,
        /// Reductions of the segment size to a smaller path MTU.
        mtu_reductions,
        /// Keepalive probes sent.
        keepalives,
        /// RST segments received and accepted.
        resets_received,
        /// RST segments sent.
        resets_sent,
        /// Segments whose octets moved to ordinary memory, because the peer was silent and others
        /// needed the frames.
        segments_spilled,
    }
}

counters! {
    /// MPA, DDP and RDMAP, summed over connections.
    RdmaCounters {
        /// Connections reset because their first octets were no MPA Request of a supported
        /// revision.
        requests_refused,
        /// FPDUs received with a good CRC (or with CRC off).
        fpdus_received,
        /// FPDUs sent.
        fpdus_sent,
        /// FPDUs with a bad CRC.
        crc_errors,
        /// Octets placed into registered memory.
        octets_placed,
        /// Octets of those that were placed before an earlier octet of the stream had arrived, as
        /// markers allow.
        octets_placed_early,
        /// Octets copied to memory of the engine's own: parts of FPDUs that crossed segments, and
        /// all that came out of order.
        octets_buffered,
        /// Terminate messages sent.
        terminates_sent,
        /// Terminate messages received.
        terminates_received,
        /// Times a stream was parked: a message found no receive, on a connection with the
        /// semantics of RC.
        streams_parked,
        /// Streams that are parked now. The engine goes by this number, and by the next one.
        streams_parked_now,
        /// Octets of memory that parked messages take now.
        octets_parked_now,
        /// The most that they took at a time.
        octets_parked_most,
        /// Messages of peers that said that they have no receive.
        xoffs_received,
    }
}

/// Every counter of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames.
    pub engine: EngineCounters,
    /// Frames that were dropped, by the reason.
    pub drops: DropCounters,
    /// TCP, summed over connections that are gone; a [`Snapshot`](crate::engine::Snapshot) adds
    /// those that are there.
    pub tcp: TcpCounters,
    /// MPA, DDP and RDMAP, summed over connections.
    pub rdma: RdmaCounters,
}
