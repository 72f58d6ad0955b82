//! `rnic-ctl perf`: bandwidth and latency between two hosts, as perftest reports them.

pub(crate) mod args;
mod bandwidth;
mod buffer;
mod control;
mod counters;
mod flow;
mod hello;
mod latency;
mod limits;
mod message;
mod progress;
mod receives;
mod report;
mod serve;
mod session;
mod stats;
mod tcp_info;

use std::fs;
use std::net::SocketAddr;

use rnic_verbs::{Device, Peers};
use serde_json::{Value, json};

use self::args::{Length, PerfArgs, Plan, Test};
use self::flow::{Flow, grant};
use self::hello::{Hello, NO_BUFFER, Role};
use self::limits::Limits;
use self::message::Message;
use self::progress::Progress;
use self::report::{RULE, Row, Unit, columns};
use self::session::Session;
use crate::connect::resolve;
use crate::device::{describe, secret};
use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::listen::Listening;
use crate::out;

/// Runs the command.
pub(crate) fn run(args: &PerfArgs, json: bool, interrupt: &Interrupt) -> Outcome {
    let plan = args.plan()?;
    let mut report = Report::new(args, &plan, json);
    if args.in_memory {
        in_memory(args, &plan, &mut report, interrupt)?;
    } else if let Some(host) = &args.host {
        let server = resolve(host, args.port, args.local)?;
        let device = args.device.open()?;
        client(&device, server, args.local, &plan, &mut report, interrupt)?;
    } else {
        let device = args.device.open()?;
        let peers = args.device.peers();
        let listening = Listening::on(&device, args.local, args.port, &peers)?;
        report.line(RULE)?;
        report.listening(format_args!(
            " listening on {listening}, waiting for a client"
        ))?;
        let limits = Limits::of(args);
        server(
            &device,
            (&listening, &limits),
            plan.test,
            &mut report,
            interrupt,
        )?;
    }
    report.finish()
}

fn in_memory(args: &PerfArgs, plan: &Plan, report: &mut Report, interrupt: &Interrupt) -> Outcome {
    let ([near, far], address) = args.device.open_in_memory()?;
    report.line(
        "Both sides run in this process, over a link in memory: no NIC, no kernel, no XDP.",
    )?;
    let listening = Listening::on(&far, Some((address, 0).into()), args.port, &Peers::all())?;
    let address = listening.local_address();
    let of_server = &interrupt.without_signals();
    std::thread::scope(|scope| {
        let test = plan.test;
        let serving = scope.spawn(move || {
            let mut silent = Report::silent(test);
            of_server.guard(|| {
                server(
                    &far,
                    (&listening, &Limits::NONE),
                    test,
                    &mut silent,
                    of_server,
                )
            })
        });
        let result = interrupt.guard(|| client(&near, address, None, plan, report, interrupt));
        // Dropping it sends what ends its connections.
        drop(near);
        let served = serving
            .join()
            .unwrap_or_else(|_| Err(Failure::operation("serve", "the server side panicked")));
        match result {
            Err(failure) if failure == Failure::stopped() => served,
            result => result.and(served),
        }
    })
}

