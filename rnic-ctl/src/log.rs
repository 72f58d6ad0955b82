//! The log of the libraries, on standard error: off, unless `RUST_LOG` asks for it.

use std::io::{self, Write, stderr};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::out;

/// Standard error. A missing reader is no error.
struct Quiet;

impl Write for Quiet {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        let _ = stderr().write_all(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes to standard error what `RUST_LOG` asks for. Reports a filter that is not understood.
pub(crate) fn install() {
    let wanted = EnvFilter::builder()
        .with_default_directive(LevelFilter::OFF.into())
        .from_env();
    match wanted {
        // Without a subscriber an event costs one load and a compare.
        Ok(filter) if filter.max_level_hint() == Some(LevelFilter::OFF) => {}
        Ok(filter) => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(|| Quiet)
            .init(),
        Err(why) => out::note(format_args!("rnic-ctl: RUST_LOG is not understood: {why}")),
    }
}
