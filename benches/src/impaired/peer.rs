//! The other side, on a socket of the kernel's TCP: just enough of MPA, DDP and RDMAP to receive
//! Writes and to send them. It checks every octet and, by a crate that the engine does not use,
//! every CRC.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use rnic_core::wire::ddp::{
    DdpHeader, DdpSegment, MessageOffset, Msn, QueueNumber, Stag, TaggedHeader, TaggedOffset,
    UntaggedHeader,
};
use rnic_core::wire::mpa::{CRC_LEN, Fpdu, LENGTH_LEN, StartupFrame, StartupKind, pad_len};
use rnic_core::wire::rdmap::{Control, Opcode};

use super::pattern;
use super::transfer::{SLOTS, Transfer};
use crate::failure::Failure;

/// The memory that it pretends to have: as long as the transfer.
pub(crate) const STAG: Stag = Stag(0x7065_6572);
/// How long a peer may neither send nor take anything before it counts as dead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Octets of a system call: as many as with the kernel's TCP alone, because the kernel acknowledges
/// when the program reads.
const PIECE: usize = 64 * 1024;

/// Prepares a socket of either side: sets the congestion control of the comparison.
pub(crate) fn tune(stream: &TcpStream) -> Result<(), Failure> {
    setsockopt(stream, sockopt::TcpCongestion, &OsString::from("cubic"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(())
}

/// One connection.
pub(crate) struct Peer {
    stream: TcpStream,
    /// Received and not yet looked at: `inbox[read..filled]`.
    inbox: Vec<u8>,
    read: usize,
    filled: usize,
    outbox: Vec<u8>,
    sends: Msn,
    receives: Msn,
}

impl Peer {
    /// Does the MPA start-up. Returns the other side's private data.
    pub(crate) fn start(stream: TcpStream, initiates: bool) -> Result<(Self, [u8; 12]), Failure> {
        tune(&stream)?;
        let mut peer = Self {
            stream,
            inbox: vec![0; PIECE],
            read: 0,
            filled: 0,
            outbox: Vec::new(),
            sends: Msn::FIRST,
            receives: Msn::FIRST,
        };
        let memory = if initiates {
            peer.send_startup(StartupKind::Request)?;
            let memory = peer.receive_startup(StartupKind::Reply)?;
            // RFC 5044 section 7.1: the responder sends nothing before it has an FPDU.
            peer.send(&[])?;
            memory
        } else {
            let memory = peer.receive_startup(StartupKind::Request)?;
            peer.send_startup(StartupKind::Reply)?;
            peer.receive_send()?;
            memory
        };
        Ok((peer, memory))
    }

    fn send_startup(&mut self, kind: StartupKind) -> Result<(), Failure> {
        let frame = StartupFrame {
            kind,
            markers: false,
            crc: true,
            reject: false,
            enhanced_bit: false,
            reserved: 0,
            revision: 1,
            private_data: &[],
            enhanced: None,
        };
        let mut octets = vec![0; frame.len()];
        frame.emit(&mut octets);
        Ok(self.stream.write_all(&octets)?)
    }

    fn receive_startup(&mut self, kind: StartupKind) -> Result<[u8; 12], Failure> {
        loop {
            if let Some((frame, len)) = StartupFrame::parse(&self.inbox[self.read..self.filled])? {
                if frame.kind != kind || !frame.crc || frame.markers || frame.reject {
                    return Err(format!("an unexpected start-up frame: {frame:?}").into());
                }
                let memory = frame.private_data.try_into()?;
                self.read += len;
                return Ok(memory);
            }
            self.fill()?;
        }
    }

    /// Receives more.
    fn fill(&mut self) -> Result<(), Failure> {
        self.inbox.copy_within(self.read..self.filled, 0);
        (self.read, self.filled) = (0, self.filled - self.read);
        match self.stream.read(&mut self.inbox[self.filled..]) {
            Ok(0) => Err("rnic closed too early".into()),
            Ok(more) => {
                self.filled += more;
                Ok(())
            }
            // The process was stopped and continued.
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives a DDP segment.
    fn receive<T>(
        &mut self,
        handle: impl FnOnce(DdpHeader, &[u8]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            if let Some((fpdu, len)) = Fpdu::parse(&self.inbox[self.read..self.filled]) {
                if crc32c::crc32c(fpdu.covered) != u32::from_le_bytes(fpdu.crc) {
                    return Err("an FPDU with a wrong CRC".into());
                }
                let segment = DdpSegment::parse(fpdu.ulpdu)?;
                let outcome = handle(segment.header, segment.payload);
                self.read += len;
                return outcome;
            }
            self.fill()?;
        }
    }

    /// Receives a Send of one segment.
    fn receive_send(&mut self) -> Result<(), Failure> {
        let msn = self.receives;
        self.receives = msn.next();
        self.receive(|header, _| match header {
            DdpHeader::Untagged(header)
                if header.queue == QueueNumber::SEND && header.msn == msn && header.last =>
            {
                Ok(())
            }
            other => Err(format!("no Send, but {other:?}").into()),
        })
    }

    /// Receives a transfer as Writes in order of their place, counts what has arrived, and says
    /// that it is complete.
    pub(crate) fn receive_all(
        mut self,
        transfer: &Transfer,
        arrived: &AtomicU64,
    ) -> Result<(), Failure> {
        let mut position = 0;
        while position < transfer.octets {
            position += self.receive(|header, payload| match header {
                DdpHeader::Tagged(header)
                    if header.ulp == octet(Control::new(Opcode::Write))
                        && header.stag == STAG
                        && header.offset == TaggedOffset(position) =>
                {
                    if !pattern::holds(position, payload) {
                        return Err(format!("wrong octets behind {position}").into());
                    }
                    Ok(payload.len() as u64)
                }
                other => Err(format!("at {position}: {other:?}").into()),
            })?;
            arrived.store(position, Ordering::Relaxed);
        }
        self.send(&[])?;
        self.await_close()
    }

    /// Sends a transfer as Writes to the other side's memory, slot by slot, each announced by a
    /// Send; the other side's Sends say that slots may be written again.
    pub(crate) fn send_all(mut self, memory: [u8; 12], transfer: &Transfer) -> Result<(), Failure> {
        let (stag, offset) = memory.split_at(4);
        let stag = Stag(u32::from_be_bytes(stag.try_into()?));
        let offset = u64::from_be_bytes(offset.try_into()?);
        let announcement = vec![0; transfer.announcement()];
        let mut unanswered = 0;
        for (number, slot) in (0..).zip(transfer.slots()) {
            if unanswered == SLOTS {
                self.receive_send()?;
                unanswered -= 1;
            }
            let place = offset + (number % SLOTS as u64) * transfer.slot;
            let base = slot.start;
            for position in slot.clone().step_by(transfer.payload) {
                let len = transfer.payload.min((slot.end - position) as usize);
                let header = TaggedHeader {
                    last: position + len as u64 == slot.end,
                    ulp: octet(Control::new(Opcode::Write)),
                    stag,
                    offset: TaggedOffset(place + (position - base)),
                };
                self.push(DdpHeader::Tagged(header), len, |payload| {
                    pattern::fill(position, payload);
                })?;
            }
            self.send(&announcement)?;
            unanswered += 1;
        }
        for _ in 0..unanswered {
            self.receive_send()?;
        }
        self.await_close()
    }

    /// Waits for the other side to close.
    fn await_close(mut self) -> Result<(), Failure> {
        match self.stream.read(&mut self.inbox)? {
            0 => Ok(()),
            more => Err(format!("{more} octets too many").into()),
        }
    }

    /// Sends a Send of one segment, after what waits to be sent.
    fn send(&mut self, payload: &[u8]) -> Result<(), Failure> {
        let header = UntaggedHeader {
            last: true,
            ulp: octet(Control::new(Opcode::Send)),
            ulp32: 0,
            queue: QueueNumber::SEND,
            msn: self.sends,
            offset: MessageOffset(0),
        };
        self.sends = self.sends.next();
        self.push(DdpHeader::Untagged(header), payload.len(), |to| {
            to.copy_from_slice(payload);
        })?;
        self.flush()
    }

    /// Appends an FPDU to what is sent next.
    fn push(
        &mut self,
        header: DdpHeader,
        payload: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Failure> {
        let begins = self.outbox.len();
        let ulpdu = header.len() + payload;
        self.outbox.extend((ulpdu as u16).to_be_bytes());
        self.outbox
            .resize(begins + LENGTH_LEN + ulpdu + pad_len(ulpdu), 0);
        let at = begins + LENGTH_LEN + header.emit(&mut self.outbox[begins + LENGTH_LEN..]);
        write(&mut self.outbox[at..at + payload]);
        let crc: [u8; CRC_LEN] = crc32c::crc32c(&self.outbox[begins..]).to_le_bytes();
        self.outbox.extend(crc);
        if self.outbox.len() >= PIECE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.stream.write_all(&self.outbox)?;
        self.outbox.clear();
        Ok(())
    }
}

fn octet(control: Control) -> u8 {
    control.into()
}
