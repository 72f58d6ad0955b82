//! What has nothing to do with RDMA: the command line of the examples, and how they show errors and
//! what a peer says.

use std::error::Error;
use std::time::Duration;

/// A result, or why there is none.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A side that does not answer for so long counts as gone.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Runs one side of an example, `ROLE NETDEV ADDRESS:PORT [WHAT]`, and ends the process with a
/// message if that fails.
pub(crate) fn run(usage: &str, side: impl FnOnce(&[&str]) -> Option<Outcome<()>>) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = side(&words).unwrap_or_else(|| Err(format!("usage: {usage}").into()));
    if let Err(why) = done {
        eprintln!("{why}");
        std::process::exit(1);
    }
}

/// Returns what a peer said, without characters that a terminal would obey and without zeros at the
/// end.
pub(crate) fn text(octets: &[u8]) -> String {
    let text = String::from_utf8_lossy(octets);
    text.trim_end_matches('\0').escape_debug().to_string()
}