fn server(
    device: &Device,
    (listening, limits): (&Listening, &Limits),
    test: Test,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Outcome {
    let mut session = session::accept(device, listening, test, limits, interrupt)?;
    let begun = report.begin(device, &session, "server");
    match begun.and_then(|()| serve::serve(&mut session, interrupt, |row| report.row(row))) {
        Ok(()) => {
            report.connections(device)?;
            report.counters(device)?;
            session.close(interrupt, false)
        }
        Err(failure) => {
            session.fail(&failure);
            Err(failure)
        }
    }
}

fn client(
    device: &Device,
    server: SocketAddr,
    local: Option<SocketAddr>,
    plan: &Plan,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Outcome {
    let hello = Hello {
        test: plan.test,
        role: Role::Control,
        session: u64::from_le_bytes(*secret()?.first_chunk().unwrap_or(&[0; 8])),
        qps: plan.qps,
        depth: plan.depth,
        largest: plan.sizes.iter().copied().max().unwrap_or(0),
        verify: plan.verify,
        use_srq: plan.use_srq,
        buffer: NO_BUFFER,
    };
    let mut session = session::connect(device, server, local, hello, interrupt)?;
    let begun = report.begin(device, &session, "client");
    match begun.and_then(|()| measure(&mut session, plan, report, interrupt)) {
        Ok(()) => {
            report.connections(device)?;
            report.counters(device)?;
            session.close(interrupt, true)
        }
        Err(failure) => {
            session.fail(&failure);
            Err(failure)
        }
    }
}

/// Measures each size, as the client.
fn measure(
    session: &mut Session,
    plan: &Plan,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Outcome {
    for &size in &plan.sizes {
        prepare(session, size)?;
        session.control.send(&Message::Begin { size })?;
        expect(session, interrupt, |message| {
            matches!(message, Message::Ready)
        })?;
        let lasts_a_time = matches!(plan.length, Length::Time { .. });
        let mut progress = Progress::new(interrupt, lasts_a_time, report.shows_progress);
        let (row, bad) = if plan.test.is_latency() {
            latency::PingPong::new(session, size, &mut progress).measure(plan.length)?
        } else {
            let (row, bad) = bandwidth::run(session, size, plan.length, &mut progress)?;
            (Row::Bandwidth(row), bad)
        };
        let ended_early = progress.has_ended_early();
        drop(progress);
        let messages = match row {
            Row::Bandwidth(row) => row.iterations,
            Row::Latency { iterations, .. } => iterations,
        };
        session.control.send(&Message::Done { messages })?;
        let arrived = expect(session, interrupt, |message| {
            matches!(message, Message::Arrived { .. })
        })?;
        if let Message::Arrived {
            checksum,
            bad: bad_there,
            ..
        } = arrived
        {
            let bad = bad.saturating_add(bad_there);
            verify(session, size, messages, bad, checksum)?;
        }
        report.row(row)?;
        session.control.send(&Message::Figures(row.to_figures()))?;
        if ended_early {
            break;
        }
    }
    Ok(())
}

/// Fills the client's memory before a run, so that only what arrives passes the check.
fn prepare(session: &Session, size: u64) -> Outcome {
    let hello = session.hello;
    let layout = buffer::Layout::new(hello.largest, size, hello.depth, hello.verify);
    for flow in &session.flows {
        match hello.test {
            Test::WriteLat => buffer::clear(flow.incoming()?, size as usize)?,
            Test::WriteBw if hello.verify => buffer::clear(flow.outgoing()?, layout.len())?,
            Test::ReadBw | Test::ReadLat | Test::AtomicBw | Test::AtomicLat if hello.verify => {
                buffer::clear(flow.incoming()?, layout.len())?
            }
            _ => {}
        }
    }
    Ok(())
}

/// Waits for a certain message. Credits may come before it.
fn expect(
    session: &mut Session,
    interrupt: &Interrupt,
    is_it: impl Fn(&Message) -> bool,
) -> Outcome<Message> {
    loop {
        let Session { control, flows, .. } = session;
        let message = control.receive(interrupt, || {
            flows.iter_mut().try_for_each(|flow| flow.check())
        })?;
        match message {
            message if is_it(&message) => return Ok(message),
            Message::Credit { flow, count } => {
                grant(flows, flow, count)?;
            }
            other => {
                let why = format!("the server said {other:?}, which makes no sense now");
                return Err(Failure::operation("run the test", why));
            }
        }
    }
}

/// Fails if something arrived corrupt.
fn verify(session: &Session, size: u64, messages: u64, bad: u64, arrived: u32) -> Outcome {
    let hello = session.hello;
    if bad > 0 {
        let why = format!(
            "{bad} of {messages} messages of {size} octets did not arrive as they were sent"
        );
        return Err(Failure::operation("verify", why));
    }
    if hello.verify && hello.test == Test::WriteBw {
        let layout = buffer::Layout::new(hello.largest, size, hello.depth, true);
        let sum = |sum, flow: &Flow| buffer::checksum(flow.outgoing()?, layout.len(), sum);
        let sent = session.flows.iter().try_fold(0, sum)?;
        if sent != arrived {
            let why = format!(
                "after messages of {size} octets the server's memory has CRC32c {arrived:#010x}, not {sent:#010x}"
            );
            return Err(Failure::operation("verify", why));
        }
    }
    Ok(())
}

/// Where results go.
struct Report {
    test: Test,
    unit: Unit,
    /// A table on standard output.
    prints: bool,
    /// One JSON object on standard output in the end.
    json: bool,
    json_file: Option<std::path::PathBuf>,
    shows_progress: bool,
    /// `--tcp-info` was given.
    tcp_info: bool,
    /// `--counters` was given.
    counters: bool,
    info: Value,
    results: Vec<Value>,
    connections: Vec<Value>,
    workers: Vec<Value>,
}

impl Report {
    fn new(args: &PerfArgs, plan: &Plan, json: bool) -> Self {
        Self {
            unit: if args.report_gbits {
                Unit::GigaBits
            } else {
                Unit::MegaBytes
            },
            prints: !json,
            json,
            json_file: args.json_file(),
            shows_progress: true,
            tcp_info: args.tcp_info,
            counters: args.counters,
            ..Self::silent(plan.test)
        }
    }

    fn silent(test: Test) -> Self {
        Self {
            test,
            unit: Unit::MegaBytes,
            prints: false,
            json: false,
            json_file: None,
            shows_progress: false,
            tcp_info: false,
            counters: false,
            info: Value::Null,
            results: Vec::new(),
            connections: Vec::new(),
            workers: Vec::new(),
        }
    }

    fn line(&self, line: impl std::fmt::Display) -> Outcome {
        if self.prints {
            out::line(line)?;
        }
        Ok(())
    }

    /// Reports that a client may connect; on standard error if standard output is for JSON.
    fn listening(&self, line: impl std::fmt::Display) -> Outcome {
        if self.json {
            out::note(&line);
        }
        self.line(line)
    }

    fn begin(&mut self, device: &Device, session: &Session, role: &str) -> Outcome {
        let hello = &session.hello;
        let described = describe(device);
        self.info = json!({
            "test": self.test.name(),
            "role": role,
            "device": described,
            "memory": session.memory,
            "qps": hello.qps,
            "tx_depth": hello.depth,
            "verified": hello.verify,
            "use_srq": hello.use_srq,
        });
        let verified = match self.test {
            _ if !hello.verify => "no (-v does)",
            // Of messages that overwrite each other, the last one counts.
            Test::WriteBw => "what lies in memory in the end",
            _ => "every message",
        };
        self.line(RULE)?;
        self.line(format_args!("                    {}", self.test.title()))?;
        self.line(format_args!(" Device          : {described}"))?;
        self.line(format_args!(" Memory          : {}", session.memory))?;
        self.line(format_args!(" Number of qps   : {}", hello.qps))?;
        if !self.test.is_latency() {
            self.line(format_args!(" TX depth        : {}", hello.depth))?;
        }
        if hello.use_srq {
            self.line(" Using SRQ       : ON")?;
        }
        self.line(format_args!(" Data verified   : {verified}"))?;
        self.line(RULE)?;
        self.line(columns(self.test, self.unit))
    }

    fn row(&mut self, row: Row) -> Outcome {
        self.results.push(row.to_json(self.unit));
        self.line(row.to_line(self.unit))
    }

    /// Prints the state of TCP of each connection, if that was asked for.
    fn connections(&mut self, device: &Device) -> Outcome {
        if !self.tcp_info {
            return Ok(());
        }
        let connections = tcp_info::connections(device)?;
        self.line(RULE)?;
        for connection in connections {
            self.line(tcp_info::to_line(&connection))?;
            self.connections.push(tcp_info::to_json(&connection));
        }
        Ok(())
    }

    /// Prints the counters of each worker, if that was asked for.
    fn counters(&mut self, device: &Device) -> Outcome {
        if !self.counters {
            return Ok(());
        }
        self.line(RULE)?;
        for worker in counters::of_workers(device)? {
            for line in counters::to_lines(&worker) {
                self.line(line)?;
            }
            self.workers.push(counters::to_json(&worker));
        }
        Ok(())
    }

    fn finish(mut self) -> Outcome {
        let mut json = json!({ "test_info": self.info, "results": self.results });
        if self.tcp_info {
            json["tcp_info"] = std::mem::take(&mut self.connections).into();
        }
        if self.counters {
            json["workers"] = std::mem::take(&mut self.workers).into();
        }
        if let Some(file) = &self.json_file {
            fs::write(file, format!("{json:#}\n")).doing(format!("write {}", file.display()))?;
        }
        self.line(RULE)?;
        if self.json {
            out::line(format_args!("{json:#}"))?;
        }
        Ok(())
    }
}
