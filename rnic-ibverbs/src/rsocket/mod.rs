//! rsockets: sockets over rdma_cm and verbs, which speak with those of rdma-core over iWARP. See
//! rsocket(7).
//!
//! A socket has a queue pair and four buffers. `send` copies data into the send buffer, writes them
//! from there into the peer's receive buffer (RDMA Write), and says by a message (Send) how many
//! they were; `receive` copies them out of our own. `incoming` and `outgoing` keep the accounts of
//! what may be sent. The calls of the application move the data; events of connections are handled
//! by a thread of the library (`service`). Datagrams need queue pairs that iWARP has not, so
//! `rsocket` refuses SOCK_DGRAM.

// From the ground up; each file imports only from those below it:
// address, calls, inside, layout, pieces, reactor, waiter < outgoing < config, incoming <
// identifier < buffer < endpoint, mapping < socket < index, progress < connect, keepalive, poll,
// receive, send < close, options, repoll, service < children < symbols < repoll_symbols
mod address;
mod buffer;
mod calls;
mod children;
mod close;
mod config;
mod connect;
mod endpoint;
mod identifier;
mod incoming;
mod index;
mod inside;
mod keepalive;
mod layout;
mod mapping;
mod options;
mod outgoing;
mod pieces;
mod poll;
mod progress;
mod reactor;
mod receive;
mod repoll;
mod repoll_symbols;
mod send;
mod service;
mod socket;
mod symbols;
mod waiter;
