//! How rping ended, in words and as JSON.

use rnic_verbs::{EndReason, TerminateControl};
use serde_json::json;

use crate::failure::Failure;
use crate::out;

/// The result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// Pings there and back.
    pub pings: u64,
    /// How the connection ended.
    pub end: End,
}

/// How the connection ended, if that is no failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// In order.
    Closed,
    /// This side rejected the client, which had sent this private data.
    Rejected(Vec<u8>),
}

impl End {
    pub(super) fn in_words(&self) -> String {
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
        EndReason::TerminateReceived { control, .. } => Some((false, *control)),
        _ => None,
    }
}

/// Returns private data as text if it is printable, else as octets.
pub(super) fn quoted(octets: &[u8]) -> String {
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
pub(super) fn ended(reason: &EndReason) -> Failure {
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
        let failure = ended(&EndReason::TerminateReceived {
            control,
            quoted: None,
        });
        let words = "Terminate received: layer 1, type 1, code 0x00: ";
        assert!(failure.why.starts_with(words), "{failure}");
        let json = failure.to_json();
        assert_eq!(json["terminate"]["layer"], 1);
        assert_eq!(json["terminate"]["direction"], "received");
    }
}
