//! Remote procedure calls by Send and Receive, with many clients to a server.
//!
//!     rpc serve eth1 192.0.2.1:4420
//!     rpc call eth1 192.0.2.1:4420 100000     # on the other host: makes and times so many calls
//!
//! A Send needs a receive at the other side, or the connection ends. The server's receives are in
//! one shared queue (SRQ), because few clients speak at once. Each client has credits: it may have
//! so many calls without a reply, and posts a receive for each reply. So the queue never runs dry
//! for those who keep to that; of those who do not, the SRQ's limit takes care.

mod common;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::{Outcome, PATIENCE, text};
use rnic_verbs::*;

/// A call: its number (8 octets), the procedure (1), data. A reply: the same number, 0 or 1 for a
/// failure, data. Both fit inline.
const MESSAGE: usize = DEFAULT_INLINE;
const CLIENTS: usize = 64;
const CREDITS: u8 = 8;
/// Twice what all clients may use, and what an SRQ has by default.
const RECEIVES: u32 = 2 * CLIENTS as u32 * CREDITS as u32;
/// How long a reply may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often a server without calls looks for new clients.
const NAP: Duration = Duration::from_millis(10);

/// Carries out a call, and returns the reply. A message that is no call has none.
fn reply(call: &[u8]) -> Option<Vec<u8>> {
    let (number, [procedure, data @ ..]) = call.split_first_chunk::<8>()? else {
        return None;
    };
    let (status, data) = match procedure {
        0 => (0, data.iter().rev().copied().collect()),
        1 => (0, data.to_ascii_uppercase()),
        _ => (1, b"no such procedure".to_vec()),
    };
    Some([&number[..], &[status], &data].concat())
}

struct Server {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    inbox: Mr,
    clients: HashMap<QpNumber, (Qp, SocketAddr)>,
    received: u64,
}

impl Server {
    fn new(device: &Device) -> Outcome<Self> {
        let (pd, cq) = (device.pd(), device.cq(2 * RECEIVES)?);
        let srq = pd.srq(SrqCaps::default())?;
        let inbox = pd.allocate(RECEIVES as usize * MESSAGE, Access::LOCAL_WRITE)?;
        let clients = HashMap::new();
        #[rustfmt::skip]
        let mut server = Self { pd, cq, srq, inbox, clients, received: 0 };
        (0..RECEIVES).try_for_each(|n| server.post(n.into()))?;
        server.arm_limit()?;
        Ok(server)
    }

    fn post(&mut self, n: u64) -> Result<(), PostError> {
        let place = self.inbox.sge(n as usize * MESSAGE, MESSAGE as u32);
        self.srq.post_recv(n, &[place])
    }

    /// When less than half of the receives is left, a client that has taken a quarter since the
    /// last of these calls gets none of the rest: that client does not keep to its credits. Its
    /// connection ends, and the others have receives.
    fn arm_limit(&self) -> Result<(), Error> {
        let (left, share) = (RECEIVES / 2, Some(RECEIVES / 4));
        self.srq.arm_limit(SrqLimit { left, share })
    }

    /// Accepts a client, and tells it its credits, or rejects it.
    fn admit(&mut self, request: ConnectRequest) -> Result<(), Error> {
        if self.clients.len() == CLIENTS {
            return request.reject(b"the server has no room for another client");
        }
        let (cq, caps, client) = (&self.cq, QpCaps::default(), request.peer());
        let mut qp = self.pd.qp_with_srq(cq, cq, &self.srq, caps)?;
        let mut options = ConnectionOptions::with_patience(PATIENCE);
        options.private_data = vec![CREDITS];
        request.accept(&mut qp, options)?;
        self.clients.insert(qp.number(), (qp, client));
        Ok(())
    }

    /// Forgets the clients whose connections have ended.
    fn sweep(&mut self) {
        let ended = |qp: &mut Qp| qp.wait_ended(Duration::ZERO).ok().flatten();
        self.clients.retain(|_, (qp, client)| {
            let ended = ended(qp).map(|why| eprintln!("{client}: {why}"));
            ended.is_none()
        });
    }

