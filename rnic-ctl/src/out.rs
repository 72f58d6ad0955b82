//! Standard output and standard error. If the reader of standard output is gone, the command ends
//! quietly, as in `yes | head`.

use std::fmt::Display;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write, stderr, stdout};

use crate::failure::{Failure, Outcome};

/// Returns text of a peer in a form that is safe on a terminal and in JSON: control characters and
/// invisible ones are escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, ' '..='~') {
            out.push(char);
        } else {
            let _ = write!(out, "{}", char.escape_debug());
        }
    }
    out
}

/// Prints a result, as a line of standard output.
pub(crate) fn line(text: impl Display) -> Outcome {
    write(&format!("{text}\n"))
}

/// Prints a result of several lines.
pub(crate) fn write(text: &str) -> Outcome {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|why| match why.kind() {
        ErrorKind::BrokenPipe => Failure::closed_pipe(),
        _ => Failure::operation("write to standard output", why),
    })
}

/// Prints a note on standard error. A missing reader is no error.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_cannot_steer_a_terminal() {
        assert_eq!(printable("so \"it\" is: [\\]^_`"), "so \"it\" is: [\\]^_`");
        assert_eq!(printable("Grüße, 世界"), "Grüße, 世界");
        // Escape sequences, C1 controls, line ends, overwriting, and text that runs the other way.
        for wicked in [
            "\x1b]0;title\x07",
            "\u{9b}2J",
            "\r\n",
            "\x08\x7f",
            "\u{202e}",
            "\u{200b}",
            "\0",
        ] {
            let printed = printable(wicked);
            assert!(
                printed.chars().all(|char| matches!(char, ' '..='~')),
                "{printed:?}"
            );
        }
    }
}
