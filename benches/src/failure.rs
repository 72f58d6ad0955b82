//! The error type of all measurements.

/// Why a measurement failed.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
