//! What a middlebox or a hostile peer does to a frame.

use rnic_core::mpa::frame::{fpdu_len, seal};
use rnic_core::wire::checksum::{combine, sum};

use super::choices::Choices;

/// Where headers stand in the frames that hosts send: Ethernet, IPv4 without options, TCP.
const IP_AT: usize = 14;
const TCP_AT: usize = 34;
const LEAST: usize = 54;

/// A change of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Twist {
    /// A bit turns over, and nobody mends checksums.
    Damage {
        at: u16,
    },
    /// A bit of the headers of IP and TCP, with right checksums.
    Header {
        at: u8,
    },
    /// A bit of the payload, with a right checksum of TCP.
    Payload {
        at: u16,
    },
    /// A bit at the front of the FPDU, with a right CRC.
    Fpdu {
        at: u8,
    },
    /// Whether it is the last segment of its message.
    Last,
    /// Another STag: that of one of the receiver's regions, or one of nothing.
    Stag {
        region: usize,
    },
    /// Another tagged offset, or message offset.
    Offset {
        by: u64,
    },
    /// All flags of TCP that are set here are turned over.
    Flags(u8),
    Ack(u32),
    Seq(u32),
    Window(u16),
    Stamp(u32),
    /// The bits of ECN.
    Mark(u8),
    /// Less of the payload, more behind the frame.
    Cut {
        octets: u16,
    },
    Pad {
        octets: u8,
    },
    /// In two segments.
    Split {
        at: u16,
    },
    /// Another option of TCP in front of the others.
    Option,
}

impl Twist {
    pub(crate) fn read(from: &mut Choices<'_>) -> Self {
        match from.below(26) {
            0..2 => Self::Damage { at: from.word() },
            2..4 => Self::Header { at: from.octet() },
            4 => Self::Payload { at: from.word() },
            5..8 => Self::Fpdu { at: from.octet() },
            8..10 => Self::Stag {
                region: from.below(7),
            },
            10..12 => Self::Offset {
                by: match from.below(5) {
                    0 => u64::MAX,
                    1 => 1 << 63,
                    2 => u64::from(from.word()),
                    3 => u64::MAX - u64::from(from.word()),
                    _ => 1 << 16,
                },
            },
            12 => Self::Flags(from.of(&[8, 8, 1, 4, 2, 16, 32, 64, 128, 9])),
            13..15 => {
                Self::Ack(from.of(&[1, u32::MAX, 100, 1460, u32::MAX - 1447, 1 << 31, 0x10000]))
            }
            15 => Self::Seq(from.of(&[1, u32::MAX, 1448, u32::MAX - 1447, 1 << 31])),
            16..18 => Self::Window(from.of(&[0, 0, 1, 8, 100, 0xffff, 0xffff, 0xffff])),
            18 => Self::Stamp(from.of(&[1, u32::MAX, 10, 1 << 31, 100_000])),
            19 => Self::Mark(from.of(&[3, 3, 3, 2, 1, 0])),
            20 => Self::Cut {
                octets: from.word() % 2000,
            },
            21 => Self::Pad {
                octets: from.octet() % 64,
            },
            22..24 => Self::Last,
            24 => Self::Split { at: from.word() },
            _ => Self::Option,
        }
    }

    /// Returns whether the frame still says what its sender has said.
    pub(crate) fn is_honest(self) -> bool {
        matches!(
            self,
            Self::Mark(_) | Self::Cut { .. } | Self::Pad { .. } | Self::Split { .. } | Self::Option
        )
    }

