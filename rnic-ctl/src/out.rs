//! Standard output and standard error. What nobody reads any more ends the command quietly, as it does `yes | head`.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};

use crate::failure::{Failure, Outcome};

/// A result, as a line of standard output.
pub(crate) fn line(text: impl Display) -> Outcome {
    write(&format!("{text}\n"))
}

/// A result of several lines.
pub(crate) fn write(text: &str) -> Outcome {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|why| match why.kind() {
        ErrorKind::BrokenPipe => Failure::closed_pipe(),
        _ => Failure::operation("write to standard output", why),
    })
}

/// A word aside, on standard error: that nobody reads it is no reason to stop.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(stderr(), "{text}");
}
