//! The machine on which it was measured.

use std::fs;

use crate::bed::processors;

/// Describes the machine, fact by fact.
pub(crate) fn describe() -> Vec<(&'static str, String)> {
    let count = processors().map_or(0, |processors| processors.len());
    vec![
        (
            "cpu",
            field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
        ),
        ("cores", count.to_string()),
        ("caches", caches().unwrap_or_else(unknown)),
        (
            "kernel",
            line("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
        ),
        (
            "hugepages",
            format!(
                "{} of {}",
                line("/proc/sys/vm/nr_hugepages").unwrap_or_else(unknown),
                field("/proc/meminfo", "Hugepagesize").unwrap_or_else(unknown),
            ),
        ),
        (
            "build",
            option_env!("RNIC_BUILD").unwrap_or("release").to_owned(),
        ),
        ("load before", line("/proc/loadavg").unwrap_or_else(unknown)),
    ]
}

fn unknown() -> String {
    "unknown".into()
}

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the value behind a name and a colon.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Caches of the first processor, from the first level on.
fn caches() -> Option<String> {
    let mut sizes = Vec::new();
    for entry in fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()? {
        let directory = entry.ok()?.path();
        let read = |name: &str| line(directory.join(name).to_str()?);
        if let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size"))
            && kind != "Instruction"
        {
            sizes.push((level, size));
        }
    }
    sizes.sort();
    let texts: Vec<_> = sizes
        .iter()
        .map(|(level, size)| format!("L{level} {size}"))
        .collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}
