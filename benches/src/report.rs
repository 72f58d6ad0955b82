//! The table, and the same as JSON.

use std::fmt::Write;

use crate::bed::Cores;
use crate::plan::{COMPARISONS, Row};
use crate::stats::Samples;

/// Everything that was found out.
pub(crate) struct Report<'a> {
    pub(crate) machine: &'a [(&'static str, String)],
    pub(crate) repetitions: usize,
    pub(crate) rows: &'a [&'a Row],
}

impl Report<'_> {
    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.machine {
            let _ = writeln!(text, "{name:<12} {value}");
        }
        let _ = writeln!(
            text,
            "\nmedian (least..greatest) of {} repetitions; MTU 1500 on veth, native XDP, copy mode;\n\
             Gb/s: median of pieces of 1 MiB, undisturbed by other load; mean: of the whole run\n",
            self.repetitions
        );
        let _ = writeln!(text, "{:<48} {:>31} {:>31}", "", "one core", "two cores");
        let mut shown = Vec::new();
        for row in self.rows {
            if shown.contains(&row.id) {
                continue;
            }
            shown.push(row.id);
            let title = format!("{} [{}]", row.title, row.unit.name());
            let [one, two] = [Cores::One, Cores::Two].map(|cores| {
                let found = self.find(row.id, cores);
                found.map_or_else(|| "-".into(), cell)
            });
            let _ = writeln!(text, "{title:<48} {one:>31} {two:>31}");
        }
        let _ = writeln!(
            text,
            "\n{:<50} {:>9} {:>9}",
            "ratio of medians", "one core", "two cores"
        );
        for comparison in COMPARISONS {
            let [one, two] = [Cores::One, Cores::Two].map(|cores| {
                self.ratio(comparison.of, comparison.to, cores)
                    .map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"))
            });
            let _ = writeln!(text, "{:<50} {one:>9} {two:>9}", comparison.title);
        }
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        let machine = self
            .machine
            .iter()
            .map(|(name, value)| format!("    {}: {}", string(name), string(value)));
        let rows = self.rows.iter().map(|row| {
            format!(
                "    {{\"id\": {}, \"title\": {}, \"unit\": {}, \"cores\": {}, {}{}}}",
                string(row.id),
                string(row.title),
                string(row.unit.name()),
                row.cores.count(),
                samples("", &row.values),
                if row.beside.values().is_empty() {
                    String::new()
                } else {
                    format!(
                        ", {}",
                        samples(&format!("{}_", row.unit.beside()), &row.beside)
                    )
                },
            )
        });
        let ratios = COMPARISONS.iter().flat_map(|comparison| {
            [Cores::One, Cores::Two].into_iter().filter_map(|cores| {
                let ratio = self.ratio(comparison.of, comparison.to, cores)?;
                Some(format!(
                    "    {{\"of\": {}, \"to\": {}, \"cores\": {}, \"ratio\": {}}}",
                    string(comparison.of),
                    string(comparison.to),
                    cores.count(),
                    number(ratio),
                ))
            })
        });
        format!(
            "{{\n  \"machine\": {{\n{}\n  }},\n  \"repetitions\": {},\n  \"rows\": [\n{}\n  ],\n  \"ratios\": [\n{}\n  ]\n}}\n",
            lines(machine),
            self.repetitions,
            lines(rows),
            lines(ratios),
        )
    }

    fn find(&self, id: &str, cores: Cores) -> Option<&Row> {
        self.rows
            .iter()
            .copied()
            .find(|row| row.id == id && row.cores == cores && !row.values.values().is_empty())
    }

    fn ratio(&self, of: &str, to: &str, cores: Cores) -> Option<f64> {
        let (of, to) = (self.find(of, cores)?, self.find(to, cores)?);
        Some(of.values.median() / to.values.median())
    }
}

fn cell(row: &Row) -> String {
    let digits = if row.values.median() >= 100.0 { 0 } else { 2 };
    let spread = format!(
        "{:.digits$} ({:.digits$}..{:.digits$})",
        row.values.median(),
        row.values.min(),
        row.values.max()
    );
    if row.beside.values().is_empty() {
        spread
    } else {
        format!("{spread} {} {:.2}", row.unit.beside(), row.beside.median())
    }
}

fn lines(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",\n")
}

fn samples(prefix: &str, samples: &Samples) -> String {
    let all: Vec<_> = samples
        .values()
        .iter()
        .map(|value| number(*value))
        .collect();
    format!(
        "\"{prefix}median\": {}, \"{prefix}min\": {}, \"{prefix}max\": {}, \"{prefix}samples\": [{}]",
        number(samples.median()),
        number(samples.min()),
        number(samples.max()),
        all.join(", ")
    )
}

fn number(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.3}")
    } else {
        "null".into()
    }
}

fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
