//! The structures and constants of `infiniband/verbs.h` and `rdma/rdma_cma.h`, under their own
//! names, as rdma-core lays them out on 64-bit machines. The headers and the manual pages say what
//! they mean.
//!
//! They are the newest ones. Older programs know a beginning of each structure, or of
//! [`verbs_context`] an end, and say or test how long the part is that they know.

#![allow(
    non_camel_case_types,
    non_snake_case,
    missing_docs,
    reason = "the names of the headers, which explain them"
)]

#[macro_use]
mod layout;
mod attributes;
mod constants;
mod kern;
mod objects;
mod rdma_cm;
mod verbs;
mod zeros;

pub use attributes::*;
pub use constants::*;
pub use kern::*;
pub use layout::Layout;
pub use objects::*;
pub use rdma_cm::*;
pub use verbs::*;
pub(crate) use zeros::Zeros;

/// Every structure, with its members.
pub const LAYOUTS: &[&[Layout]] = &[
    attributes::LAYOUTS,
    kern::LAYOUTS,
    objects::LAYOUTS,
    rdma_cm::LAYOUTS,
    verbs::LAYOUTS,
];
