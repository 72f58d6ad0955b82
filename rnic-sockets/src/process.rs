//! This process: what it inherits by a fork still belongs to its parent.

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker(u32);

impl Maker {
    /// Returns this process.
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Returns whether this process is a fork of the maker.
    pub(crate) fn is_forked(self) -> bool {
        self != Self::this()
    }
}
