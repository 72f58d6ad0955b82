//! The private data of the connections.

use rnic_verbs::{RemoteAddress, Stag};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::args::{ATOMIC, Test};

const MAGIC: [u8; 8] = *b"rnicperf";
const VERSION: u16 = 1;
/// The largest message that the command line takes.
const LARGEST: u64 = 1 << 30;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Messages about the test.
    Control,
    /// The test, on the queue pair of this number.
    Data(u16),
}

/// The client's private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub test: Test,
    pub role: Role,
    /// Identifies all connections of one client.
    pub session: u64,
    /// Data connections.
    pub qps: u16,
    /// Messages in flight at once.
    pub depth: u32,
    /// Octets in the largest message.
    pub largest: u64,
    pub verify: bool,
    /// Receives are taken from one shared queue.
    pub use_srq: bool,
    /// Where the server writes to (`write-lat`).
    pub buffer: RemoteAddress,
}

/// The server's private data when it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HelloReply {
    /// Where the client writes to or reads from.
    pub buffer: RemoteAddress,
}

/// The address for a connection that needs no buffer.
pub(super) const NO_BUFFER: RemoteAddress = RemoteAddress {
    stag: Stag(0),
    offset: 0,
};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHello {
    magic: [u8; 8],
    version: U16,
    test: u8,
    verify: u8,
    is_data: U16,
    index: U16,
    qps: U16,
    use_srq: U16,
    depth: U32,
    stag: U32,
    session: U64,
    largest: U64,
    offset: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAnswer {
    magic: [u8; 8],
    offset: U64,
    stag: U32,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (is_data, index) = match self.role {
            Role::Control => (0, 0),
            Role::Data(index) => (1, index),
        };
        let raw = RawHello {
            magic: MAGIC,
            version: VERSION.into(),
            test: Test::ALL
                .iter()
                .position(|&test| test == self.test)
                .unwrap_or_default() as u8,
            verify: self.verify.into(),
            is_data: is_data.into(),
            index: index.into(),
            qps: self.qps.into(),
            use_srq: u16::from(self.use_srq).into(),
            depth: self.depth.into(),
            stag: self.buffer.stag.0.into(),
            session: self.session.into(),
            largest: self.largest.into(),
            offset: self.buffer.offset.into(),
        };
        raw.as_bytes().to_vec()
    }

    /// Reads a client's private data, or returns what is wrong with it.
    pub(super) fn decode(octets: &[u8]) -> Result<Self, String> {
        let raw = match RawHello::read_from_prefix(octets) {
            Ok((raw, _)) if raw.magic == MAGIC => raw,
            _ => return Err("the client is not rnic-ctl perf".into()),
        };
        if raw.version.get() != VERSION {
            return Err(format!(
                "the client speaks version {} of this exchange, the server {VERSION}; use the same release",
                raw.version
            ));
        }
        let test = Test::ALL
            .get(usize::from(raw.test))
            .ok_or("the client asks for a test of a later release")?;
        let hello = Self {
            test: *test,
            role: if raw.is_data.get() == 0 {
                Role::Control
            } else {
                Role::Data(raw.index.get())
            },
            session: raw.session.get(),
            qps: raw.qps.get(),
            depth: raw.depth.get(),
            largest: raw.largest.get(),
            verify: raw.verify != 0,
            use_srq: raw.use_srq.get() != 0,
            buffer: RemoteAddress {
                stag: Stag(raw.stag.get()),
                offset: raw.offset.get(),
            },
        };
        // The limits of the command line.
        let sane = (1..=512).contains(&hello.qps)
            && (1..=16384).contains(&hello.depth)
            && hello.largest <= LARGEST
            && hello.is_possible(hello.largest)
            && (!hello.test.is_latency() || hello.qps == 1);
        if sane {
            Ok(hello)
        } else {
            Err("the client asks for more than a test may use".into())
        }
    }
}

