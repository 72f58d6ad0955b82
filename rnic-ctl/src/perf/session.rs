//! The connections of a test: one for control, and the data connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rnic_verbs::{
    Access, Completion, ConnectRequest, ConnectionEvent, ConnectionOptions, Cq, Device, Pd, Qp,
    QpCaps, QpNumber, RemoteAddress, Srq,
};

use super::args::{Operation, Test};
use super::buffer::Memory;
use super::control::{Control, why_ended};
use super::flow::{Flow, rejected};
use super::hello::{Hello, HelloReply, NO_BUFFER, Role};
use super::limits::Limits;
use super::message::Message;
use super::receives::{self, RECEIVES, Receive};
use crate::connect::local_on;
use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::listen::Listening;
use crate::out;

/// How long the other side may take to end its connections.
const PROMPTLY: Duration = Duration::from_secs(2);
/// How long a message about a failure may take to reach the other side.
const LONGEST_REPORT: Duration = Duration::from_millis(500);
/// How long a client may take for its next connection. It allocates its memory first, which may be
/// gibibytes.
const NEXT_CONNECTION: Duration = Duration::from_secs(30);
/// The most octets of the reason for a rejection, which is private data.
const MAX_REASON: usize = 400;

/// All connections of a test.
pub(super) struct Session {
    pub control: Control,
    pub flows: Vec<Flow>,
    /// Where all requests of the flows complete.
    pub cq: Cq,
    /// Where receives are posted, if the flows share them.
    pub srq: Option<Srq>,
    /// What the client asked for.
    pub hello: Hello,
    /// A description of the memory.
    pub memory: String,
}

/// The objects of a side before it is connected.
struct Setup {
    pd: Pd,
    cq: Cq,
    srq: Option<Srq>,
    hello: Hello,
    outgoing: Option<Memory>,
    incoming: Option<Memory>,
}

impl Setup {
    fn new(device: &Device, hello: Hello, is_client: bool) -> Outcome<Self> {
        let Hello {
            qps,
            largest,
            depth,
            verify,
            ..
        } = hello;
        let (sends, receives) = match hello.test {
            Test::WriteLat | Test::SendLat => (true, true),
            Test::WriteBw | Test::SendBw => (is_client, !is_client),
            Test::ReadBw | Test::ReadLat | Test::AtomicBw | Test::AtomicLat => {
                (!is_client, is_client)
            }
        };
        let memory = |wanted: bool| {
            wanted
                .then(|| Memory::allocate(device, qps, largest, depth, verify))
                .transpose()
        };
        let entries = (2 * u32::from(qps) * depth.max(RECEIVES)).min(1 << 16);
        let cq = device.cq(entries).doing("make a completion queue")?;
        let pd = device.pd();
        let srq = receives::shared_queue(&pd, &hello)?;
        Ok(Self {
            pd,
            cq,
            srq,
            hello,
            outgoing: memory(sends)?,
            incoming: memory(receives)?,
        })
    }

