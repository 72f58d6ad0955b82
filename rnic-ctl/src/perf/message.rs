//! The messages of the control connection.

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::out::printable;

/// Octets of a message.
pub(super) const LEN: usize = size_of::<Raw>();
const TEXT: usize = 112;

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    /// Client: a run with messages of this size is about to begin.
    Begin { size: u64 },
    /// Server: ready for it.
    Ready,
    /// Client: the run is over, after this many messages.
    Done { messages: u64 },
    /// Server: what arrived. The checksum covers the memory of a `write-bw` run; `bad` counts
    /// corrupt messages.
    Arrived {
        messages: u64,
        checksum: u32,
        bad: u64,
    },
    /// Server: this many more receives are posted on a data connection (`send-bw`).
    Credit { flow: u32, count: u64 },
    /// Client: what it measured.
    Figures([f64; 9]),
    /// Still there. A side that waits sends it now and then, which detects a peer that is gone.
    Alive,
    /// No more runs.
    Bye,
    /// The sender has failed, for this reason.
    Failed(String),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: U32,
    small: U32,
    values: [U64; 2],
    text: [u8; TEXT],
}

impl Message {
    pub(super) fn encode(&self) -> [u8; LEN] {
        let mut text = [0; TEXT];
        let (kind, small, values) = match self {
            Self::Begin { size } => (1, 0, [*size, 0]),
            Self::Ready => (2, 0, [0, 0]),
            Self::Done { messages } => (3, 0, [*messages, 0]),
            Self::Arrived {
                messages,
                checksum,
                bad,
            } => (4, *checksum, [*messages, *bad]),
            Self::Credit { flow, count } => (5, *flow, [*count, 0]),
            Self::Figures(figures) => {
                for (octets, figure) in text.chunks_exact_mut(8).zip(figures) {
                    octets.copy_from_slice(&figure.to_bits().to_be_bytes());
                }
                (6, 0, [0, 0])
            }
            Self::Alive => (7, 0, [0, 0]),
            Self::Bye => (8, 0, [0, 0]),
            Self::Failed(why) => {
                let end = (0..=TEXT.min(why.len()))
                    .rev()
                    .find(|&end| why.is_char_boundary(end));
                let why = &why[..end.unwrap_or(0)];
                text[..why.len()].copy_from_slice(why.as_bytes());
                (9, 0, [0, 0])
            }
        };
        let raw = Raw {
            kind: kind.into(),
            small: small.into(),
            values: values.map(U64::new),
            text,
        };
        let mut octets = [0; LEN];
        octets.copy_from_slice(raw.as_bytes());
        octets
    }

    /// Reads a message. Returns `None` if this release does not know it.
    pub(super) fn decode(octets: &[u8]) -> Option<Self> {
        let raw = Raw::read_from_bytes(octets).ok()?;
        let (small, [first, second]) = (raw.small.get(), raw.values.map(U64::get));
        Some(match raw.kind.get() {
            1 => Self::Begin { size: first },
            2 => Self::Ready,
            3 => Self::Done { messages: first },
            4 => Self::Arrived {
                messages: first,
                checksum: small,
                bad: second,
            },
            5 => Self::Credit {
                flow: small,
                count: first,
            },
            6 => {
                let mut figures = [0.0; 9];
                for (figure, octets) in figures.iter_mut().zip(raw.text.as_chunks::<8>().0) {
                    *figure = f64::from_bits(u64::from_be_bytes(*octets));
                }
                Self::Figures(figures)
            }
            7 => Self::Alive,
            8 => Self::Bye,
            9 => {
                let text = String::from_utf8_lossy(&raw.text);
                Self::Failed(printable(text.trim_end_matches('\0')))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_travel() {
        for message in [
            Message::Begin { size: 1 << 30 },
            Message::Ready,
            Message::Done { messages: 5000 },
            Message::Arrived {
                messages: 7,
                checksum: 0x1234_5678,
                bad: 3,
            },
            Message::Credit {
                flow: 511,
                count: 32,
            },
            Message::Figures([1.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1e300]),
            Message::Alive,
            Message::Bye,
            Message::Failed("the disk is full; empty it".into()),
        ] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn what_the_other_side_says_is_fit_to_be_printed() {
        let message = Message::Failed("\x1b[2J\u{9b}H".into());
        let printable = Message::Failed("\\u{1b}[2J\\u{9b}H".into());
        assert_eq!(Message::decode(&message.encode()), Some(printable));
    }

    #[test]
    fn odd_messages_are_no_messages() {
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&[0; LEN]), None);
        assert_eq!(Message::decode(&[1; LEN + 1]), None);
        let long = Message::Failed("ä".repeat(TEXT));
        let Some(Message::Failed(text)) = Message::decode(&long.encode()) else {
            panic!("{long:?}")
        };
        assert_eq!(text, "ä".repeat(TEXT / 2));
    }
}
