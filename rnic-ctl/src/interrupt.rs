//! Ctrl-C: a flag that every loop looks at. A part of the program that has failed can stop the others in the same way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, Outcome};

/// Whether to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    signalled: Arc<AtomicBool>,
    set: Arc<AtomicBool>,
}

impl Interrupt {
    /// From here on the first SIGINT, SIGTERM or SIGHUP sets the flag, and the second ends the process.
    pub(crate) fn install() -> io::Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, 130, interrupt.signalled.clone())?;
            flag::register(signal, interrupt.signalled.clone())?;
        }
        Ok(interrupt)
    }

    /// Stops the other parts of the program.
    pub(crate) fn set(&self) {
        self.set.store(true, Ordering::Relaxed);
    }

    /// Whether the user wants to stop: whatever fails then is a consequence.
    pub(crate) fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Relaxed)
    }

    /// Fails once the flag is set.
    pub(crate) fn check(&self) -> Outcome {
        if self.is_signalled() || self.set.load(Ordering::Relaxed) {
            Err(Failure::interrupted())
        } else {
            Ok(())
        }
    }
}
