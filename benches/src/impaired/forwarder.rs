//! The impairment box: it passes frames between two interfaces, through two lanes that impair them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::prctl::set_timerslack;
use nix::sys::time::TimeSpec;

use super::capture::Capture;
use super::lane::{Impairments, Lane, Statistics};
use super::socket::PacketSocket;
use crate::failure::Failure;

/// How often to check whether to stop.
const LONGEST_REST: Duration = Duration::from_millis(50);
/// A wait that is shorter than this is not worth sleeping.
const SHORTEST_REST: Duration = Duration::from_micros(5);

/// Both directions.
pub(crate) struct Forwarder {
    /// Lane 0 takes from port 0 and gives to port 1.
    ports: [PacketSocket; 2],
    lanes: [Lane; 2],
    began: Instant,
    /// Of what passes port 0.
    capture: Option<Capture>,
    /// Frames that a port did not take.
    refused: [u64; 2],
}

/// The counters of the frames of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    pub(crate) lane: Statistics,
    /// Frames that were lost because they came too fast.
    pub(crate) missed: u64,
    /// Frames that the far interface did not take.
    pub(crate) refused: u64,
}

impl Forwarder {
    /// Opens it on two interfaces of this thread's namespace. Impairments are for frames from the
    /// first and from the second.
    pub(crate) fn open(
        interfaces: [&str; 2],
        impairments: [Impairments; 2],
        seed: u64,
        capture: Option<&Path>,
    ) -> Result<Self, Failure> {
        let [from_first, from_second] = impairments;
        Ok(Self {
            ports: [
                PacketSocket::open(interfaces[0])?,
                PacketSocket::open(interfaces[1])?,
            ],
            lanes: [
                Lane::new(from_first, seed),
                Lane::new(from_second, seed.wrapping_add(1)),
            ],
            began: Instant::now(),
            capture: capture.map(Capture::create).transpose()?,
            refused: [0; 2],
        })
    }

    /// Passes frames until `stop` is set. Returns the counters.
    pub(crate) fn run(mut self, stop: &AtomicBool) -> Result<[Account; 2], Failure> {
        // Else the kernel adds 50 us to every wait.
        set_timerslack(1)?;
        while !stop.load(Ordering::Acquire) {
            let received = self.receive(0)? + self.receive(1)?;
            let sent = self.deliver(0)? + self.deliver(1)?;
            if received + sent == 0 {
                self.rest()?;
            }
        }
        let mut accounts = [Account::default(); 2];
        for (side, account) in accounts.iter_mut().enumerate() {
            *account = Account {
                lane: self.lanes[side].statistics(),
                missed: self.ports[side].missed()?,
                refused: self.refused[side],
            };
        }
        if let Some(capture) = self.capture {
            capture.finish()?;
        }
        Ok(accounts)
    }

    /// Receives what has come to a port, and offers it to the lane that begins there. Returns the
    /// number of frames.
    fn receive(&mut self, side: usize) -> Result<usize, Failure> {
        let now = self.began.elapsed();
        let mut dropped = Vec::new();
        let (lane, capture) = (&mut self.lanes[side], &mut self.capture);
        let mut written = Ok(());
        let received = self.ports[side].receive(|frame| {
            if let (0, Some(capture)) = (side, capture.as_mut())
                && written.is_ok()
            {
                written = capture.write(now, frame.octets());
            }
            dropped.extend(lane.offer(now, frame));
        })?;
        written?;
        for frame in dropped {
            self.ports[side].reuse(frame);
        }
        Ok(received)
    }

    /// Sends what has reached the end of a lane.
    fn deliver(&mut self, side: usize) -> Result<usize, Failure> {
        let now = self.began.elapsed();
        let port = &mut self.ports[1 - side];
        while !port.is_full()
            && let Some(frame) = self.lanes[side].take(now)
        {
            port.send(frame);
        }
        let (mut done, mut refused) = (Vec::new(), 0);
        let (mut capture, mut written) = (self.capture.as_mut().filter(|_| side == 1), Ok(()));
        let count = port.flush(|frame, left| {
            refused += u64::from(!left);
            if let Some(capture) = &mut capture
                && left
                && written.is_ok()
            {
                written = capture.write(now, frame.octets());
            }
            done.push(frame);
        })?;
        written?;
        self.refused[side] += refused;
        for frame in done {
            self.ports[side].reuse(frame);
        }
        Ok(count)
    }

    /// Waits for the next frame, at an interface or at the end of a lane.
    fn rest(&self) -> Result<(), Failure> {
        let arrivals = self.lanes.iter().filter_map(Lane::next_arrival);
        let next = arrivals.min().map_or(LONGEST_REST, |at| {
            at.saturating_sub(self.began.elapsed()).min(LONGEST_REST)
        });
        if next < SHORTEST_REST {
            return Ok(());
        }
        // A port that is full is looked at again soon enough.
        let mut fds = self
            .ports
            .each_ref()
            .map(|port| PollFd::new(port.fd(), PollFlags::POLLIN));
        match ppoll(&mut fds, Some(TimeSpec::from_duration(next)), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
