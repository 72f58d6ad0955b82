//! What each fast path of the engine is worth: instructions with all of them, with none, and with
//! all but one.

use rnic_core::fast_paths::{FastPath, FastPaths};

use crate::failure::Failure;
use crate::instructions::{Counts, count};

pub(crate) const USAGE: &str = "usage: rnic-bench fast-paths

  counts the instructions of the whole engine, for each kind of traffic, with all fast paths and with none; and how many
  more they are, in per cent of those with all, where all but one are taken";

/// Returns the switches that a word of the command line asks for: `all`, `none`, or the path that
/// is not taken.
pub(crate) fn parse(word: &str) -> Result<FastPaths, Failure> {
    match word {
        "all" => Ok(FastPaths::ALL),
        "none" => Ok(FastPaths::NONE),
        _ => {
            let path = FastPath::ALL.into_iter().find(|path| name(*path) == word);
            let path = path.ok_or_else(|| format!("{word} is no fast path"))?;
            Ok(FastPaths::ALL.without(path))
        }
    }
}

fn name(path: FastPath) -> String {
    format!("{path:?}")
}

/// Parses the options, of which there are none.
pub(crate) fn options(mut arguments: impl Iterator<Item = String>) -> Result<Option<()>, Failure> {
    match arguments.next().as_deref() {
        None => Ok(Some(())),
        Some("-h" | "--help") => Ok(None),
        Some(other) => Err(format!("{other} is too much").into()),
    }
}

/// Counts, and prints the table.
pub(crate) fn run(_: &()) -> Result<(), Failure> {
    let all = count("all")?;
    let none = count("none")?;
    let mut without = Vec::new();
    for path in FastPath::ALL {
        without.push((name(path), count(&name(path))?));
    }
    print!("{}", table(&all, &none, &without));
    Ok(())
}

fn table(all: &Counts, none: &Counts, without: &[(String, Counts)]) -> String {
    let mut text = format!("{:<18} {:>8} {:>8}", "instructions", "all", "none");
    for (path, _) in without {
        text += &format!(" {path:>17}");
    }
    text.push('\n');
    for (row, with_all) in all.rows() {
        let with_none = none.of(row).unwrap_or(f64::NAN);
        text += &format!("{row:<18} {with_all:>8.0} {with_none:>8.0}");
        for (_, counts) in without {
            let more = counts.of(row).unwrap_or(f64::NAN) / with_all - 1.0;
            text += &format!(" {:>+15.1} %", more * 100.0);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_a_word() {
        for path in FastPath::ALL {
            assert_eq!(parse(&name(path)).unwrap(), FastPaths::ALL.without(path));
        }
        assert!(parse("other").is_err());
    }
}
