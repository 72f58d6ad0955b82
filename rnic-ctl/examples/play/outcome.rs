//! What a step of a play returns.

use std::error::Error;

/// A result, or why the play failed.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;
