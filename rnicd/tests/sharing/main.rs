//! rnicd with clients that have no right at all, and a peer that has an interface to itself: in two
//! network namespaces, with the real kernel.

mod boundary;
mod changes;
mod client;
mod crowd;
mod deaths;
mod exchange;
mod floods;
mod hostile;
mod inspection;
mod leftovers;
mod mapped;
mod memory;
mod peer;
mod play;
mod policy;
mod queues;
mod remains;
mod reservations;
mod restarts;
mod revoked;
mod rig;
mod strangers;
mod transfers;
