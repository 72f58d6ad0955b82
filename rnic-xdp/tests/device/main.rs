//! What happens to an open device: a busy kernel, its removal, processes that fork, policies of the
//! host.

mod fork;
mod gone;
mod policy;
#[path = "../common/rig.rs"]
mod rig;
mod rtnl;
