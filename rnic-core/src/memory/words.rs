//! Copies to and from memory that somebody watches.
//!
//! Programs wait for what peers write by looking at words of it: a flag or an index, alone or at
//! the end of a longer message. So each aligned word of 2, 4 or 8 octets that lies in a piece as a
//! whole is stored in one piece, words are stored in the order of their addresses, each once, and
//! the last one after all others are visible. An RDMA Read sees no torn word either: what is read
//! is loaded in such words.
//!
//! A word that does not lie in one piece is stored in as many parts as there are pieces: the
//! payload of an FPDU is one, or the part of it that an element of a scatter/gather list takes.

pub(super) use super::guarded::{load, store};

#[cfg(test)]
mod tests;
