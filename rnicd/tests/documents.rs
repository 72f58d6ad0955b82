//! The documents show configurations that rnicd takes, and every counter.

use std::fs;
use std::path::{Path, PathBuf};

use rnic_xdp::sharing::PoliceVerdict;
use rnicd::config::Config;

fn docs(name: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(name);
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

fn assert_right(text: &str, path: &Path) {
    if let Err(error) = Config::parse(text, path) {
        panic!("in {}:\n{error}\n{text}", path.display());
    }
}

#[test]
fn configurations_in_the_guide_are_right() {
    let (path, guide) = docs("sharing.md");
    let blocks = guide.split("```toml\n").skip(1);
    let blocks: Vec<_> = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        assert_right(block, &path);
    }
}

#[test]
fn the_configuration_in_the_manifest_is_right() {
    let (path, manifest) = docs("kubernetes/rnicd.yaml");
    let (_, rest) = manifest.split_once("  rnicd.toml: |\n").unwrap();
    let (indented, _) = rest.split_once("\n---").unwrap();
    assert!(indented.contains("[[device]]"));
    assert_right(
        &indented.replace("\n    ", "\n").replacen("    ", "", 1),
        &path,
    );
}

#[test]
fn the_guide_explains_every_counter() {
    let (_, guide) = docs("sharing.md");
    for verdict in PoliceVerdict::ALL {
        let row = format!("\n| `{}` | ", verdict.name());
        assert!(guide.contains(&row), "{}", verdict.name());
    }
}
