//! The server of rping.

use std::net::SocketAddr;
use std::time::Duration;

use rnic_verbs::{Access, ConnectRequest, Device, EndReason, Mr, SendRequest, WcOpcode};

use super::args::{BadRkey, RpingArgs};
use super::end::{End, Summary, ended, quoted};
use super::info::{Info, text, wrong_rkey};
use super::peer::{Next, Peer, memory, options};
use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::listen::Listening;
use crate::out::printable;

/// The largest ping: rping's own limit.
const LARGEST: u32 = 64 << 10;

/// Serves one client.
pub(super) fn run(
    device: &Device,
    listening: &Listening,
    args: &RpingArgs,
    interrupt: &Interrupt,
) -> Outcome<Summary> {
    let request = loop {
        interrupt.check()?;
        if let Some(request) = listening
            .next_request(Duration::from_millis(100))
            .doing("wait for a client")?
        {
            break request;
        }
    };
    args.debug(format_args!(
        "{} asks to connect: MPA revision {}, IRD {}, ORD {}, private data {}",
        request.peer(),
        request.mpa_revision(),
        request.ird(),
        request.ord(),
        quoted(request.private_data())
    ));
    if let Some(words) = &args.reject {
        return reject(request, words);
    }
    let client = request.peer();
    let mut peer = Peer::new(device, interrupt)?;
    let buffer = memory(&peer.pd, LARGEST as usize, Access::LOCAL_WRITE)?;
    request
        .accept(&mut peer.qp, options(args))
        .doing("accept the client")?;
    let mut pings = 0;
    loop {
        match pong(&mut peer, &buffer, args, pings == 0)? {
            None => pings += 1,
            Some(reason) => return over(&reason, client, pings, args),
        }
    }
}

fn reject(request: ConnectRequest, words: &str) -> Outcome<Summary> {
    let said = request.private_data().to_vec();
    request
        .reject(words.as_bytes())
        .doing("reject the client")?;
    Ok(Summary {
        pings: 0,
        end: End::Rejected(said),
    })
}

/// Returns the summary of a connection that the client closed, or why it is a failure.
fn over(reason: &EndReason, client: SocketAddr, pings: u64, args: &RpingArgs) -> Outcome<Summary> {
    match reason {
        EndReason::Peer if args.bad_rkey.is_some() => {
            let why = "the client closed the connection without a Terminate message";
            Err(Failure::operation("wrong rkey", why))
        }
        EndReason::Peer if pings == 0 => {
            let why = "it closed the connection before its first ping";
            Err(Failure::operation(format!("serve {client}"), why))
        }
        EndReason::Peer => Ok(Summary {
            pings,
            end: End::Closed,
        }),
        _ => Err(ended(reason)),
    }
}

