//! Results as perftest's tables, and as JSON.

use serde_json::{Value, json};

use super::args::Test;
use super::stats::Latency;

/// Bandwidth of one message size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bandwidth {
    pub size: u64,
    pub iterations: u64,
    /// Messages a second, at best.
    pub peak_rate: f64,
    /// Messages a second.
    pub rate: f64,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Row {
    Bandwidth(Bandwidth),
    Latency {
        size: u64,
        iterations: u64,
        latency: Latency,
    },
}

/// The line between the parts of a report.
pub(super) const RULE: &str =
    "---------------------------------------------------------------------------------------";

/// The unit of bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// 2^20 octets a second.
    MegaBytes,
    /// 10^9 bits a second.
    GigaBits,
}

impl Unit {
    fn of(self, size: u64, rate: f64) -> f64 {
        let octets = size as f64 * rate;
        match self {
            Self::MegaBytes => octets / f64::from(1 << 20),
            Self::GigaBits => octets * 8.0 / 1e9,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::MegaBytes => "MB/sec",
            Self::GigaBits => "Gb/sec",
        }
    }
}

/// Returns the heading of the table.
pub(super) fn columns(test: Test, unit: Unit) -> String {
    if test.is_latency() {
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
         99% percentile[usec]   99.9% percentile[usec]"
            .to_owned()
    } else {
        let unit = unit.name();
        format!(" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]")
    }
}

impl Row {
    /// Returns a line of the table, each figure below the start of its heading.
    pub(super) fn to_line(self, unit: Unit) -> String {
        match self {
            Self::Bandwidth(row) => format!(
                " {:<10} {:<14} {:<18.2} {:<20.2} {:<.6}",
                row.size,
                row.iterations,
                unit.of(row.size, row.peak_rate),
                unit.of(row.size, row.rate),
                row.rate / 1e6
            ),
            Self::Latency {
                size,
                iterations,
                latency: l,
            } => format!(
                " {size:<6} {iterations:<14} {:<14.2} {:<12.2} {:<18.2} {:<14.2} {:<15.2} {:<22.2} {:<.2}",
                l.min, l.max, l.typical, l.average, l.stdev, l.p99, l.p999
            ),
        }
    }

    /// Returns it as JSON with perftest's names.
    pub(super) fn to_json(self, unit: Unit) -> Value {
        match self {
            Self::Bandwidth(row) => json!({
                "MsgSize": row.size,
                "n_iterations": row.iterations,
                "BW_peak": rounded(unit.of(row.size, row.peak_rate)),
                "BW_average": rounded(unit.of(row.size, row.rate)),
                "MsgRate": rounded(row.rate / 1e6),
                "unit": unit.name(),
            }),
            Self::Latency {
                size,
                iterations,
                latency: l,
            } => json!({
                "MsgSize": size,
                "n_iterations": iterations,
                "t_min": rounded(l.min),
                "t_max": rounded(l.max),
                "t_typical": rounded(l.typical),
                "t_avg": rounded(l.average),
                "t_stdev": rounded(l.stdev),
                "t_99_percentile": rounded(l.p99),
                "t_99_9_percentile": rounded(l.p999),
                "unit": "usec",
            }),
        }
    }

    /// Returns the figures for the peer, which did not measure.
    pub(super) fn to_figures(self) -> [f64; 9] {
        match self {
            Self::Bandwidth(row) => [
                row.size as f64,
                row.iterations as f64,
                row.peak_rate,
                row.rate,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
            ],
            Self::Latency {
                size,
                iterations,
                latency: l,
            } => [
                size as f64,
                iterations as f64,
                l.min,
                l.max,
                l.typical,
                l.average,
                l.stdev,
                l.p99,
                l.p999,
            ],
        }
    }

    /// Makes a row of the figures of the peer, which measured `test`.
    pub(super) fn from_figures(test: Test, figures: [f64; 9]) -> Self {
        let [
            size,
            iterations,
            min,
            max,
            typical,
            average,
            stdev,
            p99,
            p999,
        ] = figures;
        let (size, iterations) = (size as u64, iterations as u64);
        if test.is_latency() {
            let latency = Latency {
                min,
                max,
                typical,
                average,
                stdev,
                p99,
                p999,
            };
            Self::Latency {
                size,
                iterations,
                latency,
            }
        } else {
            Self::Bandwidth(Bandwidth {
                size,
                iterations,
                peak_rate: min,
                rate: max,
            })
        }
    }
}

/// Rounds to six places, for people who read the JSON.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Row = Row::Bandwidth(Bandwidth {
        size: 65536,
        iterations: 5000,
        peak_rate: 32000.0,
        rate: 16000.0,
    });

    #[test]
    fn bandwidth_stands_below_its_heading() {
        let (heading, line) = (
            columns(Test::WriteBw, Unit::MegaBytes),
            ROW.to_line(Unit::MegaBytes),
        );
        assert_eq!(
            heading,
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
        );
        assert_eq!(
            line,
            " 65536      5000           2000.00            1000.00              0.016000"
        );
        for (column, figure) in [
            ("#iter", "5000"),
            ("BW peak", "2000"),
            ("BW av", "1000"),
            ("MsgRate", "0.016"),
        ] {
            assert_eq!(heading.find(column), line.find(figure), "{column}");
        }
        let gigabits = ROW.to_line(Unit::GigaBits);
        assert!(
            gigabits.contains(" 16.78 ") && gigabits.contains(" 8.39 "),
            "{gigabits}"
        );
    }

    #[test]
    fn latency_stands_below_its_heading() {
        let latency = Latency {
            min: 1.0,
            max: 99.5,
            typical: 2.0,
            average: 3.0,
            stdev: 4.0,
            p99: 55.0,
            p999: 66.0,
        };
        let line = Row::Latency {
            size: 2,
            iterations: 1000,
            latency,
        }
        .to_line(Unit::MegaBytes);
        let heading = columns(Test::SendLat, Unit::MegaBytes);
        for (column, figure) in [
            ("#iterations", "1000"),
            ("t_min", "1.00"),
            ("t_max", "99.50"),
            ("t_typical", "2.00"),
            ("t_avg", "3.00"),
            ("t_stdev", "4.00"),
            ("99% ", "55.00"),
            ("99.9%", "66.00"),
        ] {
            assert_eq!(
                heading.find(column),
                line.find(figure),
                "{column}\n{heading}\n{line}"
            );
        }
    }

    #[test]
    fn json_uses_perftests_names() {
        let json = ROW.to_json(Unit::MegaBytes);
        assert_eq!(json["MsgSize"], 65536);
        assert_eq!(json["BW_average"], 1000.0);
        assert_eq!(json["MsgRate"], 0.016);
    }

    #[test]
    fn rows_travel() {
        let latency = Latency {
            min: 1.0,
            max: 2.0,
            typical: 3.0,
            average: 4.0,
            stdev: 5.0,
            p99: 6.0,
            p999: 7.0,
        };
        let row = Row::Latency {
            size: 2,
            iterations: 9,
            latency,
        };
        assert_eq!(Row::from_figures(Test::ReadLat, row.to_figures()), row);
        assert_eq!(Row::from_figures(Test::ReadBw, ROW.to_figures()), ROW);
    }
}
