//! Tests of the layouts: each field by known octets, every truncation, and round trips of arbitrary
//! values.

mod atomic;
mod checksum;
mod datagram;
mod ddp;
mod flow_control;
mod fpdu_template;
mod hello;
mod icmp;
mod mpa;
mod packet;
mod port_mapper;
mod prediction;
mod rdmap;
mod segment_template;
mod serial;
mod session;
mod tcp;
mod template;
