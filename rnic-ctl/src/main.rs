//! rnic-ctl: administers, measures and diagnoses rnic.

use std::process::ExitCode;

fn main() -> ExitCode {
    rnic_ctl::rnic_ctl()
}
