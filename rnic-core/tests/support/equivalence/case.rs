//! What happens in a case.

use std::time::Duration;

use rnic_core::connection::ConnectionOptions;
use rnic_core::engine::EngineConfig;
use rnic_core::tcp::{CongestionAlgorithm, EcnMode};

use super::choices::Choices;
use super::twist::Twist;

/// Acts in a case at most.
const MAX_ACTS: usize = 160;

/// How a device tells of received frames' checksums.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    Verify,
    Summed,
    Vouched,
    /// One after the other.
    Mixed,
}

/// What differs between cases from the beginning.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) mtu: u16,
    pub(crate) crc: bool,
    pub(crate) markers: [bool; 2],
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) ecn: EcnMode,
    pub(crate) congestion: CongestionAlgorithm,
    pub(crate) window: u32,
    /// The window does not grow.
    pub(crate) fixed: bool,
    pub(crate) told: [Told; 2],
    pub(crate) completes_checksums: [bool; 2],
    pub(crate) frames: [usize; 2],
    pub(crate) signal_all: bool,
    pub(crate) cq: u32,
    pub(crate) shared_receives: [bool; 2],
    pub(crate) connections: usize,
    pub(crate) peer_to_peer: bool,
    /// Frames arrive with a VLAN tag.
    pub(crate) tagged: bool,
    /// Frames arrive with checksums that were only begun.
    pub(crate) unfinished: bool,
    /// Connections have the semantics of RC.
    pub(crate) rc: bool,
}

impl Terms {
    fn read(from: &mut Choices<'_>) -> Self {
        let told = [
            Told::Verify,
            Told::Verify,
            Told::Summed,
            Told::Vouched,
            Told::Mixed,
        ];
        let plain = !from.once_in(4);
        Self {
            mtu: from.of(&[1500, 1500, 9000, 600]),
            crc: !from.once_in(6),
            markers: if plain {
                [false; 2]
            } else {
                [from.once_in(2), from.once_in(2)]
            },
            timestamps: !from.once_in(4),
            sack: !from.once_in(5),
            ecn: from.of(&[EcnMode::Accept, EcnMode::Accept, EcnMode::Ask]),
            congestion: from.of(&[CongestionAlgorithm::Cubic, CongestionAlgorithm::NewReno]),
            window: from.of(&[512 << 10, 512 << 10, 64 << 10, 20_000, 3000]),
            fixed: from.once_in(2),
            told: [from.of(&told), from.of(&told)],
            completes_checksums: [from.once_in(5), from.once_in(5)],
            frames: [from.of(&[256, 256, 64, 36]), from.of(&[256, 256, 64, 36])],
            signal_all: from.once_in(2),
            cq: from.of(&[256, 256, 256, 256, 256, 256, 8, 2]),
            shared_receives: [from.once_in(6), from.once_in(6)],
            connections: from.of(&[1, 1, 2, 3]),
            peer_to_peer: from.once_in(6),
            tagged: from.once_in(8),
            unfinished: from.once_in(10),
            rc: from.once_in(4),
        }
    }

    pub(crate) fn config(&self) -> EngineConfig {
        let mut config = EngineConfig {
            mtu: self.mtu,
            partial_checksums: self.unfinished,
            ..EngineConfig::default()
        };
        config.tcp.timestamps = self.timestamps;
        config.tcp.sack = self.sack;
        config.tcp.ecn = self.ecn;
        config.tcp.congestion = self.congestion;
        config.tcp.receive_window = self.window;
        config.tcp.receive_window_limit = if self.fixed {
            self.window
        } else {
            self.window.max(256 << 10)
        };
        config
    }

    pub(crate) fn options(&self, side: usize) -> ConnectionOptions {
        ConnectionOptions {
            crc: self.crc,
            markers: self.markers[side],
            ird: 4,
            ord: 4,
            peer_to_peer: self.peer_to_peer,
            rc: self.rc,
            ..ConnectionOptions::default()
        }
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Write,
    Send,
    Read,
    SendInvalidate,
    WriteImmediate,
    Immediate,
    FetchAdd,
    CmpSwap,
    LocalInvalidate,
    BindWindow,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) inline: bool,
    pub(crate) len: usize,
    /// Which of the local regions, and of the peer's.
    pub(crate) local: usize,
    pub(crate) remote: usize,
    pub(crate) offset: u64,
    pub(crate) flags: u8,
    /// From two places of memory.
    pub(crate) gathered: bool,
}

