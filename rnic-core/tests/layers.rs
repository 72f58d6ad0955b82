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
    "rnic-manager/src/peer",
    "rnic-xdp/src/device/icmp/filter",
    "rnic-xdp/src/device/placement/ioctl",
    "rnic-xdp/src/device/port",
    "rnic-xdp/src/device/steering/attach",
    "rnic-xdp/src/shared/reservation",
];

/// Where the state of all connections is asked for, which takes the longer the more there are: for
/// administrators and reports, and never to wait for the engine.
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
    "rnic-xdp/src/client/session",
    "rnic-xdp/src/device/port/control",
    "rnic-xdp/src/device/port/mod",
    "rnic-xdp/src/device/reserve",
    "rnic-xdp/src/device/routes/mod",
    "rnic-xdp/src/device/steering/buffers",
    "rnic-xdp/src/device/vlans",
    "rnic-xdp/src/shared/device",
    "rnic-xdp/src/shared/device_host",
    "rnic-xdp/src/shared/device_news",
    "rnic-xdp/src/shared/device_queues",
    "rnic-xdp/src/shared/host_end",
    "rnic-xdp/src/shared/queue_ports",
    "rnicd/src",
];

/// The files that know what carries the frames of a device: in rnic-verbs only those that open it.
/// rnicd gives out the devices. What of rnic-ctl speaks with rnicd alone is not among them.
const PORTS: [&str; 14] = [
    "rnic-ctl/src/capture",
    "rnic-ctl/src/device",
    "rnic-ctl/src/doctor",
    "rnic-ctl/src/objects/steer",
    "rnic-ctl/src/perf/counters",
    "rnic-ctl/src/programs",
    "rnic-ctl/src/steering",
    "rnic-verbs/src/config",
    "rnic-verbs/src/lib",
    "rnic-verbs/src/offers",
    "rnic-verbs/src/open",
    "rnic-verbs/src/open_error",
    "rnic-verbs/src/port",
    "rnicd/src",
];