/// Serves one ping. Returns why the connection ended, if it did.
fn pong(
    peer: &mut Peer<'_>,
    buffer: &Mr,
    args: &RpingArgs,
    is_first: bool,
) -> Outcome<Option<EndReason>> {
    // The wrong rkey is used once.
    let rkey = |info: Info, operation| {
        let wrong = is_first && args.bad_rkey == Some(operation);
        if wrong {
            Info {
                rkey: wrong_rkey(info.rkey),
                ..info
            }
        } else {
            info
        }
    };
    let source = match peer.receive()? {
        Next::Got(info) => rkey(info, BadRkey::Read),
        Next::Ended(reason) => return Ok(Some(reason)),
    };
    if source.size == 0 || source.size > LARGEST {
        let why = format!(
            "the client wants a ping of {} octets; 1 to {LARGEST} are possible",
            source.size
        );
        return Err(Failure::operation("ping", why));
    }
    args.debug(format_args!(
        "reading {} octets at {:#x}, rkey {:#010x}",
        source.size, source.address, source.rkey
    ));
    let piece = [buffer.sge(0, source.size)];
    let read = SendRequest::read(source.remote()).memory(&piece);
    if let Next::Ended(reason) = peer.perform(&read, WcOpcode::Read)? {
        return Ok(Some(reason));
    }
    let mut octets = vec![0; source.size as usize];
    buffer.read(0, &mut octets).doing("read the ping")?;
    let ping = text(&octets);
    if args.verbose {
        let ping = printable(&String::from_utf8_lossy(ping));
        args.show(format_args!("server ping data: {ping}"))?;
    }
    if let Next::Ended(reason) = peer.send(Info::default())? {
        return Ok(Some(reason));
    }
    let sink = match peer.receive()? {
        Next::Got(info) => rkey(info, BadRkey::Write),
        Next::Ended(reason) => return Ok(Some(reason)),
    };
    // As rping does: the text and its NUL.
    let length = (ping.len() as u32 + 1).min(source.size).min(sink.size);
    args.debug(format_args!(
        "writing {length} octets to {:#x}, rkey {:#010x}",
        sink.address, sink.rkey
    ));
    let piece = [buffer.sge(0, length)];
    let write = SendRequest::write(sink.remote()).memory(&piece);
    if let Next::Ended(reason) = peer.perform(&write, WcOpcode::Write)? {
        return Ok(Some(reason));
    }
    Ok(match peer.send(Info::default())? {
        Next::Got(()) => None,
        Next::Ended(reason) => Some(reason),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rnic_verbs::{ConnectionEvent, Peers, Qp};

    use super::*;
    use crate::cli::{Cli, Command};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Serves a client that runs `client` once it has begun to connect.
    fn serve(client: impl FnOnce(Qp)) -> Failure {
        let line = "rnic-ctl rping -s --in-memory --thread".split(' ');
        let Command::Rping(args) = Cli::parse_from(line).command else {
            panic!()
        };
        let ([near, far], address) = args.device.open_in_memory().unwrap();
        let to = SocketAddr::new(address, 7174);
        let listening =
            Listening::on(&far, Some((address, 0).into()), to.port(), &Peers::all()).unwrap();
        std::thread::scope(|scope| {
            let interrupt = Interrupt::default();
            let args = &args;
            let serving = scope.spawn(move || run(&far, &listening, args, &interrupt));
            let mut peer = Peer::new(&near, &Interrupt::default()).unwrap().qp;
            peer.connect(to, None, options(args)).unwrap();
            client(peer);
            serving.join().unwrap().unwrap_err()
        })
    }

    #[test]
    fn a_client_that_goes_before_its_first_ping_is_a_failure() {
        let closed = serve(|mut client| {
            let event = client.next_event(PATIENCE).unwrap();
            assert!(matches!(event, Some(ConnectionEvent::Established(_))));
            client.disconnect().unwrap();
            client.next_event(PATIENCE).unwrap();
        });
        assert!(closed.why.contains("before its first ping"), "{closed}");
    }

    #[test]
    fn a_client_that_goes_in_start_up_ends_the_wait_for_it() {
        let line = "rnic-ctl rping -s --in-memory --thread".split(' ');
        let Command::Rping(args) = Cli::parse_from(line).command else {
            panic!()
        };
        let ([near, far], address) = args.device.open_in_memory().unwrap();
        let listener = far.listen(SocketAddr::new(address, 0)).unwrap();
        let interrupt = Interrupt::default();
        let mut client = Peer::new(&near, &interrupt).unwrap().qp;
        let to = listener.local_address();
        client.connect(to, None, options(&args)).unwrap();
        let request = listener.next_request(PATIENCE).unwrap().unwrap();
        drop(client);
        let gone = || {
            let snapshot = far.snapshot(PATIENCE).unwrap().unwrap();
            snapshot.connections.is_empty()
        };
        while !gone() {
            std::thread::yield_now();
        }
        let mut server = Peer::new(&far, &interrupt).unwrap();
        request.accept(&mut server.qp, options(&args)).unwrap();
        assert!(matches!(
            server.receive(),
            Ok(Next::Ended(EndReason::Reset))
        ));
    }
}
