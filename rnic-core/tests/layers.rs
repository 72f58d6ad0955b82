//! Which modules may import which, and where `unsafe` may stand.

#[path = "support/modules/mod.rs"]
mod modules;
#[path = "support/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use modules::{Crate, circles};
use source::{Import, Token, imports, tokens};

/// The protocol layers: none knows of another, and `connection` alone knows all of them.
const PROTOCOLS: [&str; 4] = ["tcp", "mpa", "ddp", "rdmap"];

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

/// Where `unsafe` may stand: files, or directories with all that is in them.
const UNSAFE: [&str; 10] = [
    "rnic-core/src/memory",
    "rnic-core/src/wire/crc/lanes",
    "rnic-core/src/wire/crc/wide",
    // The C ABI.
    "rnic-ibverbs/src",
    "rnic-xdp/src/icmp/filter",
    "rnic-xdp/src/manager/peer",
    "rnic-xdp/src/manager/reservation",
    "rnic-xdp/src/placement/ioctl",
    "rnic-xdp/src/port",
    "rnic-xdp/src/steering/attach",
];

/// Where the state of all connections is asked for, which takes the longer the more there are: for administrators and reports,
/// and never to wait for the engine.
const SNAPSHOTS: [&str; 10] = [
    "rnic-core/src/engine/command",
    "rnic-core/src/engine/commands",
    "rnic-core/src/engine/mod",
    "rnic-core/src/engine/owners/moving",
    "rnic-core/src/testing/host",
    "rnic-ctl/src/objects/metrics",
    "rnic-ctl/src/perf",
    "rnic-ctl/src/rping/server",
    "rnic-verbs/src/device",
    "rnic-verbs/src/inspector",
];

/// The files that write to the log: none of these is on the path of a frame.
const LOGS: &[&str] = &[
    "rnic-core/src/connection/refusals",
    "rnic-ctl/src/log",
    "rnic-ibverbs/src/adapter",
    "rnic-ibverbs/src/cm/request",
    "rnic-ibverbs/src/cm/table",
    "rnic-verbs/src/events",
    "rnic-verbs/src/listener",
    "rnic-verbs/src/qp",
    "rnic-xdp/src/manager/device",
    "rnic-xdp/src/manager/device_host",
    "rnic-xdp/src/manager/device_news",
    "rnic-xdp/src/manager/device_queues",
    "rnic-xdp/src/manager/host_end",
    "rnic-xdp/src/manager/queue_ports",
    "rnic-xdp/src/manager/session",
    "rnic-xdp/src/port/control",
    "rnic-xdp/src/port/mod",
    "rnic-xdp/src/reserve",
    "rnic-xdp/src/routes/mod",
    "rnic-xdp/src/steering/buffers",
    "rnic-xdp/src/vlans",
    "rnicd/src",
];

