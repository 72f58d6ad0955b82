//! What tells an engine that a receive was posted to a shared queue for which streams wait.

use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// The bell of a shared receive queue. The application rings it, behind a post, only where streams
/// wait: mostly none does.
#[derive(Debug, Default)]
pub struct SrqBell {
    waited_for: AtomicBool,
}

impl SrqBell {
    /// Asks for a ring. The engine then has to look at the queue once more: what was posted before
    /// rings nothing.
    pub fn wait(&self) {
        self.waited_for.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns, behind a post, whether the caller must ring. Of several that post, one does.
    #[must_use = "if true, streams wait for what was posted"]
    pub fn is_waited_for(&self) -> bool {
        // Before the look at the bell comes the post.
        fence(Ordering::SeqCst);
        self.waited_for.load(Ordering::Relaxed) && self.waited_for.swap(false, Ordering::SeqCst)
    }
}
