//! The rnic-ctl command.

fn main() {}
