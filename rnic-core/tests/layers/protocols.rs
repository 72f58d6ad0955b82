//! What the protocol layers of rnic-core may know.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{Import, imports};
use crate::{files, workspace};

/// The protocol layers: none knows of another, and `connection` alone knows all of them.
pub(super) const PROTOCOLS: [&str; 5] = ["tcp", "mpa", "adaptation", "ddp", "rdmap"];

/// What a protocol layer may import.
const FOUNDATION: [&str; 8] = [
    "ids",
    "time",
    "counters",
    "fast_paths",
    "sync",
    "wire",
    "memory",
    "verbs",
];

/// Where a file stands in the module tree: `src/wire/rdmap/terminate.rs` is wire, rdmap, terminate.
fn module_path(file: &Path, source: &Path) -> Vec<String> {
    let relative = file.strip_prefix(source).unwrap().with_extension("");
    let mut names: Vec<_> = relative
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    if matches!(
        names.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        names.pop();
    }
    names
}

/// For each top-level module of rnic-core, what its files name at the top of the crate.
pub(super) fn imports_by_module() -> BTreeMap<String, BTreeSet<(Import, PathBuf)>> {
    let source = workspace().join("rnic-core/src");
    let mut by_module: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
    for file in files(&source) {
        let path = module_path(&file, &source);
        let Some(top) = path.first() else { continue };
        let text = fs::read_to_string(&file).unwrap();
        let names = imports(&text, &path.iter().map(String::as_str).collect::<Vec<_>>());
        let entry = by_module.entry(top.clone()).or_default();
        entry.extend(names.into_iter().map(|import| (import, file.clone())));
    }
    by_module
}

/// Fails where `module` names anything but itself and `allowed`. Its tests may use `testing` too.
fn check(module: &str, allowed: &[&str]) {
    for (import, file) in imports_by_module().remove(module).expect(module) {
        let name = import.module.as_str();
        let known =
            name == module || allowed.contains(&name) || (import.in_tests && name == "testing");
        assert!(
            known,
            "{}: {module} must not know {name}, only {allowed:?}",
            file.display()
        );
    }
}

#[test]
fn protocol_layers_do_not_know_each_other() {
    // rfc: 5041-66
    for layer in PROTOCOLS {
        check(layer, &FOUNDATION);
    }
}

#[test]
fn wire_knows_no_other_module() {
    check("wire", &[]);
}

/// Otherwise one protocol layer could reach another through what both import.
#[test]
fn the_foundation_knows_no_protocol_layer() {
    for module in FOUNDATION.iter().filter(|module| **module != "wire") {
        check(module, &FOUNDATION);
    }
}

#[test]
fn only_the_connection_knows_all_protocol_layers() {
    for (module, names) in imports_by_module() {
        let known = |layer: &&str| names.iter().any(|(import, _)| import.module == *layer);
        let all = PROTOCOLS.iter().all(known);
        assert!(
            !all || module == "connection",
            "{module} knows all protocol layers"
        );
    }
}
