//! Connections with the semantics of RC: what InfiniBand's reliable connections do where iWARP
//! differs. See docs/design/rc.md.

mod agreement;
#[path = "../common/mod.rs"]
mod common;
mod cuts;
mod immediate;
mod leaving;
mod lossy;
mod orphans;
mod scene;
