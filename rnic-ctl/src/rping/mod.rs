//! `rnic-ctl rping`: the ping of rdma-core's rping, over Send, RDMA Read and RDMA Write.
//!
//! For each ping the client sends the address of its text. The server reads the text and sends a
//! go-ahead. The client sends the address of another buffer. The server writes the text there and
//! sends another go-ahead.

mod args;
mod client;
mod end;
mod info;
mod peer;
mod server;

use rnic_verbs::Peers;
use serde_json::{Value, json};

pub(crate) use self::args::RpingArgs;
use self::end::{End, Summary};
use crate::connect::resolve;
use crate::device::describe;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::listen::Listening;
use crate::out;

/// Runs the command.
pub(crate) fn run(args: &RpingArgs, json: bool, interrupt: &Interrupt) -> Outcome {
    let args = &RpingArgs {
        json,
        ..args.clone()
    };
    let summary = if args.in_memory {
        in_memory(args, interrupt)?
    } else if args.server {
        let device = args.device.open()?;
        let peers = args.device.peers();
        let listening = Listening::on(&device, args.local()?, args.port, &peers)?;
        args.show(format_args!(
            "listening on {listening}, {}",
            describe(&device)
        ))?;
        server::run(&device, &listening, args, interrupt)?
    } else {
        let host = args.address.as_deref().unwrap_or_default();
        let server = resolve(host, args.port, args.source)?;
        let device = args.device.open()?;
        args.debug(format_args!(
            "connecting to {server}, {}",
            describe(&device)
        ));
        client::run(&device, server, args, interrupt)?
    };
    print(args, &summary)
}

/// Runs both sides in this process.
fn in_memory(args: &RpingArgs, interrupt: &Interrupt) -> Outcome<Summary> {
    let ([near, far], address) = args.device.open_in_memory()?;
    args.debug("both sides run in this process, over a link in memory");
    let listening = Listening::on(&far, Some((address, 0).into()), args.port, &Peers::all())?;
    let address = listening.local_address();
    std::thread::scope(|scope| {
        // The diagnostics are for the side that the command line names.
        let quiet = RpingArgs {
            verbose: false,
            ..args.clone()
        };
        let obedient = RpingArgs {
            reject: None,
            bad_rkey: None,
            ..quiet.clone()
        };
        let (at_server, at_client) = if args.server {
            (args.clone(), obedient)
        } else {
            (
                RpingArgs {
                    bad_rkey: None,
                    ..quiet
                },
                args.clone(),
            )
        };
        let serving = scope.spawn(move || {
            interrupt.guard(|| server::run(&far, &listening, &at_server, interrupt))
        });
        let as_client = interrupt.guard(|| client::run(&near, address, &at_client, interrupt));
        // Dropping it sends what ends its connections.
        drop(near);
        let as_server = serving
            .join()
            .unwrap_or_else(|_| Err(Failure::operation("serve", "the server side panicked")));
        if args.server { as_server } else { as_client }
    })
}

fn print(args: &RpingArgs, summary: &Summary) -> Outcome {
    let role = if args.server { "server" } else { "client" };
    if args.json {
        return out::line(format_args!("{:#}", to_json(role, summary)));
    }
    let pings = summary.pings;
    match &summary.end {
        End::Closed if args.verbose => {
            let end = summary.end.in_words();
            out::line(format_args!("{role}: {pings} pings; {end}"))
        }
        End::Closed => Ok(()),
        _ => out::line(format_args!("{role}: {}", summary.end.in_words())),
    }
}

fn to_json(role: &str, summary: &Summary) -> Value {
    json!({ "role": role, "pings": summary.pings, "end": summary.end.in_words() })
}
