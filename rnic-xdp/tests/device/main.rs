//! What goes on beside the frames: a kernel that is busy, a device that goes, processes that fork.

mod fork;
mod gone;
mod policy;
#[path = "../common/rig.rs"]
mod rig;
mod rtnl;
