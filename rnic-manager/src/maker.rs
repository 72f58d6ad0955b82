//! Which process has made something. What a process inherits by a fork still belongs to its parent:
//! closing it in the kernel would take it from the parent.

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker(u32);

impl Maker {
    /// Returns this process.
    pub fn this() -> Self {
        Self(std::process::id())
    }

    /// Returns whether this process is a fork of the maker.
    pub fn is_forked(self) -> bool {
        self != Self::this()
    }
}