impl Request {
    /// One of those that fast paths are for.
    fn short(from: &mut Choices<'_>) -> Self {
        Self {
            operation: from.of(&[Operation::Send, Operation::Write]),
            inline: true,
            len: from.below(65),
            local: 0,
            remote: if from.once_in(60) {
                1 + from.below(3)
            } else {
                0
            },
            offset: u64::from(from.octet()) * 8,
            flags: 1,
            gathered: false,
        }
    }

    fn long(from: &mut Choices<'_>) -> Self {
        let operation = from.of(&[
            Operation::Write,
            Operation::Write,
            Operation::Read,
            Operation::Send,
        ]);
        let most = if matches!(operation, Operation::Send) {
            12_000
        } else {
            57_000
        };
        Self {
            operation,
            inline: false,
            len: usize::from(from.word()) % most,
            ..Self::short(from)
        }
    }

    fn any(from: &mut Choices<'_>) -> Self {
        use Operation::*;
        let invalidates = from.once_in(4);
        let operation = from.of(&[
            Write,
            Write,
            Write,
            Send,
            Send,
            Send,
            Read,
            Read,
            WriteImmediate,
            Immediate,
            FetchAdd,
            CmpSwap,
            BindWindow,
            if invalidates { SendInvalidate } else { Send },
            if invalidates { LocalInvalidate } else { Read },
        ]);
        let inline = !matches!(operation, Read | FetchAdd | CmpSwap) && !from.once_in(3);
        let long = from.once_in(3);
        Self {
            operation,
            inline,
            len: match inline {
                true => from.below(65),
                false if long => usize::from(from.word()) % 20_000,
                false => usize::from(from.word()) % 600,
            },
            local: if from.once_in(60) { from.below(6) } else { 0 },
            remote: if from.once_in(40) { from.below(6) } else { 0 },
            offset: if from.once_in(120) {
                u64::MAX - 60
            } else {
                u64::from(from.octet()) * 8
            },
            flags: from.of(&[1, 1, 1, 0, 0, 2, 3, 5, 4]),
            gathered: from.once_in(4),
        }
    }
}

/// What happens to frames under way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mishap {
    Lose,
    Twice,
    Swap,
    /// All that are under way.
    LoseAll,
    Reverse,
}

/// One step of a case. `to` and `host` are hosts.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// The same request this often.
    Post {
        host: usize,
        connection: usize,
        request: Request,
        times: usize,
    },
    Receive {
        host: usize,
        connection: usize,
        len: usize,
        times: usize,
    },
    Poll {
        host: usize,
        connection: usize,
        most: usize,
    },
    /// So many frames arrive in one batch.
    Deliver {
        to: usize,
        most: usize,
    },
    /// Batches arrive until none is under way, in turns, this long one after the other.
    Exchange {
        rounds: usize,
        batch: usize,
        apart: Duration,
    },
    /// One posts, and the other when it has come.
    PingPong {
        connection: usize,
        rounds: usize,
        requests: [Request; 2],
        apart: Duration,
    },
    Wait(Duration),
    /// Until the next timer.
    Alarm,
    /// Something happens to a frame under way, or will to the one that is sent so many frames
    /// later.
    Mishap {
        to: usize,
        at: usize,
        mishap: Mishap,
    },
    Twist {
        to: usize,
        at: usize,
        twist: Twist,
    },
    Arm {
        to: usize,
        ahead: usize,
        twist: Twist,
    },
    /// A host sends more than the window has room for: what it hears of windows is too much.
    Boast {
        host: usize,
        connection: usize,
        request: Request,
    },
    /// Memory is taken back, and registered under another name and with other rights.
    Revoke {
        host: usize,
        region: usize,
    },
    /// A connection ends.
    End {
        host: usize,
        connection: usize,
        abort: bool,
    },
    /// A host asks, says that it will end, and is answered.
    Part {
        host: usize,
        connection: usize,
        request: Request,
    },
    /// The device keeps frames for longer, gives them back, or queues few.
    Hold {
        host: usize,
    },
    Complete {
        host: usize,
    },
    Queue {
        host: usize,
        len: usize,
    },
    Route {
        host: usize,
        mtu: u16,
    },
    TooBig {
        host: usize,
        mtu: u16,
    },
}

