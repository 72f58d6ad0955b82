//! The results: the table, JSON, and plots over message size.

mod json;
mod plot;
mod table;

use std::fs;
use std::path::Path;

use crate::bed::Cores;
use crate::failure::Failure;
use crate::plan::{Goals, Key, Row, Series, find, plots};

use self::plot::{Curve, Plot};

/// All results.
pub(crate) struct Report<'a> {
    pub(crate) machine: &'a [(&'static str, String)],
    pub(crate) repetitions: usize,
    pub(crate) rows: &'a [&'a Row],
    pub(crate) goals: Goals,
}

impl Report<'_> {
    /// Writes an SVG file for each plot and number of cores of which there is more than a point.
    pub(crate) fn write_plots(&self, directory: &Path) -> Result<(), Failure> {
        fs::create_dir_all(directory)?;
        for (name, title, unit, series) in plots() {
            for cores in [Cores::One, Cores::Two] {
                let curves: Vec<_> = series
                    .iter()
                    .map(|series| self.curve(series, cores))
                    .filter(|curve| curve.points.len() > 1)
                    .collect();
                if curves.is_empty() {
                    continue;
                }
                let plot = Plot {
                    title: format!("{title}, {}", cores.name()),
                    x: "octets of a message",
                    y: unit.name(),
                    curves,
                };
                let file = directory.join(format!("{name}-{}.svg", cores.count()));
                fs::write(&file, plot.svg())
                    .map_err(|error| format!("{}: {error}", file.display()))?;
            }
        }
        Ok(())
    }

    fn curve(&self, series: &Series, cores: Cores) -> Curve {
        let points = self.sizes(series.id, cores).into_iter();
        Curve {
            title: series.title,
            points: points
                .map(|(size, row)| plot::Point {
                    x: size as f64,
                    low: row.values.min(),
                    y: row.values.median(),
                    high: row.values.max(),
                })
                .collect(),
        }
    }

    /// Returns the rows of a curve, by message size.
    fn sizes(&self, id: &str, cores: Cores) -> Vec<(usize, &Row)> {
        let of_curve = |row: &&&Row| row.key.id == id && row.key.mtu == 1500 && row.cores == cores;
        let measured = |row: &&&Row| !row.values.values().is_empty();
        let rows = self.rows.iter().filter(of_curve).filter(measured);
        let mut rows: Vec<_> = rows.map(|row| (row.key.size, *row)).collect();
        rows.sort_by_key(|(size, _)| *size);
        rows
    }

    fn find(&self, key: Key, cores: Cores) -> Option<&Row> {
        find(self.rows, key, cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Unit;
    use crate::stats::Samples;

    pub(super) fn machine() -> Vec<(&'static str, String)> {
        vec![("cpu", "one \"of\" them".into())]
    }

    pub(super) fn row(id: &'static str, mtu: u16, size: usize, values: &[f64]) -> Row {
        Row {
            section: "section",
            key: Key { id, mtu, size },
            cores: Cores::Two,
            title: "title",
            unit: Unit::Gbps,
            values: values.to_vec().into(),
            beside: Samples::default(),
        }
    }
}
