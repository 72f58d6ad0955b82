//! Changes of settings, as `KEY VALUE` on the command line.

use clap::Args;
use rnic_manager::protocol::Change;

use crate::failure::{Failure, Outcome};

/// The word for what the configuration says.
const DEFAULT: &str = "default";

/// Keys of the configuration with their new values.
#[derive(Clone, Debug, Args)]
pub(crate) struct Settings {
    /// Keys, as in rnicd.toml, each with its new value; lists have commas between their elements.
    /// The value "default" is what rnicd.toml says
    #[arg(value_names = ["KEY", "VALUE"], num_args = 2.., required = true)]
    settings: Vec<String>,
}

/// The same, where none is needed.
#[derive(Clone, Debug, Args)]
pub(crate) struct AnySettings {
    /// Keys, as in rnicd.toml, each with its value
    #[arg(value_names = ["KEY", "VALUE"], num_args = 2..)]
    settings: Vec<String>,
}

impl Settings {
    /// Returns the changes.
    pub(super) fn changes(&self, what: &str) -> Outcome<Vec<Change>> {
        changes(what, &self.settings)
    }
}

impl AnySettings {
    /// Returns the changes.
    pub(super) fn changes(&self, what: &str) -> Outcome<Vec<Change>> {
        changes(what, &self.settings)
    }
}

fn changes(what: &str, words: &[String]) -> Outcome<Vec<Change>> {
    let change = |pair: &[String]| match pair {
        [key, value] => Ok(Change {
            key: key.clone(),
            value: (value != DEFAULT).then(|| value.clone()),
        }),
        _ => {
            let why = format!("{} has no value; write KEY VALUE for each", pair.join(" "));
            Err(Failure::usage(what, why))
        }
    };
    words.chunks(2).map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Outcome<Vec<Change>> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        changes("change eth1", &words)
    }

    #[test]
    fn each_key_has_a_value() {
        let change = |key: &str, value: Option<&str>| Change {
            key: key.into(),
            value: value.map(str::to_owned),
        };
        let expected = vec![change("rate", Some("1Gbit")), change("ports", None)];
        assert_eq!(read("rate 1Gbit ports default"), Ok(expected));
        assert_eq!(read(""), Ok(Vec::new()));
        let failure = read("rate 1Gbit ports").unwrap_err();
        assert_eq!(
            failure.to_string(),
            "change eth1: ports has no value; write KEY VALUE for each"
        );
    }
}
