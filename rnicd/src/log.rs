//! The log, on standard error, where the journal reads it. `RUST_LOG` says how much of it there is.

use std::io::stderr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, ParseError};

/// Writes what happens to standard error: what `RUST_LOG` asks for, or what an administrator should know.
pub(crate) fn install() -> Result<(), ParseError> {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    let filter = match std::env::var("RUST_LOG") {
        Ok(wanted) => filter.parse(wanted)?,
        Err(_) => filter.parse("")?,
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(false);
    // The journal has the time of each line.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init();
    } else {
        log.init();
    }
    Ok(())
}
