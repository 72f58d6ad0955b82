//! `rnic-ctl conn`: the connections of clients, and of processes with devices of their own.

use std::process::ExitCode;

use clap::Subcommand;
use rnic_verbs::resource::{ProtectionResource, Resource};
use serde_json::Value;

use super::access::{ObjectArgs, Style};
use super::asked::{self, Asking};
use super::filter::CONNECTIONS;
use super::line::Line;
use super::said;
use crate::failure::Outcome;

/// The most SPIs of a line. Two are usual.
const MOST_SPIS: usize = 16;

/// Shows RDMA connections, as `ss` does those of the kernel.
///
/// They are those of rnicd's clients, and those of the processes in this network namespace that use
/// sockets of the kernel or have an interface for themselves. Of the latter a line has "via": "tcp",
/// "sctp" or "xdp"; --socket leaves them out.
///
/// A line has what rnicd knows of the client, or the kernel of the process, and behind "client:"
/// what the program says of its connection, which nobody can check. With -d lines below have what was agreed on in MPA
/// start-up, and TCP in the words of `ss -ti`: times in milliseconds, windows in segments. -j has
/// sizes and windows in octets, rates in octets a second. A client whose program drives its
/// connections by polling answers when it polls next. If a client does not answer, the exit code is
/// 1, and -j has an object with "error" in its place. Users other than root see their own.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show the connections
    #[command(visible_alias = "list")]
    Show {
        /// Show only what is so: dev NAME, port N, pid N, user NAME, qpn N, state STATE
        #[arg(value_name = "FILTER")]
        filter: Vec<String>,
    },
}

/// Runs the command.
pub(crate) fn run(args: &ObjectArgs<Verb, Asking>, style: Style) -> Outcome<ExitCode> {
    let words = match &args.verb {
        Some(Verb::Show { filter }) => filter.as_slice(),
        None => &[],
    };
    let filter = CONNECTIONS.parse(words)?;
    asked::show(&args.access, style, ("connection", &filter), line)
}

fn line(resource: Resource) -> Option<Line> {
    let Resource::Connection(connection) = resource else {
        return None;
    };
    let brief = said::line(&*connection, &[]).without(&["mpa", "protection", "tcp"]);
    let brief = match &connection.protection {
        Some(protection) => brief.behind("protection", protection_line(protection)),
        None => brief.with("protection", Value::Null),
    };
    let with_mpa = match connection.mpa {
        Some(mpa) => brief.below("mpa", said::line(&mpa, &[])),
        None => brief.with("mpa", Value::Null),
    };
    let mut tcp = connection.tcp;
    let fields = said::line(&tcp, &[]);
    tcp.congestion = said::word(&tcp.congestion);
    Some(with_mpa.below_as("tcp", fields, &tcp.to_string()))
}

fn protection_line(protection: &ProtectionResource) -> Line {
    let spi = |spi: u32| format!("{spi:#010x}");
    let mut inbound = protection.spi_in.clone();
    inbound.truncate(MOST_SPIS);
    let inbound = inbound.into_iter().map(spi).collect::<Vec<_>>().join(",");
    said::line(protection, &["required"])
        .without(&["spi_out", "spi_in"])
        .with("spi_out", protection.spi_out.map(spi))
        .with("spi_in", (!inbound.is_empty()).then_some(inbound))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(protection: Option<ProtectionResource>) -> Line {
        let said = json!({
            "type": "connection", "local": "192.0.2.1:7471", "remote": "192.0.2.2:40000",
            "state": "Established", "phase": "established", "protection": protection,
        });
        line(serde_json::from_value(said).unwrap()).unwrap()
    }

    #[test]
    fn protection_is_shown_with_its_spis() {
        let esp = ProtectionResource {
            state: "esp".into(),
            required: false,
            mode: Some("transport".into()),
            algorithm: Some("rfc4106(gcm(aes))".into()),
            spi_out: Some(0xc0ce_0085),
            spi_in: vec![0x1002, 0x1004],
        };
        let esp = shown(Some(esp));
        let text = esp.text(false);
        let words = " protection: state esp mode transport algorithm rfc4106(gcm(aes)) \
                     spi_out 0xc0ce0085 spi_in 0x00001002,0x00001004";
        assert!(text.ends_with(words), "{text}");
        assert_eq!(esp.json()["protection"]["spi_out"], "0xc0ce0085");

        let missing = ProtectionResource {
            state: "missing".into(),
            required: true,
            ..ProtectionResource::default()
        };
        let missing = shown(Some(missing));
        let text = missing.text(false);
        assert!(text.ends_with(" protection: state missing"), "{text}");
        let expected = json!({"state": "missing", "required": true, "mode": null,
            "algorithm": null, "spi_out": null, "spi_in": null});
        assert_eq!(missing.json()["protection"], expected);

        let plain = shown(None);
        assert!(!plain.text(true).contains("protection"));
        assert_eq!(plain.json()["protection"], Value::Null);
    }
}
