//! Symbols and their versions: those that a version script lists, and those that a library exports.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Failure;

/// Symbols, each with its version.
pub(crate) type Symbols = BTreeSet<(String, String)>;

/// Reads the symbols of a version script.
pub(crate) fn listed(script: &Path) -> Result<Symbols, Failure> {
    let text = fs::read_to_string(script)
        .map_err(|error| format!("cannot read {}: {error}", script.display()))?;
    Ok(listed_in(&text))
}

/// Returns the symbols of the text of a version script: a node begins with `VERSION {`, and a
/// symbol of it is a line that ends in a semicolon. A node without a version begins with `{`.
pub(crate) fn listed_in(text: &str) -> Symbols {
    let mut version = "";
    let mut symbols = Symbols::new();
    for line in text.lines() {
        if let Some(node) = line.strip_suffix(" {") {
            version = node;
        } else if let Some(name) = line.trim_start().strip_suffix(';')
            && line.starts_with(' ')
            && name
                .bytes()
                .all(|octet| octet == b'_' || octet.is_ascii_alphanumeric())
        {
            symbols.insert((name.to_owned(), version.to_owned()));
        }
    }
    symbols
}

/// Returns what a library exports by default.
pub(crate) fn exported(library: &Path) -> Result<Symbols, Failure> {
    let mut nm = Command::new("nm");
    nm.args(["--dynamic", "--defined-only", "--with-symbol-versions"])
        .arg(library);
    let output = nm
        .output()
        .map_err(|error| format!("cannot run nm, of binutils: {error}"))?;
    if !output.status.success() {
        return Err(format!("nm failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(exported_in(&String::from_utf8(output.stdout)?))
}

/// Returns what nm says is exported by default: `ADDRESS TYPE NAME@@VERSION`. A symbol that only
/// older programs use has `@` alone; that of a version itself has the type `A`. A library without
/// versions has `NAME`, and the version is empty.
fn exported_in(text: &str) -> Symbols {
    let symbol = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let kind = words.next()?;
        let name = words.next()?;
        let (name, version) = match name.contains('@') {
            true => name.split_once("@@")?,
            false => (name, ""),
        };
        (kind != "A").then(|| (name.to_owned(), version.to_owned()))
    };
    text.lines().filter_map(symbol).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols<const N: usize>(expected: [(&str, &str); N]) -> Symbols {
        expected
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .into()
    }

    #[test]
    fn a_version_script_lists_each_symbol_under_its_node() {
        let script = "/* Of two nodes; the second builds on the first. */\n\nV_1.0 {\n    global:\n        first;\n    local:\n        *;\n};\n\nV_1.1 {\n    global:\n        second_2;\n} V_1.0;\n";
        assert_eq!(
            listed_in(script),
            symbols([("first", "V_1.0"), ("second_2", "V_1.1")])
        );
        let script = "{\n    global:\n        plain;\n    local:\n        *;\n};\n";
        assert_eq!(listed_in(script), symbols([("plain", "")]));
    }

    #[test]
    fn only_the_default_version_of_a_symbol_is_exported_by_default() {
        let said = "0000000000000000 A V_1.0@@V_1.0\n0000000000001139 T first@@V_1.1\n0000000000001140 T first@V_1.0\n0000000000001141 T plain\n";
        let expected = symbols([("first", "V_1.1"), ("plain", "")]);
        assert_eq!(exported_in(said), expected);
    }
}
