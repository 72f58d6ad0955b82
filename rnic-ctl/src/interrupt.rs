//! Ctrl-C: a flag that every loop looks at.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, Outcome};

/// Whether the user wants to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From here on the first SIGINT, SIGTERM or SIGHUP sets the flag, and the second ends the process.
    pub(crate) fn install() -> io::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, 130, interrupt.0.clone())?;
            flag::register(signal, interrupt.0.clone())?;
        }
        Ok(interrupt)
    }

    /// Sets the flag.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails once the flag is set.
    pub(crate) fn check(&self) -> Outcome {
        if self.0.load(Ordering::Relaxed) {
            Err(Failure::interrupted())
        } else {
            Ok(())
        }
    }
}