impl Act {
    fn read(from: &mut Choices<'_>, connections: usize) -> Self {
        let host = from.below(2);
        let apart = |from: &mut Choices<'_>| {
            Duration::from_nanos(from.of(&[1, 300, 2000, 20_000, 300_000]))
        };
        match from.below(64) {
            0..8 => Self::Post {
                host,
                connection: from.below(connections),
                request: Request::any(from),
                times: from.of(&[1, 1, 1, 2, 5]),
            },
            8..15 => Self::Post {
                host,
                connection: from.below(connections),
                request: Request::long(from),
                times: from.of(&[1, 2, 3, 6]),
            },
            15..19 => Self::Post {
                host,
                connection: from.below(connections),
                request: Request::short(from),
                times: from.of(&[1, 1, 2, 12, 40]),
            },
            19..21 => Self::Receive {
                host,
                connection: from.below(connections),
                len: match from.once_in(3) {
                    true => from.below(80),
                    false => usize::from(from.word()) % 14_000,
                },
                times: 1 + from.below(6),
            },
            21..24 => Self::Poll {
                host,
                connection: from.below(connections),
                most: 1 + from.below(40),
            },
            24..31 => Self::Deliver {
                to: host,
                most: from.of(&[1, 1, 2, 4, 8, 16, 64]),
            },
            31..38 => Self::Exchange {
                rounds: from.of(&[1, 2, 4, 8, 16]),
                batch: from.of(&[1, 2, 4, 16, 64]),
                apart: apart(from),
            },
            38..44 => Self::PingPong {
                connection: from.below(connections),
                rounds: 1 + from.below(20),
                requests: [Request::short(from), Request::short(from)],
                apart: apart(from),
            },
            44..46 => Self::Wait(Duration::from_nanos(from.of(&[
                1,
                500,
                20_000,
                1_000_000,
                45_000_000,
                250_000_000,
                2_000_000_000,
            ]))),
            46..49 => Self::Alarm,
            49..51 => Self::Mishap {
                to: host,
                at: from.below(8),
                mishap: from.of(&[
                    Mishap::Lose,
                    Mishap::Lose,
                    Mishap::Twice,
                    Mishap::Swap,
                    Mishap::LoseAll,
                    Mishap::Reverse,
                ]),
            },
            51..54 => Self::Twist {
                to: host,
                at: from.below(16),
                twist: Twist::read(from),
            },
            54..58 => Self::Arm {
                to: host,
                ahead: from.below(24),
                twist: Twist::read(from),
            },
            58 => match from.below(5) {
                0 => Self::Revoke {
                    host,
                    region: from.below(4),
                },
                1 if from.once_in(2) => Self::End {
                    host,
                    connection: from.below(connections),
                    abort: from.once_in(2),
                },
                2 => Self::Route {
                    host,
                    mtu: from.of(&[1500, 9000, 1280, 600]),
                },
                3 => Self::TooBig {
                    host,
                    mtu: from.of(&[1400, 700, 560]),
                },
                _ => Self::Hold { host },
            },
            59 => match from.below(3) {
                0 => Self::Hold { host },
                1 => Self::Queue {
                    host,
                    len: from.of(&[1, 4, 64, usize::MAX]),
                },
                _ => Self::Complete { host },
            },
            60 => Self::Complete { host },
            61 => Self::Boast {
                host,
                connection: from.below(connections),
                request: Request::long(from),
            },
            62 if from.once_in(4) => Self::Part {
                host,
                connection: from.below(connections),
                request: Request::short(from),
            },
            _ => Self::Exchange {
                rounds: 32,
                batch: 16,
                apart: apart(from),
            },
        }
    }
}

/// A case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) terms: Terms,
    pub(crate) acts: Vec<Act>,
}

impl Case {
    pub(crate) fn read(octets: &[u8]) -> Self {
        let mut from = Choices::new(octets);
        let terms = Terms::read(&mut from);
        let mut acts = Vec::new();
        while !from.is_over() && acts.len() < MAX_ACTS {
            acts.push(Act::read(&mut from, terms.connections));
        }
        Self { terms, acts }
    }

    /// The case with an honest network: it loses a frame where it would change what the frame says.
    /// Each request tells when it is done, and either side may speak first.
    pub(crate) fn honest(mut self) -> Self {
        self.terms.signal_all = true;
        self.terms.peer_to_peer = true;
        self.acts.retain_mut(|act| match act {
            Act::Twist { to, at, twist } if !twist.is_honest() => {
                *act = Act::Mishap {
                    to: *to,
                    at: *at,
                    mishap: Mishap::Lose,
                };
                true
            }
            Act::Arm { twist, .. } => twist.is_honest(),
            Act::Boast { .. } => false,
            _ => true,
        });
        self
    }
}
