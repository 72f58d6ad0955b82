//! Compares what the libraries export with those of this system's rdma-core.

use std::path::PathBuf;
use std::process::Command;

use crate::exports::exported;
use crate::libraries::library;
use crate::{Build, Failure};

/// Fails where a library of the system exports by default what ours does not.
pub(crate) fn compare(build: &Build) -> Result<(), Failure> {
    let mut missing = Vec::new();
    for name in ["libibverbs", "librdmacm"] {
        let of_system = of_system(name, build.architecture())?;
        let (theirs, ours) = (exported(&of_system)?, exported(&library(build, name))?);
        println!(
            "{name}.so.1: {} symbols; {}: {}",
            ours.len(),
            of_system.display(),
            theirs.len()
        );
        missing.extend(
            theirs
                .difference(&ours)
                .map(|(symbol, version)| format!("{symbol}@@{version} of {name}.so.1")),
        );
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "the system's libraries export what ours lack: {}",
            missing.join(", ")
        )
        .into()),
    }
}

/// Returns the path of rdma-core's library, as the dynamic linker finds it.
fn of_system(name: &str, architecture: &str) -> Result<PathBuf, Failure> {
    let output = Command::new("/sbin/ldconfig").arg("-p").output();
    let known = output
        .map_err(|error| format!("cannot run ldconfig: {error}"))?
        .stdout;
    let kind = architecture
        .replace("x86_64", "x86-64")
        .replace("aarch64", "AArch64");
    let known = String::from_utf8(known)?;
    let path = |line: &str| {
        let (names, path) = line.split_once(" => ")?;
        let is_it = names.trim().starts_with(&format!("{name}.so.1 ")) && names.contains(&kind);
        (is_it && !path.contains("rnic")).then(|| PathBuf::from(path))
    };
    known
        .lines()
        .find_map(path)
        .ok_or_else(|| format!("no {name}.so.1 on this system: ci/deps programs").into())
}
