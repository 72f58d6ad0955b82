//! Writes pcapng (draft-ietf-opsawg-pcapng), as Wireshark reads it. The crates for that know no
//! verdicts.

use std::io::{self, Write};

/// Types of blocks.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;

/// Codes of options. The first two are for all blocks.
const END: u16 = 0;
const COMMENT: u16 = 1;
const USER_APPLICATION: u16 = 4;
const NAME: u16 = 2;
const TIME_RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;
const VERDICT: u16 = 7;
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;

/// Values of options.
const NANOSECONDS: u8 = 9;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
const OF_XDP: u8 = 2;

/// A packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    /// The number of its interface, from 0.
    pub(super) interface: u32,
    /// Nanoseconds since 1970-01-01 UTC.
    pub(super) time: u64,
    pub(super) inbound: bool,
    /// `enum xdp_action`.
    pub(super) action: Option<u8>,
    pub(super) comment: Option<&'a str>,
    /// Its whole length in octets.
    pub(super) len: u32,
    /// As much of it as was captured.
    pub(super) octets: &'a [u8],
}

/// A file of one section. All integers are of little endian.
pub(super) struct Pcapng<W>(W);

impl<W: Write> Pcapng<W> {
    /// Begins the file.
    pub(super) fn new(file: W, application: &str) -> io::Result<Self> {
        let mut pcapng = Self(file);
        let mut body = BYTE_ORDER_MAGIC.to_le_bytes().to_vec();
        // Version 1.0, of a length that is not known.
        body.extend([1, 0, 0, 0]);
        body.extend(u64::MAX.to_le_bytes());
        option(&mut body, USER_APPLICATION, application.as_bytes());
        pcapng.block(SECTION, body)?;
        Ok(pcapng)
    }

    /// Adds an interface. Their numbers count up from 0.
    pub(super) fn interface(&mut self, name: &str, snap: u32) -> io::Result<()> {
        let mut body = ETHERNET.to_le_bytes().to_vec();
        body.extend([0, 0]);
        body.extend(snap.to_le_bytes());
        option(&mut body, NAME, name.as_bytes());
        option(&mut body, TIME_RESOLUTION, &[NANOSECONDS]);
        self.block(INTERFACE, body)
    }

    /// Adds a packet.
    pub(super) fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let captured = u32::try_from(packet.octets.len()).map_err(io::Error::other)?;
        let mut body = packet.interface.to_le_bytes().to_vec();
        time(&mut body, packet.time);
        body.extend(captured.to_le_bytes());
        body.extend(packet.len.to_le_bytes());
        body.extend(packet.octets);
        pad(&mut body);
        let flags = if packet.inbound { INBOUND } else { OUTBOUND };
        option(&mut body, FLAGS, &flags.to_le_bytes());
        if let Some(action) = packet.action {
            let mut value = vec![OF_XDP];
            value.extend(u64::from(action).to_le_bytes());
            option(&mut body, VERDICT, &value);
        }
        if let Some(comment) = packet.comment {
            option(&mut body, COMMENT, comment.as_bytes());
        }
        self.block(PACKET, body)
    }

    /// Adds the counters of an interface: packets that came, those that were lost included, and
    /// those that were lost.
    pub(super) fn statistics(
        &mut self,
        interface: u32,
        at: u64,
        received: u64,
        dropped: u64,
    ) -> io::Result<()> {
        let mut body = interface.to_le_bytes().to_vec();
        time(&mut body, at);
        option(&mut body, RECEIVED, &received.to_le_bytes());
        option(&mut body, DROPPED, &dropped.to_le_bytes());
        self.block(STATISTICS, body)
    }

    /// Writes out what is buffered, so that a reader sees it.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    /// Writes a block whose options are the last of its body.
    fn block(&mut self, kind: u32, mut body: Vec<u8>) -> io::Result<()> {
        option(&mut body, END, &[]);
        let len = u32::try_from(body.len() + 12).map_err(io::Error::other)?;
        self.0.write_all(&kind.to_le_bytes())?;
        self.0.write_all(&len.to_le_bytes())?;
        self.0.write_all(&body)?;
        self.0.write_all(&len.to_le_bytes())
    }
}

/// Adds a time, the more significant half first.
fn time(body: &mut Vec<u8>, nanoseconds: u64) {
    body.extend(((nanoseconds >> 32) as u32).to_le_bytes());
    body.extend((nanoseconds as u32).to_le_bytes());
}

/// Adds an option. What is too long for one, which only text can be, is cut.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    body.extend(code.to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend(&value[..len.into()]);
    pad(body);
}

/// Fills up to a multiple of four octets.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_draft() {
        let mut pcapng = Pcapng::new(Vec::new(), "test").unwrap();
        pcapng.interface("eth1", 96).unwrap();
        let packet = Packet {
            interface: 0,
            time: 0x0000_0001_0000_0002,
            inbound: false,
            action: Some(1),
            comment: Some("why"),
            len: 60,
            octets: &[7; 5],
        };
        pcapng.packet(&packet).unwrap();
        pcapng.statistics(0, 3, 9, 8).unwrap();
        #[rustfmt::skip]
        let expected = [
            &[0x0a, 0x0d, 0x0d, 0x0a, 40, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0][..],
            &[255; 8], &[4, 0, 4, 0], b"test", &[0, 0, 0, 0, 40, 0, 0, 0],
            &[1, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 96, 0, 0, 0, 2, 0, 4, 0], b"eth1",
            &[9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0],
            &[6, 0, 0, 0, 76, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 60, 0, 0, 0],
            &[7, 7, 7, 7, 7, 0, 0, 0, 2, 0, 4, 0, 2, 0, 0, 0],
            &[7, 0, 9, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 3, 0], b"why\0", &[0, 0, 0, 0, 76, 0, 0, 0],
            &[5, 0, 0, 0, 52, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0],
            &[4, 0, 8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 8, 0, 8, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0, 52, 0, 0, 0],
        ].concat();
        assert_eq!(pcapng.0, expected);
    }

    #[test]
    fn text_that_is_too_long_is_cut() {
        let mut pcapng = Pcapng::new(Vec::new(), "").unwrap();
        pcapng.0.clear();
        pcapng.interface(&"x".repeat(70_000), 0).unwrap();
        assert_eq!(pcapng.0[18..20], u16::MAX.to_le_bytes());
        assert_eq!(pcapng.0.len() % 4, 0);
    }
}