impl Hello {
    /// Returns whether a client can ask for a run with messages of this size.
    pub(super) fn is_possible(&self, size: u64) -> bool {
        let least = match self.test {
            // The last octet of a message shows that it has arrived.
            Test::WriteLat => 1,
            Test::AtomicBw | Test::AtomicLat => return size == ATOMIC,
            _ => 0,
        };
        (least..=self.largest).contains(&size)
    }
}

impl HelloReply {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { buffer } = self;
        RawAnswer {
            magic: MAGIC,
            offset: buffer.offset.into(),
            stag: buffer.stag.0.into(),
        }
        .as_bytes()
        .to_vec()
    }

    pub(super) fn decode(octets: &[u8]) -> Option<Self> {
        let (raw, _) = RawAnswer::read_from_prefix(octets).ok()?;
        let buffer = RemoteAddress {
            stag: Stag(raw.stag.get()),
            offset: raw.offset.get(),
        };
        (raw.magic == MAGIC).then_some(Self { buffer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_no_test_has_are_not_begun() {
        let of = |test, largest| Hello {
            test,
            largest,
            qps: 1,
            ..hello()
        };
        for (test, largest, size, possible) in [
            (Test::WriteLat, 4, 0, false),
            (Test::WriteLat, 4, 1, true),
            (Test::WriteLat, 4, 5, false),
            (Test::WriteBw, 4, 0, true),
            (Test::SendBw, 4, u64::MAX, false),
            (Test::AtomicBw, 8, 8, true),
            (Test::AtomicLat, 8, 0, false),
        ] {
            assert_eq!(
                of(test, largest).is_possible(size),
                possible,
                "{test} {size}"
            );
        }
        for hostile in [
            of(Test::WriteLat, 0),
            of(Test::AtomicBw, 0),
            of(Test::AtomicLat, 1 << 20),
            Hello {
                qps: 2,
                ..of(Test::SendLat, 8)
            },
        ] {
            assert!(Hello::decode(&hostile.encode()).is_err(), "{hostile:?}");
        }
    }

    fn hello() -> Hello {
        Hello {
            test: Test::ReadBw,
            role: Role::Data(7),
            session: 0x0123_4567_89ab_cdef,
            qps: 8,
            depth: 128,
            largest: 8 << 20,
            verify: true,
            use_srq: true,
            buffer: RemoteAddress {
                stag: Stag(0xdead_beef),
                offset: 1 << 40,
            },
        }
    }

    #[test]
    fn hellos_travel() {
        for test in Test::ALL {
            for role in [Role::Control, Role::Data(511)] {
                let atomic = matches!(test, Test::AtomicBw | Test::AtomicLat);
                let hello = Hello {
                    test,
                    role,
                    qps: if test.is_latency() { 1 } else { 8 },
                    largest: if atomic { ATOMIC } else { 8 << 20 },
                    ..hello()
                };
                assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            }
        }
        let answer = HelloReply {
            buffer: hello().buffer,
        };
        assert_eq!(HelloReply::decode(&answer.encode()), Some(answer));
    }

    #[test]
    fn strangers_are_told_what_is_wrong() {
        assert!(
            Hello::decode(b"")
                .unwrap_err()
                .contains("not rnic-ctl perf")
        );
        let mut octets = hello().encode();
        octets[9] = 2;
        assert!(Hello::decode(&octets).unwrap_err().contains("version 2"));
        let mut octets = hello().encode();
        octets[10] = Test::ALL.len() as u8;
        assert!(
            Hello::decode(&octets)
                .unwrap_err()
                .contains("later release")
        );
        let greedy = Hello {
            largest: u64::MAX,
            ..hello()
        };
        assert!(Hello::decode(&greedy.encode()).is_err());
        assert_eq!(HelloReply::decode(b"rnicperf"), None);
        assert_eq!(HelloReply::decode(&[0; 64]), None);
    }
}
