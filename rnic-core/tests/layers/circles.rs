//! Files never import each other in a circle, and the search sees all of them.

use std::fs;
use std::path::PathBuf;

use crate::modules::{Crate, circles};
use crate::{files, short, workspace};

/// The roots of the crates of every package; each test, benchmark, example and fuzz target is a
/// crate of its own.
fn roots() -> Vec<PathBuf> {
    let packages = [
        "rnic-core",
        "rnic-manager",
        "rnic-sockets",
        "rnic-xdp",
        "rnic-verbs",
        "rnic-ibverbs",
        "rnic-sysfs",
        "rnicd",
        "rnic-ctl",
        "benches",
        "fuzz",
    ];
    let mut roots = Vec::new();
    for package in packages.map(|name| workspace().join(name)) {
        let named = ["src/lib.rs", "src/main.rs", "lib.rs"].map(|name| package.join(name));
        roots.extend(named.into_iter().filter(|root| root.exists()));
        for directory in ["src/bin", "examples", "benches", "targets", "tests"] {
            for entry in fs::read_dir(package.join(directory)).into_iter().flatten() {
                let path = entry.unwrap().path();
                let main = path.join("main.rs");
                if path.extension().is_some_and(|extension| extension == "rs") {
                    roots.push(path);
                } else if main.exists() {
                    roots.push(main);
                }
            }
        }
    }
    roots.sort();
    roots
}

#[test]
fn no_import_is_overlooked() {
    for package in ["rnic-core", "rnic-manager", "rnic-sockets"] {
        let read = Crate::read(&workspace().join(package).join("src/lib.rs"));
        let unknown = read.unknown.iter();
        let unknown = unknown.map(|(file, path)| format!("{}: {path}", short(file)));
        let unknown: Vec<_> = unknown.collect();
        assert!(unknown.is_empty(), "where are these defined? {unknown:#?}");
    }
}

#[test]
fn no_file_is_overlooked() {
    for package in ["rnic-core", "rnic-manager", "rnic-sockets", "rnic-xdp"] {
        let source = workspace().join(package).join("src");
        let read = Crate::read(&source.join("lib.rs"));
        let mut overlooked = files(&source);
        overlooked.retain(|file| !read.files.contains(file));
        assert!(overlooked.is_empty(), "no module: {overlooked:?}");
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let (mut imports, mut found) = (0, Vec::new());
    for root in roots() {
        let read = Crate::read(&root);
        imports += read.imports.len();
        for circle in circles(&read.imports) {
            found.push(format!("in {}:", short(&root)));
            let ties = circle.into_iter().map(|import| {
                let (from, to) = (short(&import.from), short(&import.to));
                format!("{from} -> {to}: {}", import.name)
            });
            found.extend(ties);
        }
    }
    assert!(imports > 1000, "the search finds nothing any more");
    assert!(
        found.is_empty(),
        "files import each other in a circle:\n{}",
        found.join("\n")
    );
}
