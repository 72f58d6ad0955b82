//! A table of the file, read key by key.

use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Fault, Faults, Origin, Setting};
use super::value::Value;

/// A file that is read, and what was found wrong with it so far.
pub(super) struct Reader<'a> {
    text: &'a str,
    file: Arc<Path>,
    layer: Layer,
    pub(super) faults: Faults,
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// The configuration.
    Configuration,
    /// What `rnic-ctl` has set while rnicd runs.
    RunTime,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str, file: Arc<Path>, layer: Layer) -> Self {
        Self {
            text,
            file,
            layer,
            faults: Faults::default(),
        }
    }

    /// Returns the line of an octet.
    fn line(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }

    /// Notes that something is wrong at an octet.
    pub(super) fn fault(&mut self, at: usize, what: impl Into<String>) {
        self.faults.faults.push(Fault {
            file: Arc::clone(&self.file),
            line: self.line(at),
            what: what.into(),
        });
    }

    /// Returns the origin of what stands at an octet.
    pub(super) fn origin(&self, at: usize) -> Origin {
        let (file, line) = (Arc::clone(&self.file), self.line(at));
        match self.layer {
            Layer::Configuration => {
                let lines = vec![line];
                Origin::File { file, lines }
            }
            Layer::RunTime => Origin::RunTime { file, line },
        }
    }
}

/// A table, and what it is called in messages.
pub(super) struct Table<'t, 'i> {
    /// As the file has it: "[[user]]".
    name: &'static str,
    table: &'t DeTable<'i>,
    /// Where it begins.
    pub(super) at: usize,
}

impl<'t, 'i> Table<'t, 'i> {
    /// Begins to read a table. Reports a fault for each key that is not known.
    pub(super) fn new(
        reader: &mut Reader<'_>,
        name: &'static str,
        table: &'t DeTable<'i>,
        at: usize,
        known: &[&str],
    ) -> Self {
        for key in table.keys() {
            let found = key.get_ref().as_ref();
            if !known.contains(&found) {
                reader.fault(key.span().start, unknown_key(found, name, known));
            }
        }
        Self { name, table, at }
    }

    /// Returns a value.
    pub(super) fn get(&self, key: &str) -> Option<&'t Spanned<DeValue<'i>>> {
        self.table.get(key)
    }

    /// Returns a value that `read` understands; `form` is what it must be.
    pub(super) fn read<T>(
        &self,
        reader: &mut Reader<'_>,
        key: &str,
        form: &str,
        read: impl FnOnce(&DeValue<'i>) -> Option<T>,
    ) -> Option<Setting<T>> {
        let found = self.get(key)?;
        let at = found.span().start;
        let Some(value) = read(found.get_ref()) else {
            let what = format!("{key} in {} is wrong; it must be {form}", self.name);
            reader.fault(at, what);
            return None;
        };
        let origin = reader.origin(at);
        Some(Setting { value, origin })
    }

    /// Returns a value of a rule.
    pub(super) fn value<T: Value>(&self, reader: &mut Reader<'_>, key: &str) -> Option<Setting<T>> {
        let array = self.get(key).and_then(|found| found.get_ref().as_array());
        let wrong = array.and_then(|elements| {
            let mut elements = elements.iter();
            elements.find(|element| !T::is_element(element.get_ref()))
        });
        let Some(wrong) = wrong else {
            return self.read(reader, key, T::FORM, T::read);
        };
        let text = reader.text.get(wrong.span()).unwrap_or_default();
        let what = format!(
            "{key} in {} is wrong at {text}; it must be {}",
            self.name,
            T::FORM
        );
        reader.fault(wrong.span().start, what);
        None
    }

    /// Returns a table, with its first octet.
    pub(super) fn table(
        &self,
        reader: &mut Reader<'_>,
        key: &str,
    ) -> Option<(&'t DeTable<'i>, usize)> {
        let found = self.get(key)?;
        let at = found.span().start;
        let table = found.get_ref().as_table();
        if table.is_none() {
            reader.fault(
                at,
                format!("{key} is no table; write [{key}] above its keys"),
            );
        }
        Some((table?, at))
    }

    /// Returns the tables of an array of tables, each with its first octet.
    pub(super) fn tables(
        &self,
        reader: &mut Reader<'_>,
        key: &str,
    ) -> Vec<(&'t DeTable<'i>, usize)> {
        let Some(found) = self.get(key) else {
            return Vec::new();
        };
        let tables: Option<Vec<_>> = found.get_ref().as_array().and_then(|elements| {
            let table = |element: &'t Spanned<DeValue<'i>>| {
                Some((element.get_ref().as_table()?, element.span().start))
            };
            elements.iter().map(table).collect()
        });
        if tables.is_none() {
            let what =
                format!("{key} is no list of tables; write [[{key}]] above the keys of each");
            reader.fault(found.span().start, what);
        }
        tables.unwrap_or_default()
    }
}

/// Returns the complaint that a table cannot have a key.
pub(super) fn unknown_key(found: &str, table: &str, known: &[&str]) -> String {
    format!("unknown key {found:?} in {table}; {}", remedy(found, known))
}

/// Returns advice: the key that may have been meant, or those that are known.
fn remedy(found: &str, known: &[&str]) -> String {
    let distance = |key: &&str| strsim::damerau_levenshtein(found, key);
    let nearest = known.iter().copied().min_by_key(distance);
    // Of a short word, half is another word.
    let most = |key: &str| (2 + key.len() / 4).min(key.len().max(found.len()) / 2);
    match nearest.filter(|key| distance(key) <= most(key)) {
        Some(key) => format!("did you mean {key:?}?"),
        None => format!("known are {}", known.join(", ")),
    }
}
