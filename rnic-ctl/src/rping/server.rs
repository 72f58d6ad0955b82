//! The server of rping.

use std::time::Duration;

use rnic_verbs::{Access, ConnectRequest, Device, EndReason, Mr, SendRequest, WcOpcode};

use super::args::{BadRkey, RpingArgs};
use super::info::{Info, text, wrong_rkey};
use super::peer::{Next, Peer, memory, options};
use super::{End, Summary, ended, quoted};
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
    let mut peer = Peer::new(device, interrupt)?;
    let buffer = memory(&peer.pd, LARGEST as usize, Access::LOCAL_WRITE)?;
    request
        .accept(&mut peer.qp, options(args))
        .doing("accept the client")?;
    let mut pings = 0;
    loop {
        match pong(&mut peer, &buffer, args, pings == 0)? {
            None => pings += 1,
            Some(reason) => return over(&reason, pings, args),
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

/// The connection ended: in order where the client has had enough.
fn over(reason: &EndReason, pings: u64, args: &RpingArgs) -> Outcome<Summary> {
    match reason {
        EndReason::Peer if args.bad_rkey.is_some() => {
            let why = "the client closed the connection without a Terminate message";
            Err(Failure::operation("wrong rkey", why))
        }
        EndReason::Peer => Ok(Summary {
            pings,
            end: End::Closed,
        }),
        _ => Err(ended(reason)),
    }
}

/// One ping. Returns why the connection ended, if it did.
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
