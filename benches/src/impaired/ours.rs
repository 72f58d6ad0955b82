//! Our side: a queue pair over AF_XDP, driven by the thread that uses it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use rnic_core::counters::TcpCounters;
use rnic_verbs::{
    Access, Completion, ConnectionEvent, ConnectionOptions, Cq, Device, DeviceConfig, HugePages,
    Mr, Qp, QpCaps, Region, RemoteAddress, SendRequest, WcOpcode,
};

use super::bed::{ImpairedBed, ImpairedHost};
use super::pattern;
use super::peer::{PATIENCE, Peer, STAG};
use super::transfer::{SLOTS, Transfer};
use crate::failure::Failure;

const PORT: u16 = 4791;
/// Time without work after which the thread sleeps.
const NAP: Duration = Duration::from_millis(1);
/// Octets made or checked at a time: the engine, which this thread drives, waits for no more.
const PIECE: usize = 32 * 1024;

/// The side that sends, or that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Kernel,
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) time: Duration,
    pub(crate) tcp: TcpCounters,
}

/// Moves a transfer between rnic on the left and the kernel's TCP on the right. What has arrived
/// there is counted.
pub(crate) fn run(
    bed: &ImpairedBed,
    transfer: &Transfer,
    sender: Side,
    initiator: Side,
    arrived: &AtomicU64,
) -> Result<Outcome, Failure> {
    let mut ours = Ours::open(&bed.left, transfer)?;
    let listener = match initiator {
        Side::Ours => Some(bed.right.run(|| TcpListener::bind(bed.right.at(PORT)))?),
        Side::Kernel => None,
    };
    let ours_listens = match initiator {
        Side::Ours => None,
        Side::Kernel => Some(bed.left.run(|| ours.device.listen(bed.left.at(PORT)))?),
    };
    thread::scope(|scope| {
        let peer = scope.spawn(|| -> Result<(), Failure> {
            let stream = match listener {
                Some(listener) => listener.accept()?.0,
                None => bed.right.run(|| TcpStream::connect(bed.left.at(PORT)))?,
            };
            let (peer, memory) = Peer::start(stream, initiator == Side::Kernel)?;
            match sender {
                Side::Ours => peer.receive_all(transfer, arrived),
                Side::Kernel => peer.send_all(memory, transfer),
            }
        });
        let outcome = ours.take_part(bed, ours_listens, transfer, sender);
        // Otherwise the peer would wait for its timeout.
        drop(ours);
        let peers = peer
            .join()
            .unwrap_or_else(|_| Err("the peer panicked".into()));
        match (outcome, peers) {
            (Ok(outcome), Ok(())) => Ok(outcome),
            (Err(ours), Ok(())) => Err(ours),
            (Ok(_), Err(peers)) => Err(format!("the peer: {peers}").into()),
            (Err(ours), Err(peers)) => Err(format!("{ours}; the peer: {peers}").into()),
        }
    })
}

struct Ours {
    device: Device,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    /// Completions of receives, and of sends, so far.
    received: usize,
    sent: usize,
}

impl Ours {
    fn open(host: &ImpairedHost, transfer: &Transfer) -> Result<Self, Failure> {
        let device = host.run(|| open_device(host))?;
        let pd = device.pd();
        let cq = device.cq(256)?;
        let qp = pd.qp(&cq, &cq, QpCaps::default())?;
        let octets = SLOTS * transfer.slot as usize;
        // Behind the slots there is room for the peer's Sends.
        let region = Arc::new(Region::allocate(
            octets + transfer.payload,
            HugePages::Prefer,
        )?);
        let mr = pd.register(&region, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self {
            device,
            cq,
            qp,
            mr,
            received: 0,
            sent: 0,
        })
    }

    /// Connects, moves the transfer, closes.
    fn take_part(
        &mut self,
        bed: &ImpairedBed,
        listener: Option<rnic_verbs::Listener>,
        transfer: &Transfer,
        sender: Side,
    ) -> Result<Outcome, Failure> {
        for _ in 0..=SLOTS {
            self.post_receive(transfer)?;
        }
        match listener {
            Some(listener) => self.accept(&listener)?,
            None => {
                let to = bed.right.at(PORT);
                bed.left.run(|| self.connect(to))?;
            }
        }
        let began = Instant::now();
        match sender {
            Side::Ours => self.send_all(transfer)?,
            Side::Kernel => self.receive_all(transfer)?,
        }
        let time = began.elapsed();
        let tcp = self.device.snapshot(PATIENCE)?.ok_or("no snapshot")?.tcp;
        self.qp.disconnect()?;
        match self.qp.next_event(PATIENCE)? {
            Some(ConnectionEvent::Disconnected(_)) => Ok(Outcome { time, tcp }),
            other => Err(format!("no orderly end: {other:?}").into()),
        }
    }

