//! Tests of the search itself: it must not overlook any way to name a module.

use std::fs;
use std::path::PathBuf;

use crate::floors::{Floor, astray};
use crate::modules::{self, Crate, circles};
use crate::protocols::imports_by_module;
use crate::source::{Import, Token, imports, tokens};
use crate::unsafe_code::has_unsafe;

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
fn tells_unsafe_code_from_the_types_of_functions() {
    for code in [
        "fn f() { unsafe { g() } }",
        "unsafe fn f() {}",
        "unsafe extern \"C\" fn f() {}",
        "unsafe extern \"C\" { fn f(); }",
        "unsafe impl Send for S {}",
        "#[unsafe(no_mangle)] extern \"C\" fn f() {}",
        "type F = unsafe fn(); unsafe fn f() {}",
    ] {
        assert!(has_unsafe(&tokens(code)), "{code}");
    }
    for types in [
        "type F = unsafe fn(u32);",
        "struct S(Option<unsafe extern \"C\" fn(*mut u8) -> u32>);",
        "type F = unsafe extern fn();",
        "fn is_unsafe() {}",
    ] {
        assert!(!has_unsafe(&tokens(types)), "{types}");
    }
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