    /// Replies to a call. Of the server's Sends only those complete that fail, and then `sweep`
    /// sees why.
    fn answer(&mut self, done: &Completion) -> Outcome<()> {
        if !matches!(done.opcode(), WcOpcode::Recv | WcOpcode::RecvImmediate) {
            return Ok(());
        }
        let at = done.wr_id() as usize * MESSAGE;
        let call = self.inbox.copy(at, done.byte_len() as usize)?;
        self.post(done.wr_id())?;
        self.received += 1;
        if self.received.is_multiple_of(u64::from(RECEIVES / 8)) {
            self.arm_limit()?;
        }
        let reply = reply(&call).filter(|_| done.is_success());
        let (Some(reply), Some((qp, _))) = (reply, self.clients.get_mut(&done.qp())) else {
            self.clients.remove(&done.qp());
            return Ok(());
        };
        let send = SendRequest::send().inline(&reply).unsignaled();
        if qp.post_send(&send).is_err() {
            self.clients.remove(&done.qp()); // it takes no replies, so the send queue is full
        }
        Ok(())
    }
}

fn serve(netdev: &str, address: &str) -> Outcome<()> {
    // No thread drives this device: polling does, so that a call is answered where it is received.
    let device = Device::open(netdev)?;
    let mut server = Server::new(&device)?;
    let listener = device.listen(address.parse()?)?;
    println!("serving at {}", listener.local_address());
    let mut done = [Completion::default(); 64];
    loop {
        if let Some(request) = listener.next_request(Duration::ZERO)? {
            let admitted = server.admit(request);
            admitted.unwrap_or_else(|why| eprintln!("{why}"));
        }
        let count = server.cq.poll(&mut done);
        for done in &done[..count] {
            server.answer(done)?;
        }
        if count == 0 {
            server.sweep();
            server.cq.wait(NAP)?;
        }
    }
}

/// Makes calls, as many at once as there are credits. Replies come in the order of the calls.
fn call(netdev: &str, address: &str, calls: &str) -> Outcome<()> {
    let (calls, device): (usize, _) = (calls.parse()?, Device::open(netdev)?);
    let (pd, mut cq) = (device.pd(), device.cq(64)?);
    let mut qp = pd.qp(&cq, &cq, QpCaps::default())?;
    let inbox = pd.allocate(usize::from(CREDITS) * MESSAGE, Access::LOCAL_WRITE)?;
    let place = |n: usize| [inbox.sge(n * MESSAGE, MESSAGE as u32)];
    let options = ConnectionOptions::with_patience(PATIENCE);
    let server = match qp.connect_blocking(address.parse()?, None, options) {
        Err(ConnectError::Rejected {
            private_data: why, ..
        }) if !why.is_empty() => Err(text(&why))?,
        outcome => outcome?,
    };
    let [credits @ 1..=CREDITS] = server.private_data[..] else {
        return Err("the server gives no credits that can be used".into());
    };
    (0..credits).try_for_each(|n| qp.post_recv(n.into(), &place(n.into())))?;
    let message = |n: usize| [&n.to_be_bytes()[..], &[n as u8 % 3], b"words"].concat();
    let (mut begun, mut times, start) = (VecDeque::new(), Vec::new(), Instant::now());
    while times.len() < calls {
        while begun.len() < credits.into() && times.len() + begun.len() < calls {
            let call = message(times.len() + begun.len());
            begun.push_back(Instant::now());
            qp.post_send(&SendRequest::send().inline(&call).unsignaled())?;
        }
        let left = TIMEOUT.saturating_sub(begun[0].elapsed());
        // This sleeps while it waits. A thread that has a CPU for itself polls without a pause, and
        // is several times as fast.
        let done = cq.next_completion(left)?;
        let done = qp.check(done.ok_or(format!("no reply in {TIMEOUT:?}"))?)?;
        let answer = inbox.copy(done.wr_id() as usize * MESSAGE, done.byte_len() as usize)?;
        qp.post_recv(done.wr_id(), &place(done.wr_id() as usize))?;
        if Some(&answer) != reply(&message(times.len())).as_ref() {
            return Err(format!("wrong reply to call {}: {}", times.len(), text(&answer)).into());
        }
        times.extend(begun.pop_front().map(|begun| begun.elapsed()));
    }
    let rate = calls as f64 / start.elapsed().as_secs_f64();
    times.sort_unstable();
    let percentile = |p: usize| times.get(calls * p / 100).copied().unwrap_or_default();
    let (half, most) = (percentile(50), percentile(99));
    println!("{calls} calls, {rate:.0} a second; half within {half:?}, 99 % within {most:?}");
    Ok(qp.close(PATIENCE).map(drop)?)
}

fn main() {
    let usage = "rpc serve|call NETDEV ADDRESS:PORT [CALLS]";
    common::run(usage, |words| match words {
        ["serve", netdev, address] => Some(serve(netdev, address)),
        ["call", netdev, address, calls] => Some(call(netdev, address, calls)),
        _ => None,
    });
}
