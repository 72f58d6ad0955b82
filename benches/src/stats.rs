//! Medians and spreads.

/// The values of repeated runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn values(&self) -> &[f64] {
        &self.0
    }

    /// Returns the value that a share of the samples do not exceed. NaN if there are none.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1) as f64;
        sorted
            .get((last * share).round() as usize)
            .copied()
            .unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn min(&self) -> f64 {
        self.quantile(0.0)
    }

    pub(crate) fn max(&self) -> f64 {
        self.quantile(1.0)
    }
}

impl From<Vec<f64>> for Samples {
    fn from(values: Vec<f64>) -> Self {
        Self(values)
    }
}
