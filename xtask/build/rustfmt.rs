//! A program in the place of rustfmt.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Makes a program that prints what it reads, in this directory. Nobody reads a skeleton, and a
/// minimal toolchain has no rustfmt: only its proxy, which fails. (A path to nothing would do too,
/// but in QEMU's emulation of single programs it looks as if it had started.)
pub(crate) fn stand_in(directory: &Path) -> PathBuf {
    let program = directory.join("rustfmt");
    let script = "#!/bin/sh\ncode=$(cat)\nprintf '%s\\n' \"$code\"\n";
    let written = fs::write(&program, script)
        .and_then(|()| fs::set_permissions(&program, Permissions::from_mode(0o755)));
    if let Err(error) = written {
        panic!("cannot write {}: {error}", program.display());
    }
    program
}