    /// Makes a data connection, not connected yet, and posts its receives.
    fn flow(&mut self, index: u16) -> Outcome<Flow> {
        let register = |memory: &Option<Memory>, access| {
            memory
                .as_ref()
                .map(|memory| memory.register(&self.pd, index, access))
                .transpose()
        };
        let outgoing = match self.hello.test.operation() {
            Operation::FetchAdd => Access::REMOTE_ATOMIC,
            _ => Access::REMOTE_READ,
        };
        let outgoing = register(&self.outgoing, outgoing)?;
        let incoming = register(&self.incoming, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let depth = self.hello.depth.max(RECEIVES);
        let caps = QpCaps {
            max_send_wr: depth,
            max_recv_wr: depth,
            ..QpCaps::default()
        };
        let (pd, cq) = (&self.pd, &self.cq);
        let qp = match &self.srq {
            Some(srq) => pd.qp_with_srq(cq, cq, srq, caps),
            None => pd.qp(cq, cq, caps),
        }
        .doing("make a queue pair")?;
        let granted = receives::count(&self.hello);
        let mut flow = Flow {
            qp,
            index,
            outgoing,
            incoming,
            remote: NO_BUFFER,
            granted,
            used: 0,
        };
        for slot in 0..granted {
            let receive = Receive { flow: index, slot };
            receives::post(&mut flow, self.srq.as_mut(), &self.hello, receive)?;
        }
        Ok(flow)
    }

    /// Returns the memory that the other side may write, read or add to, if the test does so.
    fn advertised(&self, flow: &Flow) -> RemoteAddress {
        let mr = match self.hello.test {
            Test::WriteBw | Test::WriteLat => &flow.incoming,
            Test::ReadBw | Test::ReadLat | Test::AtomicBw | Test::AtomicLat => &flow.outgoing,
            Test::SendBw | Test::SendLat => &None,
        };
        mr.as_ref().map_or(NO_BUFFER, |mr| mr.remote(0))
    }

    fn finish(self, control: Control, flows: Vec<Flow>) -> Session {
        let memory = self
            .incoming
            .or(self.outgoing)
            .map(|memory| memory.report())
            .unwrap_or_default();
        Session {
            control,
            flows,
            cq: self.cq,
            srq: self.srq,
            hello: self.hello,
            memory,
        }
    }
}

/// Connects to a server.
pub(super) fn connect(
    device: &Device,
    server: SocketAddr,
    local: Option<SocketAddr>,
    hello: Hello,
    interrupt: &Interrupt,
) -> Outcome<Session> {
    let mut setup = Setup::new(device, hello, true)?;
    let connect = |qp: &mut Qp, hello: Hello| -> Outcome<Vec<u8>> {
        let options = ConnectionOptions {
            private_data: hello.encode(),
            ..crate::connect::options()
        };
        let local = local.map(|address| local_on(device, address, 0));
        let established = crate::connect::connect(qp, server, local, options, interrupt, rejected)?;
        Ok(established.private_data)
    };
    let mut control = Control::new(device, &setup.pd, hello.qps, interrupt)?;
    connect(&mut control.qp, hello)?;
    // The server speaks only after it has heard from the client (RFC 5044 section 7.1.3).
    control.send(&Message::Alive)?;
    let mut flows = Vec::new();
    for index in 0..hello.qps {
        let mut flow = setup.flow(index)?;
        let hello = Hello {
            role: Role::Data(index),
            buffer: setup.advertised(&flow),
            ..hello
        };
        let answer = connect(&mut flow.qp, hello)?;
        let no_answer = || {
            Failure::operation(
                format!("connect to {server}"),
                "the server is not rnic-ctl perf",
            )
        };
        flow.remote = HelloReply::decode(&answer).ok_or_else(no_answer)?.buffer;
        flows.push(flow);
    }
    setup.hello = hello;
    Ok(setup.finish(control, flows))
}

/// Waits for a client of the same test, and for all its connections.
pub(super) fn accept(
    device: &Device,
    listening: &Listening,
    test: Test,
    limits: &Limits,
    interrupt: &Interrupt,
) -> Outcome<Session> {
    loop {
        let Some(request) = next_request(listening, interrupt, None)? else {
            continue;
        };
        let peer = request.peer();
        match admit(&request, test, limits) {
            Ok(hello) => match accept_all(device, listening, request, hello, interrupt)? {
                Some(session) => return Ok(session),
                None => out::note(format_args!(
                    "rnic-ctl: {peer} has gone before the test began"
                )),
            },
            Err((why, goes_on)) => {
                let what = format!("refuse {peer}");
                request.reject(why.as_bytes()).doing(&what)?;
                if !goes_on {
                    return Err(Failure::operation(what, why));
                }
                out::note(format_args!("rnic-ctl: {what}: {why}"));
            }
        }
    }
}

/// Accepts a client's connections, the first of which is `request`. `None` if the others do not
/// come.
fn accept_all(
    device: &Device,
    listening: &Listening,
    request: ConnectRequest,
    hello: Hello,
    interrupt: &Interrupt,
) -> Outcome<Option<Session>> {
    let made = Setup::new(device, hello, false).and_then(|setup| {
        let control = Control::new(device, &setup.pd, hello.qps, interrupt)?;
        Ok((setup, control))
    });
    let (mut setup, mut control) = match made {
        Ok(made) => made,
        Err(failure) => return Err(decline(request, failure)),
    };
    request
        .accept(&mut control.qp, answer(NO_BUFFER))
        .doing("accept a client")?;
    let mut flows: Vec<Flow> = Vec::new();
    let mut deadline = Instant::now() + NEXT_CONNECTION;
    while flows.len() < usize::from(hello.qps) {
        let Some(request) = next_request(listening, interrupt, Some(deadline))? else {
            return Ok(None);
        };
        let index = flows.len() as u16;
        let Some(remote) = expected(&request, &hello, index) else {
            let why = b"the server is busy with another client; try again";
            request.reject(why).doing("refuse a client")?;
            continue;
        };
        let mut flow = match setup.flow(index) {
            Ok(flow) => flow,
            Err(failure) => return Err(decline(request, failure)),
        };
        flow.remote = remote;
        let answer = answer(setup.advertised(&flow));
        request
            .accept(&mut flow.qp, answer)
            .doing("accept a client")?;
        flows.push(flow);
        deadline = Instant::now() + NEXT_CONNECTION;
    }
    Ok(Some(setup.finish(control, flows)))
}

/// Rejects a request with this side's failure as the reason.
fn decline(request: ConnectRequest, failure: Failure) -> Failure {
    let reason = failure.to_string();
    let reason = &reason.as_bytes()[..reason.len().min(MAX_REASON)];
    // The failure matters, even if the rejection does not reach the client.
    drop(request.reject(reason));
    failure
}

/// Returns the client's buffer if this request is for its data connection number `index`.
fn expected(request: &ConnectRequest, first: &Hello, index: u16) -> Option<RemoteAddress> {
    let hello = Hello::decode(request.private_data()).ok()?;
    let fits = hello.session == first.session && hello.role == Role::Data(index);
    fits.then_some(hello.buffer)
}

fn answer(buffer: RemoteAddress) -> ConnectionOptions {
    ConnectionOptions {
        private_data: HelloReply { buffer }.encode(),
        ..crate::connect::options()
    }
}

/// Waits for a request to connect, until a deadline if there is one.
fn next_request(
    listening: &Listening,
    interrupt: &Interrupt,
    deadline: Option<Instant>,
) -> Outcome<Option<ConnectRequest>> {
    loop {
        interrupt.check()?;
        let nap = Duration::from_millis(200);
        let request = listening.next_request(nap).doing("wait for a client")?;
        if request.is_some() || deadline.is_some_and(|at| Instant::now() >= at) {
            return Ok(request);
        }
    }
}

/// Returns the hello of a client that may begin; otherwise why it may not, and whether to wait for
/// another.
fn admit(request: &ConnectRequest, test: Test, limits: &Limits) -> Result<Hello, (String, bool)> {
    let hello = Hello::decode(request.private_data()).map_err(|why| (why, true))?;
    if hello.role != Role::Control {
        return Err(("another client was served before; start again".into(), true));
    }
    if hello.test != test {
        let why = format!(
            "the server runs {test}, the client {}; start both with the same test",
            hello.test
        );
        return Err((why, false));
    }
    limits.check(&hello).map_err(|why| (why, true))?;
    Ok(hello)
}

impl Session {
    /// Returns the connection that a completion belongs to.
    pub(super) fn flow(&self, qp: QpNumber) -> Outcome<usize> {
        let found = self.flows.iter().position(|flow| flow.qp.number() == qp);
        found.ok_or_else(|| Failure::operation("poll completions", format!("{qp} is not ours")))
    }

