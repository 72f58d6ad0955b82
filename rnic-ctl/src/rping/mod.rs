//! `rnic-ctl rping`: the ping of rdma-core's rping, over Send, RDMA Read and RDMA Write.
//!
//! For each ping the client sends the address of its text. The server reads the text and sends a go-ahead. The client sends
//! the address of another buffer. The server writes the text there and sends another go-ahead.

mod args;
mod client;
mod info;
mod peer;
mod server;

use std::net::IpAddr;

use rnic_verbs::{EndReason, Peers, TerminateControl};
use serde_json::{Value, json};

pub(crate) use self::args::RpingArgs;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::listen::Listening;
use crate::out;
use crate::perf::resolve;

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Pings there and back.
    pub pings: u64,
    /// How the connection ended.
    pub end: End,
}

/// How the connection ended, if that is no failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In order.
    Closed,
    /// This side rejected the client, which had sent this private data.
    Rejected(Vec<u8>),
}

/// Runs the command.
pub(crate) fn run(args: &RpingArgs, json: bool, interrupt: &Interrupt) -> Outcome {
    let args = &RpingArgs {
        json,
        ..args.clone()
    };
    let summary = if args.in_memory {
        in_memory(args, interrupt)?
    } else if args.server {
        let opened = args.device.open()?;
        let peers = args.device.peers();
        let listening = Listening::on(&opened.device, args.local()?, args.port, &peers)?;
        args.show(format_args!(
            "listening on {listening}, {}",
            opened.description
        ))?;
        server::run(&opened.device, &listening, args, interrupt)?
    } else {
        let host = args.address.as_deref().unwrap_or_default();
        let server = resolve(host, args.port, args.source)?;
        let opened = args.device.open()?;
        args.debug(format_args!(
            "connecting to {server}, {}",
            opened.description
        ));
        client::run(&opened.device, server, args, interrupt)?
    };
    print(args, &summary)
}

/// Runs both sides in this process.
fn in_memory(args: &RpingArgs, interrupt: &Interrupt) -> Outcome<Summary> {
    let ([near, far], address) = args.device.open_in_memory()?;
    args.debug("both sides run in this process, over a link in memory");
    let listening = Listening::on(&far.device, Some(address), args.port, &Peers::all())?;
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
            interrupt.guard(|| server::run(&far.device, &listening, &at_server, interrupt))
        });
        let as_client =
            interrupt.guard(|| client::run(&near.device, address, &at_client, interrupt));
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

impl End {
    fn in_words(&self) -> String {
        match self {
            Self::Closed => "disconnected in order".into(),
            Self::Rejected(said) => format!("rejected the client, who had said {}", quoted(said)),
        }
    }
}

/// Returns layer, type and code of a Terminate message with their meaning.
fn in_words(control: TerminateControl) -> String {
    let TerminateControl {
        layer,
        error_type,
        code,
    } = control;
    let meaning = control.meaning().unwrap_or("unknown");
    format!("layer {layer}, type {error_type}, code 0x{code:02x}: {meaning}")
}

/// Returns the Terminate message in the end of a connection, and whether this side sent it.
fn terminate(reason: &EndReason) -> Option<(bool, TerminateControl)> {
    match reason {
        EndReason::TerminateSent { control, .. } => Some((true, *control)),
        EndReason::TerminateReceived { control } => Some((false, *control)),
        _ => None,
    }
}

/// Returns private data as text if it is printable, else as octets.
fn quoted(octets: &[u8]) -> String {
    let text = octets.strip_suffix(&[0]).unwrap_or(octets);
    match std::str::from_utf8(text) {
        _ if octets.is_empty() => "nothing".into(),
        // Text with invisible or right-to-left characters is shown as octets.
        Ok(text) if !text.is_empty() && out::printable(text) == text => {
            format!("\"{text}\"")
        }
        _ => {
            let octets: Vec<String> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
            octets.join(" ")
        }
    }
}

/// Makes a failure of the end of a connection.
fn ended(reason: &EndReason) -> Failure {
    let what = "connection ended";
    let Some((sent, control)) = terminate(reason) else {
        return Failure::operation(what, reason);
    };
    let direction = if sent { "sent" } else { "received" };
    let mut why = format!("Terminate {direction}: {}", in_words(control));
    if let EndReason::TerminateSent { error, .. } = reason {
        why = format!("{why} ({error})");
    }
    Failure::operation(what, why).with(
        "terminate",
        json!({
            "direction": direction,
            "layer": control.layer,
            "type": control.error_type,
            "code": control.code,
            "meaning": control.meaning(),
        }),
    )
}

impl RpingArgs {
    /// Returns the address to listen on.
    fn local(&self) -> Outcome<Option<IpAddr>> {
        let Some(address) = &self.address else {
            return Ok(self.source);
        };
        Ok(Some(resolve(address, self.port, None)?.ip()))
    }

    /// Prints an intermediate result.
    fn show(&self, what: impl std::fmt::Display) -> Outcome {
        if self.json {
            out::note(what);
            return Ok(());
        }
        out::line(what)
    }

    fn debug(&self, what: impl std::fmt::Display) {
        if self.debug {
            out::note(format_args!("rping: {what}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_is_readable() {
        assert_eq!(quoted(b""), "nothing");
        assert_eq!(quoted(b"go away"), "\"go away\"");
        assert_eq!(quoted(b"go away\0"), "\"go away\"");
        assert_eq!(quoted(&[0, 0, 0, 0]), "00 00 00 00");
        assert_eq!(quoted(&[0xff, 1]), "ff 01");
        assert_eq!(quoted("\u{9b}2J".as_bytes()), "c2 9b 32 4a");
        assert_eq!(quoted("\u{202e}ab".as_bytes()), "e2 80 ae 61 62");
    }

    #[test]
    fn terminates_are_told_in_full() {
        let control = TerminateControl {
            layer: 1,
            error_type: 1,
            code: 0,
        };
        let failure = ended(&EndReason::TerminateReceived { control });
        let words = "Terminate received: layer 1, type 1, code 0x00: ";
        assert!(failure.why.starts_with(words), "{failure}");
        let json = failure.to_json();
        assert_eq!(json["terminate"]["layer"], 1);
        assert_eq!(json["terminate"]["direction"], "received");
    }
}
