//! libbpf's warnings, for error messages instead of the standard error stream.

use std::sync::{Mutex, PoisonError};

use libbpf_rs::PrintLevel;

/// Octets kept: enough for the end of a verifier's log.
const KEPT: usize = 4096;

static WARNINGS: Mutex<String> = Mutex::new(String::new());

fn keep(_: PrintLevel, text: String) {
    let mut warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    warnings.push_str(&text);
    let mut excess = warnings.len().saturating_sub(KEPT);
    while !warnings.is_char_boundary(excess) {
        excess += 1;
    }
    warnings.drain(..excess);
}

/// Starts to capture libbpf's warnings.
pub(crate) fn capture() {
    WARNINGS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
}

/// Returns the warnings captured since, each line indented.
pub(super) fn captured() -> String {
    let warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    warnings.lines().map(|line| format!("\n  {line}")).collect()
}
