//! Metrics in the text format of Prometheus.

use std::collections::BTreeMap;

use prometheus::TextEncoder;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::failure::{Doing, Outcome};

/// Labels, each a name and a value.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

/// What is known of a metric.
struct Family {
    help: &'static str,
    kind: MetricType,
    /// By the values of the labels.
    samples: BTreeMap<Vec<(&'static str, String)>, f64>,
}

/// Metrics by their names.
#[derive(Default)]
pub(super) struct Exposition(BTreeMap<&'static str, Family>);

impl Exposition {
    /// Adds to a counter. Two users who have the same name are one.
    pub(super) fn count(
        &mut self,
        (name, help): (&'static str, &'static str),
        labels: Labels<'_>,
        value: u64,
    ) {
        *self.sample(name, help, MetricType::COUNTER, labels) += value as f64;
    }

    /// Adds to a gauge.
    pub(super) fn gauge(
        &mut self,
        (name, help): (&'static str, &'static str),
        labels: Labels<'_>,
        value: u64,
    ) {
        *self.sample(name, help, MetricType::GAUGE, labels) += value as f64;
    }

    fn sample(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: MetricType,
        labels: Labels<'_>,
    ) -> &mut f64 {
        let family = self.0.entry(name).or_insert(Family {
            help,
            kind,
            samples: BTreeMap::new(),
        });
        let labels = labels.iter();
        let labels = labels.map(|&(name, value)| (name, value.to_owned()));
        family.samples.entry(labels.collect()).or_default()
    }

    /// Returns the text.
    pub(super) fn text(self) -> Outcome<String> {
        let families: Vec<_> = self.0.into_iter().map(family).collect();
        let text = TextEncoder::new().encode_to_string(&families);
        text.doing("put metrics in the format of Prometheus")
    }
}

fn family((name, family): (&'static str, Family)) -> MetricFamily {
    let metrics = family.samples.into_iter().map(|(labels, value)| {
        let pairs = labels.into_iter().map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value);
            pair
        });
        let mut metric = Metric::from_label(pairs.collect());
        if family.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        metric
    });
    let mut out = MetricFamily::default();
    out.set_name(name.to_owned());
    out.set_help(family.help.to_owned());
    out.set_field_type(family.kind);
    out.set_metric(metrics.collect());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_that_of_prometheus() {
        const ONE: (&str, &str) = ("a_total", "What.");
        const OTHER: (&str, &str) = ("b", "Else.");
        let mut exposition = Exposition::default();
        exposition.gauge(OTHER, &[], 1);
        exposition.count(ONE, &[("user", "x\"\\\n")], 1);
        exposition.count(ONE, &[("user", "x\"\\\n")], 2);
        exposition.count(ONE, &[("user", "a")], u64::from(u32::MAX) * 1000);
        assert_eq!(
            exposition.text().unwrap(),
            r#"# HELP a_total What.
# TYPE a_total counter
a_total{user="a"} 4294967295000
a_total{user="x\"\\\n"} 3
# HELP b Else.
# TYPE b gauge
b 1
"#
        );
    }
}
