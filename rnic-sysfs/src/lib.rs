//! `librnic_sysfs.so`, which `rnic run` preloads: programs that look for RDMA devices in
//! `/sys/class/infiniband` find those of rnic there, which the kernel does not know.
//!
//! The functions of the C library that take a path stand here again (`symbols`). Each passes its
//! call on to the next library that has the function. A path in `/sys/class/infiniband` leads into
//! the directory that `RNIC_SYSFS` names (`tree`), if what it names exists there; all others stay
//! as they are. So does the entry of a device that the kernel has.
//!
//! These functions run in every thread of any program, also before `main`, in signal handlers, and
//! in threads that are cancelled: they take no lock, allocate nothing, leave errno as it is, and
//! have nothing to clean up.

// From the ground up; each file imports only from those below it: paths, next < tree < symbols.
mod next;
mod paths;
mod symbols;
mod tree;