/// The files that know what carries the frames of a device: in rnic-verbs only those that open it. rnicd gives out the devices.
const PORTS: [&str; 8] = [
    "rnic-ctl/src",
    "rnic-verbs/src/config",
    "rnic-verbs/src/lib",
    "rnic-verbs/src/offers",
    "rnic-verbs/src/open",
    "rnic-verbs/src/open_error",
    "rnic-verbs/src/port",
    "rnicd/src",
];

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
fn imports_by_module() -> BTreeMap<String, BTreeSet<(Import, PathBuf)>> {
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

/// Fails where any of `words` stands outside of `places`: files, or directories with all that is in them.
fn confined(words: &[&str], places: &[&str]) {
    let mut seen = 0;
    for member in [
        "rnic-core",
        "rnic-xdp",
        "rnic-verbs",
        "rnic-ibverbs",
        "rnicd",
        "rnic-ctl",
    ] {
        for file in files(&workspace().join(member).join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            let found = tokens(&text);
            if !words.iter().any(|word| found.contains(&Token::Word(word))) {
                continue;
            }
            let name = file.strip_prefix(workspace()).unwrap().with_extension("");
            let allowed = places.iter().any(|place| name.starts_with(place));
            assert!(
                allowed,
                "{}: {words:?} is confined to {places:?}",
                file.display()
            );
            seen += 1;
        }
    }
    assert!(seen > 0, "the search finds nothing any more");
}

#[test]
fn unsafe_stands_where_it_is_allowed() {
    confined(&["unsafe"], &UNSAFE);
}

#[test]
fn nothing_is_logged_on_the_way_of_a_frame() {
    confined(&["tracing", "tracing_subscriber"], LOGS);
}

#[test]
fn nobody_waits_for_a_list_of_all_connections() {
    confined(&["snapshot", "snapshot_of"], &SNAPSHOTS);
}

#[test]
fn verbs_know_the_port_only_where_a_device_is_opened() {
    confined(&["rnic_xdp"], &PORTS);
}

/// The floors of rnic-core, from the ground up. A module may import the floors below, and, unless it is a protocol
/// layer, its own floor.
const FLOORS: [&[&str]; 9] = [
    &["ids", "time", "counters", "fast_paths", "sync"],
    &["wire"],
    &["memory"],
    &["verbs"],
    &PROTOCOLS,
    &["connection"],
    &["engine"],
    &["testing"],
    &["lib"],
];

/// The roots of the crates of every package; each test, benchmark, example and fuzz target is a crate of its own.
fn roots() -> Vec<PathBuf> {
    let packages = [
        "rnic-core",
        "rnic-xdp",
        "rnic-verbs",
        "rnic-ibverbs",
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

fn short(path: &Path) -> std::path::Display<'_> {
    path.strip_prefix(workspace()).unwrap_or(path).display()
}

/// The floor of a file of rnic-core.
fn floor(file: &Path) -> usize {
    let source = workspace().join("rnic-core/src");
    let path = file.strip_prefix(source).unwrap().with_extension("");
    let top = path.iter().next().unwrap().to_str().unwrap();
    let on = |floor: &&[&str]| floor.contains(&top);
    FLOORS
        .iter()
        .position(on)
        .unwrap_or_else(|| panic!("{top} has no floor: say in FLOORS on what it may stand"))
}

#[test]
fn imports_go_down_the_floors() {
    let read = Crate::read(&workspace().join("rnic-core/src/lib.rs"));
    assert!(
        read.imports.len() > 500,
        "the search finds nothing any more"
    );
    for import in read.imports.iter().filter(|import| !import.in_tests) {
        assert!(
            floor(&import.from) >= floor(&import.to),
            "{} imports {} from the floor above it: {}",
            short(&import.from),
            import.name,
            short(&import.to),
        );
    }
}

#[test]
fn nothing_that_rnic_core_imports_is_overlooked() {
    let read = Crate::read(&workspace().join("rnic-core/src/lib.rs"));
    let unknown: Vec<_> = read
        .unknown
        .iter()
        .map(|(file, path)| format!("{}: {path}", short(file)))
        .collect();
    assert!(unknown.is_empty(), "where are these defined? {unknown:#?}");
    let all = files(&workspace().join("rnic-core/src"));
    let overlooked: Vec<_> = all
        .iter()
        .filter(|file| !read.files.contains(*file))
        .collect();
    assert!(overlooked.is_empty(), "no module: {overlooked:?}");
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

/// Tests of the search itself: it must not overlook any way to name a module.
mod search {
    use super::*;

    fn named(source: &str, path: &[&str]) -> Vec<String> {
        imports(source, path)
            .into_iter()
            .map(|import| import.module)
            .collect()
    }

    #[test]
    fn finds_every_form_of_path() {
        let path = ["mpa", "deframe"];
        assert_eq!(named("use crate::tcp::Seq;", &path), ["tcp"]);
        assert_eq!(
            named("use crate::{tcp::{Seq, Flags}, wire, ddp as d};", &path),
            ["ddp", "tcp", "wire"]
        );
        assert_eq!(named("use super::super::tcp;", &path), ["tcp"]);
        assert_eq!(
            named("use super::{frame, super::{rdmap, ddp::Stag}};", &path),
            ["ddp", "mpa", "rdmap"]
        );
        assert_eq!(named("use super::frame;", &path), ["mpa"]);
        assert_eq!(
            named("fn f(x: crate::tcp::Seq) { crate::ddp::g() }", &path),
            ["ddp", "tcp"]
        );
        assert_eq!(named("use crate::*;", &path), ["Other('*')"]);
        assert_eq!(
            named("pub(crate) struct S; pub(super) fn f() {}", &path),
            [""; 0]
        );
        assert_eq!(named("m! { $crate::tcp::x }", &path), ["tcp"]);
    }

    #[test]
    fn counts_inline_modules() {
        let source = "mod tests { use super::super::tcp; use super::super::super::ddp; } use super::super::wire;";
        let found = imports(source, &["mpa", "deframe"]);
        let import = |module: &str, in_tests| Import {
            module: module.to_owned(),
            in_tests,
        };
        assert_eq!(
            found,
            [
                import("ddp", true),
                import("mpa", true),
                import("wire", false)
            ]
            .into()
        );
    }

    #[test]
    fn passes_over_comments_and_literals() {
        let source = r##"
            // crate::tcp
            /* crate::ddp /* nested */ unsafe */
            const A: &str = "crate::rdmap \" unsafe";
            const B: &str = r#"crate::rdmap " unsafe"#;
            const C: [char; 2] = ['"', '\''];
            fn f<'a>(x: &'a str) -> crate::wire::X<'a> { x }
            const D: &[u8] = b"unsafe";
        "##;
        assert_eq!(named(source, &["mpa"]), ["wire"]);
        assert!(!tokens(source).contains(&Token::Word("unsafe")));
        assert!(tokens("fn f() { unsafe { g() } }").contains(&Token::Word("unsafe")));
    }

    #[test]
    fn sees_what_is_known_to_be_there() {
        let by_module = imports_by_module();
        let knows = |module: &str, name: &str| {
            by_module[module]
                .iter()
                .any(|(import, _)| import.module == name && !import.in_tests)
        };
        assert!(knows("mpa", "wire") && knows("ddp", "memory"));
        assert!(!knows("mpa", "tcp"));
    }

    /// Writes a crate of these files, and reads it.
    fn crate_of(name: &str, files: &[(&str, &str)]) -> Crate {
        let directory =
            std::env::temp_dir().join(format!("rnic-layers-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = directory.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let read = Crate::read(&directory.join("lib.rs"));
        fs::remove_dir_all(directory).unwrap();
        read
    }

    /// The circles of a crate of these files: the names that tie each.
    fn ties(name: &str, files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let read = crate_of(name, files);
        assert!(read.unknown.is_empty(), "{:?}", read.unknown);
        let names = |circle: Vec<&modules::Import>| {
            circle
                .into_iter()
                .map(|import| import.name.clone())
                .collect()
        };
        circles(&read.imports).into_iter().map(names).collect()
    }

    #[test]
    fn finds_a_circle_of_every_kind() {
        let modules = ("lib.rs", "mod a; mod b; mod c;");
        let none: [Vec<String>; 0] = [];
        // Straight down.
        let found = ties(
            "none",
            &[
                modules,
                ("a.rs", "use crate::b::B; pub struct A;"),
                ("b.rs", "use super::c::C; pub struct B;"),
                ("c.rs", "pub struct C;"),
            ],
        );
        assert_eq!(found, none);
        // Of three, by `crate::`, `super::` and a path in the code; a function as well as a type.
        let found = ties(
            "three",
            &[
                modules,
                ("a.rs", "use crate::b::B; pub fn a() {}"),
                ("b.rs", "use super::c; pub struct B(c::C);"),
                ("c.rs", "pub struct C; fn f() { crate::a::a() }"),
            ],
        );
        assert_eq!(found, [["B", "C", "a"]]);
        // Through a re-export, a group, another name and a glob of a test, which counts for nothing.
        let found = ties(
            "exported",
            &[
                ("lib.rs", "mod a; mod b; mod c; pub use self::b::B;"),
                ("a.rs", "use crate::{c::{C as D}, B}; pub struct A;"),
                ("b.rs", "use crate::a::A; pub struct B;"),
                (
                    "c.rs",
                    "pub struct C; #[cfg(test)] mod tests { use crate::a::*; }",
                ),
            ],
        );
        assert_eq!(found, [["B", "A"]]);
        // A parent and its child.
        let parent = ("lib.rs", "mod p;");
        let found = ties(
            "parent",
            &[
                parent,
                ("p/mod.rs", "mod q; use self::q::Q; pub struct P(Q);"),
                ("p/q.rs", "use super::P; pub struct Q;"),
            ],
        );
        assert_eq!(found, [["Q", "P"]]);
        // A parent that only hands its children's names on, also to its children.
        let found = ties(
            "face",
            &[
                parent,
                ("p/mod.rs", "mod q; mod r; pub use q::Q; pub use r::R;"),
                ("p/q.rs", "use super::R; pub struct Q;"),
                ("p/r.rs", "pub struct R;"),
            ],
        );
        assert_eq!(found, none);
        let found = ties(
            "children",
            &[
                parent,
                ("p/mod.rs", "mod q; mod r; pub use q::Q; pub use r::R;"),
                ("p/q.rs", "use super::R; pub struct Q;"),
                ("p/r.rs", "use crate::p::Q; pub struct R;"),
            ],
        );
        assert_eq!(found, [["R", "Q"]]);
    }

    #[test]
    fn says_what_it_cannot_see() {
        let read = crate_of(
            "unknown",
            &[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::*; use crate::b::Missing;"),
                ("b.rs", ""),
            ],
        );
        let unknown: Vec<_> = read.unknown.iter().map(|(_, path)| path.as_str()).collect();
        assert_eq!(unknown, ["crate::b::*", "crate::b::Missing"]);
    }
}
