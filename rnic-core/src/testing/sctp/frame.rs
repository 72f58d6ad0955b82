//! The frames between two kernels.

use crate::wire::crc::crc;

/// What one side says of an association that is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetUp {
    /// The adaptation indication.
    pub(super) indication: Option<u32>,
    pub(super) streams: u16,
    /// Tells apart what the one that asks has begun.
    pub(super) tag: u32,
}

/// What a frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// An association is asked for.
    Init(SetUp),
    /// It is there.
    InitAck(SetUp),
    /// A chunk.
    Data {
        tsn: u32,
        stream: u16,
        protocol: u32,
        octets: Vec<u8>,
    },
    /// All chunks before the first number have come, and those with the others.
    Sack(u32, Vec<u32>),
    /// Nothing follows, and all has come.
    Shutdown,
    /// That was heard.
    ShutdownAck,
    /// The association is no more, or there is none.
    Abort,
    /// Are you there?
    Heartbeat,
    /// Yes.
    HeartbeatAck,
}

/// A frame from one port to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) source: u16,
    pub(super) destination: u16,
    pub(super) message: Message,
}

/// What frames begin with: they are of no protocol that the link knows.
const MARK: [u8; 14] = *b"rnic test sctp";

impl Frame {
    pub(super) fn octets(&self) -> Vec<u8> {
        let mut octets = MARK.to_vec();
        octets.extend([0; 4]);
        octets.extend(self.source.to_be_bytes());
        octets.extend(self.destination.to_be_bytes());
        let word = |value: &Option<u32>| value.map_or(u64::MAX, u64::from).to_be_bytes();
        match &self.message {
            Message::Init(set_up) | Message::InitAck(set_up) => {
                let is_init = matches!(self.message, Message::Init(..));
                octets.push(if is_init { 1 } else { 2 });
                octets.extend(word(&set_up.indication));
                octets.extend(set_up.streams.to_be_bytes());
                octets.extend(set_up.tag.to_be_bytes());
            }
            Message::Data {
                tsn,
                stream,
                protocol,
                octets: data,
            } => {
                octets.push(3);
                octets.extend(tsn.to_be_bytes());
                octets.extend(stream.to_be_bytes());
                octets.extend(protocol.to_be_bytes());
                octets.extend(data);
            }
            Message::Sack(next, others) => {
                octets.push(4);
                octets.extend(next.to_be_bytes());
                others
                    .iter()
                    .for_each(|one| octets.extend(one.to_be_bytes()));
            }
            Message::Shutdown => octets.push(5),
            Message::ShutdownAck => octets.push(6),
            Message::Abort => octets.push(7),
            Message::Heartbeat => octets.push(8),
            Message::HeartbeatAck => octets.push(9),
        }
        let sum = crc(&octets[MARK.len() + 4..]);
        octets[MARK.len()..MARK.len() + 4].copy_from_slice(&sum.to_be_bytes());
        octets
    }

    /// Reads a frame. `None` if it is damaged, or another.
    pub(super) fn parse(octets: &[u8]) -> Option<Self> {
        let rest = octets.strip_prefix(&MARK)?;
        let (sum, rest) = rest.split_first_chunk::<4>()?;
        if u32::from_be_bytes(*sum) != crc(rest) {
            return None;
        }
        let (source, rest) = rest.split_first_chunk::<2>()?;
        let (destination, rest) = rest.split_first_chunk::<2>()?;
        let (kind, rest) = rest.split_first()?;
        let message = match kind {
            1 | 2 => {
                let (indication, rest) = rest.split_first_chunk::<8>()?;
                let indication = u32::try_from(u64::from_be_bytes(*indication)).ok();
                let (streams, rest) = rest.split_first_chunk::<2>()?;
                let set_up = SetUp {
                    indication,
                    streams: u16::from_be_bytes(*streams),
                    tag: u32::from_be_bytes(*rest.first_chunk::<4>()?),
                };
                match kind {
                    1 => Message::Init(set_up),
                    _ => Message::InitAck(set_up),
                }
            }
            3 => {
                let (tsn, rest) = rest.split_first_chunk::<4>()?;
                let (stream, rest) = rest.split_first_chunk::<2>()?;
                let (protocol, octets) = rest.split_first_chunk::<4>()?;
                Message::Data {
                    tsn: u32::from_be_bytes(*tsn),
                    stream: u16::from_be_bytes(*stream),
                    protocol: u32::from_be_bytes(*protocol),
                    octets: octets.to_vec(),
                }
            }
            4 => {
                let (next, others) = rest.split_first_chunk::<4>()?;
                let (others, _) = others.as_chunks::<4>();
                let others = others.iter().map(|one| u32::from_be_bytes(*one));
                Message::Sack(u32::from_be_bytes(*next), others.collect())
            }
            5 => Message::Shutdown,
            6 => Message::ShutdownAck,
            8 => Message::Heartbeat,
            9 => Message::HeartbeatAck,
            _ => Message::Abort,
        };
        Some(Self {
            source: u16::from_be_bytes(*source),
            destination: u16::from_be_bytes(*destination),
            message,
        })
    }
}
