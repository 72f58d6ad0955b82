//! The table, for people.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::Report;
use crate::bed::Cores;
use crate::plan::{Key, Outcome, Row, ratio};
use crate::stats::Samples;

const BOTH: [Cores; 2] = [Cores::One, Cores::Two];

impl Report<'_> {
    /// Makes the table.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.machine {
            let _ = writeln!(text, "{name:<12} {value}");
        }
        let _ = writeln!(
            text,
            "\nmedian (least..greatest) of {} repetitions; veth, native XDP, copy mode; one core: a thread drives both\n\
             ends; Gb/s of payload: median of pieces of 1 MiB (or of a round of all connections), undisturbed by\n\
             other load; mean: of the whole run",
            self.repetitions
        );
        if self.repetitions < 3 {
            text.push_str("TOO FEW REPETITIONS TO JUDGE SPEED: ignore the verdicts\n");
        }
        let mut sections: Vec<&str> = self.rows.iter().map(|row| row.section).collect();
        sections.dedup();
        let mut shown = BTreeSet::new();
        for section in sections {
            if shown.insert(section) {
                self.write_section(&mut text, section);
            }
        }
        self.write_ratios(&mut text);
        self.write_targets(&mut text);
        self.write_contests(&mut text);
        text
    }

    /// Writes a line for each row, or for each curve.
    fn write_section(&self, text: &mut String, section: &str) {
        let rows = || self.rows.iter().filter(|row| row.section == section);
        let sizes: BTreeSet<usize> = rows().map(|row| row.key.size).collect();
        if sizes.len() > 1 {
            for cores in BOTH {
                let ids = rows().filter(|row| row.cores == cores);
                self.write_curves(text, section, cores, ids);
            }
            return;
        }
        let _ = writeln!(
            text,
            "\n{section:<52} {:>31} {:>31}",
            "one core", "two cores"
        );
        let mut shown: Vec<Key> = Vec::new();
        for row in rows() {
            if shown.contains(&row.key) {
                continue;
            }
            shown.push(row.key);
            let title = format!("{} [{}]", row.title, row.unit.name());
            let [one, two] =
                BOTH.map(|cores| self.find(row.key, cores).map_or_else(|| "-".into(), cell));
            let _ = writeln!(text, "{title:<52} {one:>31} {two:>31}");
        }
    }

    /// Medians by message size.
    fn write_curves<'a>(
        &self,
        text: &mut String,
        section: &str,
        cores: Cores,
        rows: impl Iterator<Item = &'a &'a Row>,
    ) {
        let mut shown: Vec<&str> = Vec::new();
        for row in rows {
            if shown.contains(&row.key.id) {
                continue;
            }
            let curve = self.sizes(row.key.id, cores);
            if shown.is_empty() {
                let title = format!("{section}, {} [{}]", cores.name(), row.unit.name());
                let _ = write!(text, "\n{title:<52}");
                for (size, _) in &curve {
                    let _ = write!(text, "{:>8}", octets(*size));
                }
                text.push('\n');
            }
            shown.push(row.key.id);
            let _ = write!(text, "{:<52}", row.title);
            for (_, row) in curve {
                let _ = write!(text, "{:>8.2}", row.values.median());
            }
            text.push('\n');
        }
    }

    fn write_ratios(&self, text: &mut String) {
        if self.goals.comparisons.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\n{:<60} {:>19} {:>19}",
            "ratio of medians (of each repetition)", "one core", "two cores"
        );
        for comparison in self.goals.comparisons {
            let ratios = BOTH.map(|cores| {
                ratio(self.rows, comparison.of, Some(comparison.to), cores)
                    .map(|(ratio, each)| spread(ratio, &each))
            });
            if ratios == [None, None] {
                continue;
            }
            let [one, two] = ratios.map(|ratio| ratio.unwrap_or_else(|| "-".into()));
            let _ = writeln!(text, "{:<60} {one:>19} {two:>19}", comparison.title);
        }
    }

    /// Writes the targets, each with its value if the protocols cost nothing, where that was
    /// measured.
    fn write_targets(&self, text: &mut String) {
        if self.goals.targets.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\n{:<47} {:>7} {:>26} {:>6} {:>26} {:>6}",
            "target", "", "one core", "limit", "two cores", "limit"
        );
        for target in self.goals.targets {
            let [(one, one_limit), (two, two_limit)] = BOTH.map(|cores| {
                let Some((value, each)) = ratio(self.rows, target.of, target.to, cores) else {
                    return ("-".to_owned(), String::new());
                };
                let verdict = target.bound.verdict(value).name();
                let limit = target.limit(self.rows, cores);
                (
                    format!("{} {verdict}", spread(value, &each)),
                    limit.map_or_else(String::new, |limit| format!("{limit:.2}")),
                )
            });
            let bound = target.bound.to_string();
            let _ = writeln!(
                text,
                "{:<47} {bound:>7} {one:>26} {one_limit:>6} {two:>26} {two_limit:>6}",
                target.title
            );
        }
        let _ = writeln!(text, "limit: {}", self.goals.limit);
    }

    /// Writes who wins.
    fn write_contests(&self, text: &mut String) {
        if self.goals.contests.is_empty() {
            return;
        }
        let _ = writeln!(
            text,
            "\n{:<52} {:>31} {:>31}",
            "which way wins", "one core", "two cores"
        );
        for contest in self.goals.contests {
            let outcomes = BOTH.map(|cores| contest.outcome(self.rows, cores));
            if outcomes == [None, None] {
                continue;
            }
            let [one, two] = outcomes.map(|outcome| {
                outcome.map_or_else(
                    || "-".into(),
                    |Outcome { winner, times }| format!("{winner}, {times:.2} times"),
                )
            });
            let _ = writeln!(text, "{:<52} {one:>31} {two:>31}", contest.title);
        }
    }
}

