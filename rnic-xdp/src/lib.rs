//! The device: XDP program, AF_XDP rings, worker loop, routes and neighbours.
