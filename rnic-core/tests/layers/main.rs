//! Which modules may import which, and where `unsafe` and other words may stand.

mod circles;
mod floors;
mod protocols;
mod search;
mod unsafe_code;
mod words;

#[path = "../support/modules/mod.rs"]
mod modules;
#[path = "../support/source.rs"]
mod source;

use std::fs;
use std::path::{Path, PathBuf};

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The source files under a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn short(path: &Path) -> std::path::Display<'_> {
    path.strip_prefix(workspace()).unwrap_or(path).display()
}