fn octets(size: usize) -> String {
    match size {
        1024.. if size.is_multiple_of(1 << 20) => format!("{}M", size >> 20),
        1024.. if size.is_multiple_of(1 << 10) => format!("{}K", size >> 10),
        _ => size.to_string(),
    }
}

fn spread(median: f64, samples: &Samples) -> String {
    let digits = if median >= 100.0 { 0 } else { 2 };
    let (min, max) = (samples.min(), samples.max());
    format!("{median:.digits$} ({min:.digits$}..{max:.digits$})")
}

fn cell(row: &Row) -> String {
    let spread = spread(row.values.median(), &row.values);
    if row.beside.values().is_empty() {
        spread
    } else {
        format!("{spread} {} {:.2}", row.unit.beside(), row.beside.median())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machine, row};
    use super::*;
    use crate::plan::GOALS;

    #[test]
    fn a_missed_target_is_printed_as_missed_and_one_that_was_not_measured_as_nothing() {
        let rows = [
            row("write-lat", 1500, 64, &[5.0]),
            row("tcp-lat", 1500, 64, &[8.0]),
            row("raw-lat", 1500, 64, &[4.0]),
            row("raw-lat-all", 1500, 64, &[4.4]),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        let machine = machine();
        let report = Report {
            machine: &machine,
            repetitions: 1,
            rows: &rows,
            goals: GOALS,
        };
        let table = report.table();
        let line = |title: &str| {
            let targets = table.split("\ntarget").nth(1).unwrap();
            targets
                .lines()
                .find(|line| line.starts_with(title))
                .unwrap()
        };
        let of_kernel = line("Write round trip ÷ kernel TCP");
        assert!(of_kernel.ends_with("0.62 (0.62..0.62) MISSED   0.55"));
        assert!(line("Write round trip ÷ raw AF_XDP").ends_with("1.25 (1.25..1.25) holds   1.10"));
        assert!(
            line("Send round trip ÷ raw AF_XDP")
                .trim_end()
                .ends_with('-')
        );
    }

    #[test]
    fn curves_have_a_column_for_each_size_also_of_those_in_other_sections() {
        let mut rows = [
            row("write-bw", 1500, 65536, &[5.0]),
            row("write-bw", 1500, 64, &[0.5]),
            row("write-bw", 1500, 1 << 20, &[6.0]),
        ];
        rows[0].section = "one size";
        let rows: Vec<&Row> = rows.iter().collect();
        let machine = machine();
        let report = Report {
            machine: &machine,
            repetitions: 1,
            rows: &rows,
            goals: GOALS,
        };
        let table = report.table();
        let heading = table.lines().find(|line| line.starts_with("section,"));
        assert!(
            heading.unwrap().ends_with("      64     64K      1M"),
            "{table}"
        );
        assert!(table.contains("    0.50    5.00    6.00\n"), "{table}");
    }
}
