//! A strict reader of the text format of Prometheus.

use std::collections::{BTreeMap, BTreeSet};

/// A sample, and the labels by which it is told from others of its name.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Exposition {
    /// By the whole text in front of the value.
    pub(crate) samples: BTreeMap<String, Sample>,
    /// Whether each name is that of a counter.
    pub(crate) names: BTreeMap<String, bool>,
}

impl Exposition {
    /// Reads a text, which must be as the format and its conventions have it.
    pub(crate) fn read(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line has no end");
        let (mut samples, mut names) = (BTreeMap::new(), BTreeMap::new());
        let mut family: Option<&str> = None;
        let mut helped = None;
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(!help.is_empty(), "{line}");
                helped = Some(name);
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(helped, Some(name), "{line}");
                let is_counter = match kind {
                    "counter" => true,
                    "gauge" => false,
                    _ => panic!("{line}"),
                };
                assert_eq!(is_counter, name.ends_with("_total"), "{line}");
                assert!(is_name(name), "{line}");
                assert_eq!(names.insert(name.to_owned(), is_counter), None, "{line}");
                family = Some(name);
            } else {
                let (series, sample) = sample(line);
                assert_eq!(Some(sample.name.as_str()), family, "{line}");
                assert!(samples.insert(series, sample).is_none(), "{line}");
            }
        }
        let with_samples: BTreeSet<_> = samples.values().map(|sample| &sample.name).collect();
        assert_eq!(with_samples.len(), names.len(), "a name has no sample");
        Self { samples, names }
    }

    /// Returns the value of a series, with labels in the order of the text.
    pub(crate) fn value(&self, series: &str) -> f64 {
        let found = self.samples.get(series);
        found
            .unwrap_or_else(|| panic!("there is no {series}"))
            .value
    }

    /// Fails if a counter is less than before, or gone.
    pub(crate) fn assert_not_back(&self, before: &Self) {
        for (series, sample) in &before.samples {
            if before.names[&sample.name] {
                let now = self.value(series);
                assert!(
                    now >= sample.value,
                    "{series} went from {} to {now}",
                    sample.value
                );
            }
        }
    }
}

/// Reads a line with a sample.
fn sample(line: &str) -> (String, Sample) {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let mut labels = BTreeMap::new();
    let name = match series.split_once('{') {
        None => series,
        Some((name, rest)) => {
            let mut rest = rest.strip_suffix('}').unwrap();
            while !rest.is_empty() {
                let (label, behind) = rest.split_once("=\"").unwrap();
                // No value here has a quote in it.
                let (value, behind) = behind.split_once('"').unwrap();
                assert!(is_name(label), "{line}");
                let old = labels.insert(label.to_owned(), value.to_owned());
                assert_eq!(old, None, "{line}");
                rest = match behind.strip_prefix(',') {
                    Some(more) => more,
                    None if behind.is_empty() => "",
                    None => panic!("{line}"),
                };
            }
            name
        }
    };
    let value: f64 = value.parse().unwrap();
    assert!(value.is_finite() && value >= 0.0, "{line}");
    let name = name.to_owned();
    (
        series.to_owned(),
        Sample {
            name,
            labels,
            value,
        },
    )
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .chars()
            .all(|char| char.is_ascii_lowercase() || char == '_')
}
