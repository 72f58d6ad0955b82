//! The documents show configurations that rnicd takes, and every counter.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rnic_core::counters::{Counters, DropReason};
use rnic_manager::PoliceVerdict;
use rnic_xdp::QueueStatistics;
use rnic_xdp::steering::SteeringCounters;
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
    assert_eq!(blocks.len(), 4);
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

/// The names in the first column of the table below a heading.
fn rows<'a>(text: &'a str, heading: &str) -> BTreeSet<&'a str> {
    let heading = format!("\n{heading}\n");
    let (_, section) = text.split_once(heading.as_str()).expect("the heading");
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let names: Vec<_> = rows.map(|row| row.split('`').next().unwrap()).collect();
    let set: BTreeSet<_> = names.iter().copied().collect();
    assert_eq!(set.len(), names.len(), "{heading}: a name has two rows");
    set
}

fn names<'a>(counters: impl IntoIterator<Item = (&'a str, u64)>) -> BTreeSet<&'a str> {
    counters.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn slow_has_every_counter_and_no_other() {
    let (_, slow) = docs("slow.md");
    let Counters {
        engine, tcp, rdma, ..
    } = Counters::default();
    assert_eq!(rows(&slow, "### engine"), names(engine.entries()));
    assert_eq!(rows(&slow, "### tcp"), names(tcp.entries()));
    assert_eq!(rows(&slow, "### rdma"), names(rdma.entries()));
    let drops = DropReason::ALL.iter().map(|reason| reason.name());
    assert_eq!(rows(&slow, "### drops"), drops.collect());
    let queue = QueueStatistics::default();
    assert_eq!(rows(&slow, "### queue"), names(queue.entries()));
    let steer = "## What `steer` does with received frames: `dev show`, `steering`";
    let steering = SteeringCounters::default();
    assert_eq!(rows(&slow, steer), names(steering.entries()));
    let police = "## What `police` does with a client's frames: `stat show`";
    let verdicts = PoliceVerdict::ALL.into_iter().map(PoliceVerdict::name);
    assert_eq!(rows(&slow, police), verdicts.collect());
    let kernel = [
        "rx_packets",
        "rx_octets",
        "rx_dropped",
        "tx_packets",
        "tx_octets",
        "tx_dropped",
    ];
    assert_eq!(rows(&slow, "## What the kernel counts"), kernel.into());
}

/// Where the links of a page lead: pages, and headings of pages.
#[test]
fn links_lead_somewhere() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let anchor = |heading: &str| {
        let kept = heading.to_lowercase();
        let kept = kept
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let links = text
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap());
        for link in links.filter(|link| !link.contains("://")) {
            let (page, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match page {
                "" => path.clone(),
                page => directory.join(page),
            };
            let place = format!("{}: {link}", path.display());
            assert!(target.exists(), "{place}");
            let text = fs::read_to_string(&target).unwrap();
            let headings = text.lines().filter(|line| line.starts_with('#'));
            let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#').trim()));
            assert!(
                heading.is_empty() || anchors.any(|a| a == heading),
                "{place}"
            );
        }
    }
}