    /// Posts a receive again.
    pub(super) fn post_receive(&mut self, receive: Receive) -> Outcome {
        let flow = &mut self.flows[usize::from(receive.flow)];
        receives::post(flow, self.srq.as_mut(), &self.hello, receive)
    }

    /// Fails with the reason if a request failed.
    pub(super) fn check(&mut self, completion: &Completion) -> Outcome {
        if completion.is_success() {
            return Ok(());
        }
        let flow = self.flow(completion.qp())?;
        Err(why_ended(&mut self.flows[flow].qp, completion))
    }

    /// Ends all connections in order. The client begins.
    pub(super) fn close(mut self, interrupt: &Interrupt, is_client: bool) -> Outcome {
        self.control.send(&Message::Bye)?;
        if is_client {
            while self.control.receive(interrupt, || Ok(()))? != Message::Bye {}
        }
        let deadline = Instant::now() + PROMPTLY;
        let flows = self.flows.iter_mut().map(|flow| &mut flow.qp);
        let mut qps: Vec<&mut Qp> = flows.chain([&mut self.control.qp]).collect();
        if is_client {
            for qp in &mut qps {
                qp.disconnect().doing("disconnect")?;
            }
        }
        for qp in qps {
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match qp.next_event(left).doing("disconnect")? {
                    Some(ConnectionEvent::Established(_)) => {}
                    // If it is not in time, dropping the queue pair resets the connection.
                    Some(_) | None => break,
                }
            }
        }
        Ok(())
    }

    /// Sends the other side the reason of this side's failure, if it is still connected.
    pub(super) fn fail(mut self, failure: &Failure) {
        let qp = match self.control.send(&Message::Failed(failure.to_string())) {
            Ok(()) => &mut self.control.qp,
            Err(_) => return,
        };
        // An orderly end lets the message go out; dropping the queue pair would not.
        if qp.disconnect().is_ok() {
            drop(qp.next_event(LONGEST_REPORT));
        }
    }
}