/// The files that know of rnicd: in rnic-verbs only those that open a device.
const MANAGERS: [&str; 7] = [
    "rnic-ctl/src",
    "rnic-verbs/src/config",
    "rnic-verbs/src/offers",
    "rnic-verbs/src/open",
    "rnic-verbs/src/open_error",
    "rnic-xdp/src",
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

/// Fails where any of `words` stands outside of `places`: files, or directories with all that is in
/// them.
fn confined(words: &[&str], places: &[&str]) {
    let mut seen = 0;
    for member in [
        "rnic-core",
        "rnic-manager",
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

#[test]
fn verbs_know_rnicd_only_where_a_device_is_opened() {
    confined(&["rnic_manager"], &MANAGERS);
}

/// Neither the engine nor what is said to rnicd stands on what carries the frames.
#[test]
fn xdp_stands_in_one_crate() {
    confined(&["aya", "libbpf_rs", "xsk_rs"], &["rnic-xdp/src"]);
}

/// Files that may import each other and the floors below: by their path, or that of a directory
/// with all that is in it.
type Floor = &'static [&'static str];

/// The floors of rnic-core, from the ground up. The protocol layers share one, and do not know each
/// other.
const FLOORS: [Floor; 10] = [
    &["ids", "time", "counters", "fast_paths", "sync"],
    &["wire"],
    &["memory"],
    &["verbs"],
    &PROTOCOLS,
    &["connection"],
    &["engine"],
    &["in_memory"],
    &["testing"],
    &["lib"],
];

/// What stands on the device in rnic-xdp: none of these knows another.
const ON_DEVICE: [&str; 4] = ["shared", "client", "capture", "facts"];

/// The floors of rnic-xdp, from the ground up.
const XDP_FLOORS: [Floor; 8] = [
    &[
        "device/automatic_ports",
        "device/bell",
        "device/clock",
        "device/lingering",
        "device/netlink",
        "device/process",
        "device/tx_checksum",
    ],
    &[
        "device/domains",
        "device/drivers",
        "device/error",
        "device/placement",
        "device/policies",
        "device/vlans",
    ],
    &["device/icmp", "device/steering"],
    &["device/routes"],
    &["device/locals", "device/port"],
    &["device/mod", "device/reserve", "device/worker"],
    &["shared/programs", "client", "capture", "facts"],
    &["shared", "testing", "lib"],
];

/// The roots of the crates of every package; each test, benchmark, example and fuzz target is a
/// crate of its own.
fn roots() -> Vec<PathBuf> {
    let packages = [
        "rnic-core",
        "rnic-manager",
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

/// The floor of a file, by the longest path that it begins with.
fn floor(file: &Path, source: &Path, floors: &[Floor]) -> usize {
    let path = file.strip_prefix(source).unwrap().with_extension("");
    let all = floors.iter().enumerate();
    let named = all.flat_map(|(floor, names)| names.iter().map(move |name| (floor, name)));
    let found = named.filter(|(_, name)| path.starts_with(name));
    let (floor, _) = found
        .max_by_key(|(_, name)| name.len())
        .unwrap_or_else(|| panic!("{path:?} has no floor: say on what it may stand"));
    floor
}

/// The imports that go up the floors, or from one of the strangers to another.
fn astray<'a>(
    read: &'a Crate,
    source: &Path,
    floors: &[Floor],
    strangers: &[&str],
) -> Vec<&'a modules::Import> {
    let stranger = |file: &Path| {
        let path = file.strip_prefix(source).unwrap().with_extension("");
        strangers.iter().find(|name| path.starts_with(name))
    };
    let is_astray = |import: &&modules::Import| {
        let (from, to) = (&import.from, &import.to);
        let goes_up = floor(from, source, floors) < floor(to, source, floors);
        let knows_another = match (stranger(from), stranger(to)) {
            (Some(one), Some(other)) => one != other,
            _ => false,
        };
        !import.in_tests && (goes_up || knows_another)
    };
    read.imports.iter().filter(is_astray).collect()
}

/// Fails where an import of a crate goes astray, or there are too few to believe it.
fn check_floors(package: &str, floors: &[Floor], strangers: &[&str], fewest: usize) {
    let source = workspace().join(package).join("src");
    let read = Crate::read(&source.join("lib.rs"));
    assert!(
        read.imports.len() > fewest,
        "the search finds nothing any more"
    );
    let found = astray(&read, &source, floors, strangers);
    let found = found.into_iter().map(|import| {
        let (from, to) = (short(&import.from), short(&import.to));
        format!("{from} must not import {} of {to}", import.name)
    });
    let found: Vec<_> = found.collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn imports_go_down_the_floors() {
    check_floors("rnic-core", &FLOORS, &PROTOCOLS, 500);
}

#[test]
fn what_stands_on_the_device_does_not_know_each_other() {
    check_floors("rnic-xdp", &XDP_FLOORS, &ON_DEVICE, 300);
}

#[test]
fn no_import_is_overlooked() {
    for package in ["rnic-core", "rnic-manager"] {
        let read = Crate::read(&workspace().join(package).join("src/lib.rs"));
        let unknown = read.unknown.iter();
        let unknown = unknown.map(|(file, path)| format!("{}: {path}", short(file)));
        let unknown: Vec<_> = unknown.collect();
        assert!(unknown.is_empty(), "where are these defined? {unknown:#?}");
    }
}

#[test]
fn no_file_is_overlooked() {
    for package in ["rnic-core", "rnic-manager", "rnic-xdp"] {
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

    fn directory_of(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rnic-layers-{name}-{}", std::process::id()))
    }

    /// Writes a crate of these files, and reads it.
    fn crate_of(name: &str, files: &[(&str, &str)]) -> Crate {
        let directory = directory_of(name);
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
        // Through a re-export, a group, another name and a glob of a test, which counts for
        // nothing.
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
    fn finds_what_goes_up_or_to_a_stranger() {
        const FLOORS: [Floor; 4] = [&["on/ground"], &["on", "left"], &["right"], &["lib"]];
        let files = [
            ("lib.rs", "mod on; mod left; mod right; use on::On;"),
            ("on/mod.rs", "mod ground; pub struct On(ground::Ground);"),
            (
                "on/ground.rs",
                "pub struct Ground; #[cfg(test)] mod tests { use super::*; } use crate::left::up;",
            ),
            ("left/mod.rs", "mod inner; pub fn up() {} use inner::Inner;"),
            ("left/inner.rs", "pub struct Inner; use crate::on::On;"),
            ("right.rs", "use crate::{left::up, on::On};"),
        ];
        let read = crate_of("astray", &files);
        let source = directory_of("astray");
        let found = astray(&read, &source, &FLOORS, &["left", "right"]);
        let found = found.into_iter().map(|import| {
            let from = import.from.strip_prefix(&source).unwrap();
            (from.to_str().unwrap(), import.name.as_str())
        });
        let found: Vec<_> = found.collect();
        assert_eq!(found, [("on/ground.rs", "up"), ("right.rs", "up")]);
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
