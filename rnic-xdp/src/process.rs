//! Which process something belongs to. What a process has got by a fork is still its parent's: to end it in the kernel would
//! take it from the parent.

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker(u32);

impl Maker {
    /// This process.
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this is another, which has got it by a fork.
    pub(crate) fn is_forked(self) -> bool {
        self != Self::this()
    }
}
