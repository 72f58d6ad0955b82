//! The client of rping.

use std::net::SocketAddr;

use rnic_verbs::{Access, ConnectionOptions, Device, EndReason, Mr};

use super::args::{BadRkey, RpingArgs};
use super::end::{End, Summary, ended, quoted};
use super::info::{Info, ping_text, text, wrong_rkey};
use super::peer::{Next, Peer, memory, options};
use crate::connect::{connect, local_on};
use crate::failure::{Doing, Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::out::printable;

/// Pings a server.
pub(super) fn run(
    device: &Device,
    server: SocketAddr,
    args: &RpingArgs,
    interrupt: &Interrupt,
) -> Outcome<Summary> {
    let mut peer = Peer::new(device, interrupt)?;
    let size = args.size as usize;
    let source = memory(&peer.pd, size, Access::REMOTE_READ)?;
    let sink = memory(&peer.pd, size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let local = args.source.map(|address| local_on(device, address, 0));
    let private_data = args.private_data.clone().unwrap_or_default().into_bytes();
    let connecting = ConnectionOptions {
        private_data,
        ..options(args)
    };
    let rejected = |said: &[u8]| {
        let why = format!("rejected by the server; private data: {}", quoted(said));
        Failure::operation(format!("connect to {server}"), why)
    };
    let established = connect(&mut peer.qp, server, local, connecting, interrupt, rejected)?;
    args.debug(format_args!(
        "connected to {server}, IRD {}, ORD {}",
        established.ird, established.ord
    ));
    let mut pings = 0;
    while args.count == 0 || pings < args.count {
        match ping(&mut peer, &source, &sink, pings, args) {
            Ok(None) => pings += 1,
            Ok(Some(reason)) => return Err(ended(&reason)),
            // Ctrl-C ends an endless run in order.
            Err(failure) => {
                peer.disconnect()?;
                return Err(failure);
            }
        }
    }
    peer.disconnect()?;
    Ok(Summary {
        pings,
        end: End::Closed,
    })
}

/// Runs one ping. Returns why the connection ended, if it did.
fn ping(
    peer: &mut Peer<'_>,
    source: &Mr,
    sink: &Mr,
    number: u64,
    args: &RpingArgs,
) -> Outcome<Option<EndReason>> {
    let sent = ping_text(number, args.size as usize);
    source.write(0, &sent).doing("write the ping")?;
    args.debug(format_args!(
        "ping {number}: read it at {:#x}, rkey {}",
        source.base(),
        source.stag()
    ));
    if let Some(reason) = offer(peer, source, args, BadRkey::Read)? {
        return Ok(Some(reason));
    }
    args.debug(format_args!(
        "ping {number}: write it back to {:#x}, rkey {}",
        sink.base(),
        sink.stag()
    ));
    if let Some(reason) = offer(peer, sink, args, BadRkey::Write)? {
        return Ok(Some(reason));
    }
    let mut back = vec![0; sent.len()];
    sink.read(0, &mut back).doing("read the ping")?;
    if args.validate && back != sent {
        let first = sent
            .iter()
            .zip(&back)
            .position(|(sent, back)| sent != back)
            .unwrap_or_default();
        return Err(Failure::operation(
            format!("ping {number}"),
            format!("came back different from octet {first} on"),
        ));
    }
    if args.verbose {
        let text = printable(&String::from_utf8_lossy(text(&back)));
        args.show(format_args!("ping data: {text}"))?;
    }
    Ok(None)
}

/// Advertises a buffer to the server, and waits until it has used it.
fn offer(
    peer: &mut Peer<'_>,
    mr: &Mr,
    args: &RpingArgs,
    operation: BadRkey,
) -> Outcome<Option<EndReason>> {
    let rkey = mr.stag().0;
    let rkey = if args.bad_rkey == Some(operation) {
        wrong_rkey(rkey)
    } else {
        rkey
    };
    let info = Info {
        address: mr.base(),
        rkey,
        size: mr.len() as u32,
    };
    if let Next::Ended(reason) = peer.send(info)? {
        return Ok(Some(reason));
    }
    match peer.receive()? {
        Next::Got(_) => Ok(None),
        Next::Ended(reason) => Ok(Some(reason)),
    }
}
