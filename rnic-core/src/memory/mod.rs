//! Frames kept for transmission, memory regions, the STag table, placement proofs and shared rings.

pub mod frames;