    /// Changes a frame; what comes of it arrives in its place. `stags` are the receiver's.
    pub(crate) fn change(self, mut frame: Vec<u8>, stags: &[u32]) -> Vec<Vec<u8>> {
        if frame.len() < LEAST {
            return vec![frame];
        }
        // Another change may have damaged the length of the header.
        let header_end = TCP_AT + usize::from(frame[TCP_AT + 12] >> 4) * 4;
        let payload_at = header_end.min(frame.len());
        let payload_len = frame.len() - payload_at;
        match self {
            Self::Damage { at } => flip(&mut frame, usize::from(at)),
            Self::Header { at } => {
                flip(&mut frame[IP_AT..payload_at], usize::from(at) * 2);
                mend(&mut frame);
            }
            Self::Payload { at } => {
                if payload_len > 0 {
                    flip(&mut frame[payload_at..], usize::from(at));
                }
                mend(&mut frame);
            }
            Self::Fpdu { at } => {
                let front = payload_len.min(20);
                if front > 0 {
                    flip(&mut frame[payload_at..][..front], usize::from(at));
                }
                reseal(&mut frame[payload_at..]);
                mend(&mut frame);
            }
            Self::Last => {
                if payload_len > 20 {
                    frame[payload_at + 2] ^= 0x40;
                    reseal(&mut frame[payload_at..]);
                }
                mend(&mut frame);
            }
            Self::Stag { region } => {
                // Behind the length and the control octets of a tagged segment.
                if payload_len > 18 {
                    let stag = stags.get(region).copied().unwrap_or(0x0102_0304);
                    frame[payload_at + 4..][..4].copy_from_slice(&stag.to_be_bytes());
                    reseal(&mut frame[payload_at..]);
                }
                mend(&mut frame);
            }
            Self::Offset { by } => {
                if payload_len > 22 {
                    let tagged = frame[payload_at + 2] & 0x80 != 0;
                    if tagged {
                        add(&mut frame[payload_at + 8..][..8], by);
                    } else {
                        add(&mut frame[payload_at + 16..][..4], by);
                    }
                    reseal(&mut frame[payload_at..]);
                }
                mend(&mut frame);
            }
            Self::Flags(bits) => {
                frame[TCP_AT + 13] ^= bits;
                mend(&mut frame);
            }
            Self::Seq(by) => {
                add(&mut frame[TCP_AT + 4..][..4], by.into());
                mend(&mut frame);
            }
            Self::Ack(by) => {
                add(&mut frame[TCP_AT + 8..][..4], by.into());
                mend(&mut frame);
            }
            Self::Window(window) => {
                frame[TCP_AT + 14..][..2].copy_from_slice(&window.to_be_bytes());
                mend(&mut frame);
            }
            Self::Stamp(by) => {
                if payload_at == TCP_AT + 32 {
                    add(&mut frame[TCP_AT + 24..][..4], by.into());
                }
                mend(&mut frame);
            }
            Self::Mark(bits) => {
                frame[IP_AT + 1] = frame[IP_AT + 1] & !3 | bits;
                mend(&mut frame);
            }
            Self::Cut { octets } => {
                let len = frame.len() - payload_len.min(octets.into());
                frame.truncate(len);
                mend(&mut frame);
            }
            Self::Pad { octets } => frame.resize(frame.len() + usize::from(octets), 0x55),
            Self::Split { at } => {
                if payload_len > 1 {
                    let len = 1 + usize::from(at) % (payload_len - 1);
                    let mut rest = frame[..payload_at].to_vec();
                    rest.extend_from_slice(&frame[payload_at + len..]);
                    add(&mut rest[TCP_AT + 4..][..4], len as u64);
                    frame.truncate(payload_at + len);
                    mend(&mut frame);
                    mend(&mut rest);
                    return vec![frame, rest];
                }
            }
            Self::Option => {
                if frame[TCP_AT + 12] >> 4 < 14 {
                    frame.splice(TCP_AT + 20..TCP_AT + 20, [1, 1, 1, 1]);
                    frame[TCP_AT + 12] += 0x10;
                    mend(&mut frame);
                }
            }
        }
        vec![frame]
    }
}

/// Turns a bit over: `at` counts octets, and where they end says which bit.
fn flip(octets: &mut [u8], at: usize) {
    let len = octets.len();
    octets[at % len] ^= 1 << (at / len % 8);
}

/// Adds to a number in network order.
fn add(field: &mut [u8], by: u64) {
    let number = field
        .iter()
        .fold(0, |number: u64, octet| number << 8 | u64::from(*octet));
    let octets = number.wrapping_add(by).to_be_bytes();
    field.copy_from_slice(&octets[8 - field.len()..]);
}

/// Seals what seems to be one FPDU anew.
fn reseal(payload: &mut [u8]) {
    let Some(length) = payload.first_chunk() else {
        return;
    };
    let len = usize::from(u16::from_be_bytes(*length));
    if len > 0 && fpdu_len(len) == payload.len() {
        seal(payload, len, true);
    }
}

/// Writes lengths and checksums as they should be, where a TCP header is left to write them to.
pub(crate) fn mend(frame: &mut [u8]) {
    if frame.len() < TCP_AT + 20 {
        return;
    }
    let len = (frame.len() - IP_AT) as u16;
    frame[IP_AT + 2..][..2].copy_from_slice(&len.to_be_bytes());
    frame[IP_AT + 10..][..2].fill(0);
    let header = !sum(&frame[IP_AT..TCP_AT]);
    frame[IP_AT + 10..][..2].copy_from_slice(&header.to_be_bytes());
    let pseudo = begin_checksum(frame);
    frame[TCP_AT + 16..][..2].fill(0);
    let whole = !combine(pseudo, sum(&frame[TCP_AT..]));
    frame[TCP_AT + 16..][..2].copy_from_slice(&whole.to_be_bytes());
}

/// What a kernel writes that leaves the checksum to its device: the sum of the pseudo-header.
/// Returns it.
pub(crate) fn begin_checksum(frame: &mut [u8]) -> u16 {
    let len = (frame.len() - TCP_AT) as u16;
    let pseudo = combine(combine(sum(&frame[IP_AT + 12..IP_AT + 20]), 6), len);
    frame[TCP_AT + 16..][..2].copy_from_slice(&pseudo.to_be_bytes());
    pseudo
}
