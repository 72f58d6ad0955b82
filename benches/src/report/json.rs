//! The results for programs.

use serde_json::{Map, Value, json};

use super::Report;
use crate::bed::Cores;
use crate::plan::{Key, Outcome, Row, ratio};
use crate::stats::Samples;

impl Report<'_> {
    /// Makes the JSON: all values of the table, and each sample.
    pub(crate) fn json(&self) -> Value {
        let machine: Map<String, Value> = self
            .machine
            .iter()
            .map(|(name, value)| ((*name).into(), value.as_str().into()))
            .collect();
        json!({
            "machine": machine,
            "repetitions": self.repetitions,
            "rows": self.rows.iter().map(|row| row_json(row)).collect::<Vec<_>>(),
            "ratios": self.on_cores(|cores| self.ratios(cores)),
            "targets": self.on_cores(|cores| self.targets(cores)),
            "contests": self.on_cores(|cores| self.contests(cores)),
        })
    }

    fn on_cores(&self, what: impl Fn(Cores) -> Vec<Value>) -> Vec<Value> {
        [Cores::One, Cores::Two]
            .into_iter()
            .flat_map(what)
            .collect()
    }

    fn ratios(&self, cores: Cores) -> Vec<Value> {
        let ratios = self.goals.comparisons.iter().filter_map(|comparison| {
            let (value, each) = ratio(self.rows, comparison.of, Some(comparison.to), cores)?;
            Some(json!({
                "title": comparison.title,
                "cores": cores.count(),
                "of": key(comparison.of),
                "to": key(comparison.to),
                "ratio": value,
                "min": each.min(),
                "max": each.max(),
            }))
        });
        ratios.collect()
    }

    fn contests(&self, cores: Cores) -> Vec<Value> {
        let contests = self.goals.contests.iter().filter_map(|contest| {
            let Outcome { winner, times } = contest.outcome(self.rows, cores)?;
            Some(json!({
                "title": contest.title,
                "cores": cores.count(),
                "winner": winner,
                "times": times,
            }))
        });
        contests.collect()
    }

    fn targets(&self, cores: Cores) -> Vec<Value> {
        let targets = self.goals.targets.iter().filter_map(|target| {
            let (value, each) = ratio(self.rows, target.of, target.to, cores)?;
            Some(json!({
                "title": target.title,
                "cores": cores.count(),
                "of": key(target.of),
                "to": target.to.map(key),
                "bound": target.bound.to_string(),
                "value": value,
                "min": each.min(),
                "max": each.max(),
                "limit": target.limit(self.rows, cores),
                "verdict": target.bound.verdict(value).name().to_lowercase(),
            }))
        });
        targets.collect()
    }
}

fn key(key: Key) -> Value {
    json!({"id": key.id, "mtu": key.mtu, "size": key.size})
}

fn row_json(row: &Row) -> Value {
    let mut value = json!({
        "id": row.key.id,
        "mtu": row.key.mtu,
        "size": row.key.size,
        "cores": row.cores.count(),
        "title": row.title,
        "unit": row.unit.name(),
    });
    add(&mut value, "", &row.values);
    if !row.beside.values().is_empty() {
        add(&mut value, &format!("{}_", row.unit.beside()), &row.beside);
    }
    value
}

fn add(row: &mut Value, prefix: &str, samples: &Samples) {
    row[format!("{prefix}median")] = samples.median().into();
    row[format!("{prefix}min")] = samples.min().into();
    row[format!("{prefix}max")] = samples.max().into();
    row[format!("{prefix}samples")] = samples.values().into();
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machine, row};
    use super::*;
    use crate::plan::GOALS;

    #[test]
    fn what_is_written_reads_the_same() {
        let rows = [
            row("write-lat", 1500, 64, &[5.0, 6.0, 7.0]),
            row("tcp-lat", 1500, 64, &[8.0, 8.0, 8.0]),
            row("raw-lat", 1500, 64, &[]),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        let machine = machine();
        let report = Report {
            machine: &machine,
            repetitions: 3,
            rows: &rows,
            goals: GOALS,
        };
        let text = report.json().to_string();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["machine"]["cpu"], machine[0].1.as_str());
        assert_eq!(read["rows"][0]["samples"], json!([5.0, 6.0, 7.0]));
        assert_eq!(read["rows"][0]["median"], 6.0);
        // JSON has no NaN.
        assert_eq!(read["rows"][2]["median"], Value::Null);
        let [target] = &read["targets"].as_array().unwrap()[..] else {
            panic!("{text}");
        };
        assert_eq!(target["verdict"], "missed");
        assert_eq!(target["limit"], Value::Null);
        assert_eq!(
            (&target["value"], &target["max"]),
            (&json!(0.75), &json!(0.875))
        );
    }
}
