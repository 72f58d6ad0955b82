//! rnic: runs unmodified RDMA programs.

use std::process::ExitCode;

fn main() -> ExitCode {
    rnic_ctl::rnic()
}