    /// Advertises the memory to the peer, which does not support MPA revision 2.
    fn options(&self) -> ConnectionOptions {
        let RemoteAddress { stag, offset } = self.mr.remote(0);
        let mut private_data = stag.0.to_be_bytes().to_vec();
        private_data.extend(offset.to_be_bytes());
        ConnectionOptions {
            mpa_revision: 1,
            private_data,
            connect_timeout: PATIENCE,
            ..ConnectionOptions::default()
        }
    }

    fn connect(&mut self, to: SocketAddr) -> Result<(), Failure> {
        self.qp.connect_blocking(to, None, self.options())?;
        // The initiator sends the first message.
        self.qp.post_send(&SendRequest::send())?;
        self.progress_until(|ours| ours.sent == 1)
    }

    fn accept(&mut self, listener: &rnic_verbs::Listener) -> Result<(), Failure> {
        let request = listener.next_request(PATIENCE)?.ok_or("nobody connects")?;
        let options = self.options();
        request.accept(&mut self.qp, options)?;
        self.qp.wait_established(PATIENCE)?;
        // Its first message.
        self.progress_until(|ours| ours.received == 1)
    }

    fn post_receive(&mut self, transfer: &Transfer) -> Result<(), Failure> {
        let at = SLOTS * transfer.slot as usize;
        let piece = [self.mr.sge(at, transfer.payload as u32)];
        Ok(self.qp.post_recv(0, &piece)?)
    }

    /// Polls completions until a condition holds. All must be successes.
    fn progress_until(&mut self, enough: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let mut moved = Instant::now();
        while !enough(self) {
            if self.progress()? || self.cq.wait(NAP)? {
                moved = Instant::now();
            } else if moved.elapsed() > PATIENCE {
                return Err("nothing moves any more".into());
            }
        }
        Ok(())
    }

    /// Runs the engine, and takes completions, which must be successes. Returns whether there were
    /// any.
    fn progress(&mut self) -> Result<bool, Failure> {
        let mut completions = [Completion::default(); 16];
        let count = self.cq.poll(&mut completions);
        for completion in &completions[..count] {
            if !completion.is_success() {
                let why = self.qp.next_event(Duration::ZERO)?;
                return Err(format!("a request failed: {completion:?} ({why:?})").into());
            }
            match completion.opcode() {
                WcOpcode::Recv | WcOpcode::RecvImmediate => self.received += 1,
                _ => self.sent += 1,
            }
        }
        Ok(count > 0)
    }

    /// Writes everything to the peer, which confirms at the end that it was correct.
    fn send_all(&mut self, transfer: &Transfer) -> Result<(), Failure> {
        let mut octets = vec![0; PIECE];
        let (before, said) = (self.sent, self.received);
        let mut posted = 0;
        for slot in transfer.slots() {
            self.progress_until(|ours| posted - (ours.sent - before) < SLOTS)?;
            let at = posted % SLOTS * transfer.slot as usize;
            for position in slot.clone().step_by(PIECE) {
                let octets = &mut octets[..PIECE.min((slot.end - position) as usize)];
                pattern::fill(position, octets);
                self.mr
                    .write(at + (position - slot.start) as usize, octets)?;
                self.progress()?;
            }
            let to = RemoteAddress {
                stag: STAG,
                offset: slot.start,
            };
            let piece = [self.mr.sge(at, (slot.end - slot.start) as u32)];
            self.qp.post_send(&SendRequest::write(to).memory(&piece))?;
            posted += 1;
        }
        self.progress_until(|ours| ours.sent - before == posted && ours.received > said)
    }

    /// Lets the peer write everything, checks it slot by slot, and releases each slot to be written
    /// again.
    fn receive_all(&mut self, transfer: &Transfer) -> Result<(), Failure> {
        let mut octets = vec![0; PIECE];
        let (before, announced) = (self.sent, self.received);
        let mut checked = 0;
        for slot in transfer.slots() {
            self.progress_until(|ours| ours.received - announced > checked)?;
            let at = checked % SLOTS * transfer.slot as usize;
            for position in slot.clone().step_by(PIECE) {
                let octets = &mut octets[..PIECE.min((slot.end - position) as usize)];
                self.mr
                    .read(at + (position - slot.start) as usize, octets)?;
                if !pattern::holds(position, octets) {
                    return Err(format!("wrong octets behind {position}").into());
                }
                self.progress()?;
            }
            self.post_receive(transfer)?;
            self.qp.post_send(&SendRequest::send())?;
            checked += 1;
        }
        self.progress_until(|ours| ours.sent - before == checked)
    }
}

fn open_device(host: &ImpairedHost) -> Result<Device, Failure> {
    let mut config = DeviceConfig::new(host.netdev);
    // Room for all frames that arrive while this thread has no processor: none that the box
    // captures may be lost here.
    config.interface.rx_frames = 4096;
    Ok(Device::open_with(&config)?)
}
