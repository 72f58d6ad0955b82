//! The associations of the kernel, as an engine uses them, or a test by hand.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::connection::{
    Accepted, Arrived, AssociationSocket, Associations, EndReason, OutgoingChunk, PortReservation,
    Ready,
};
use crate::ids::ListenerId;
use crate::tcp::TcpFailure;

use super::kernel::{Arrival, Reserved, SctpKernel, SharedSctp, lock};

/// The associations of a virtual kernel.
#[derive(Clone)]
pub struct VirtualAssociations(pub(in crate::testing) SharedSctp);

/// An association of a virtual kernel.
pub struct VirtualAssociation {
    kernel: SharedSctp,
    number: usize,
}

impl fmt::Debug for VirtualAssociation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VirtualAssociation")
            .field(&self.number)
            .finish()
    }
}

impl VirtualAssociations {
    /// Sets the indication of associations that are made from now on, and the number of their
    /// streams.
    pub fn set_indication(&self, indication: Option<u32>, streams: u16) {
        let mut kernel = lock(&self.0);
        (kernel.indication, kernel.streams) = (indication, streams);
    }

    /// Sets the most octets of a chunk.
    pub fn set_max_chunk(&self, octets: usize) {
        lock(&self.0).max_chunk = octets;
    }

    /// Sets aside the chunks of a stream of associations that are sent from now on, as if each were
    /// lost each time; or sends them again.
    pub fn hold_stream(&self, stream: Option<u16>) {
        lock(&self.0).held_stream = stream;
    }

    /// Has so many associations come up next without their peers learning of it, as if the COOKIE
    /// ACK of Linux were lost.
    pub fn leave_unheard(&self, associations: usize) {
        lock(&self.0).unheard = associations;
    }

    /// Returns how often peers were probed.
    pub fn probes(&self) -> usize {
        lock(&self.0).probes
    }

    /// Returns how many associations there are.
    pub fn count(&self) -> usize {
        lock(&self.0).associations.len()
    }

    /// Returns how often an association sends a chunk without an answer before it fails.
    pub fn tries(&self, association: usize) -> u32 {
        lock(&self.0).associations[association].tries
    }

    /// Listens on a port for a test, which accepts by hand.
    pub fn listen_by_hand(&self, local: SocketAddr) {
        lock(&self.0).listen(None, local);
    }

    /// Connects by hand.
    pub fn connect_by_hand(&self, local: SocketAddr, remote: SocketAddr) -> VirtualAssociation {
        let number = lock(&self.0).connect(local, remote);
        self.association(number)
    }

    /// Returns the next association that a peer has set up with a port that a test listens on.
    pub fn accept_by_hand(&self) -> Option<VirtualAssociation> {
        let (number, _, _) = lock(&self.0).accept(None)?;
        Some(self.association(number))
    }

    fn association(&self, number: usize) -> VirtualAssociation {
        let kernel = self.0.clone();
        VirtualAssociation { kernel, number }
    }
}

impl VirtualAssociation {
    fn with<R>(&self, call: impl FnOnce(&mut SctpKernel, usize) -> R) -> R {
        call(&mut lock(&self.kernel), self.number)
    }

    /// Returns the next chunk that has come, with its stream and protocol, for a test.
    pub fn take_chunk(&mut self) -> Option<(u16, u32, Vec<u8>)> {
        let mut room = vec![0; crate::connection::LONGEST_CHUNK];
        loop {
            match self.receive(&mut room) {
                Ok(Arrived::Chunk {
                    stream,
                    protocol,
                    len,
                }) => return Some((stream, protocol, room[..len].to_vec())),
                Ok(Arrived::Nothing | Arrived::Closed) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Sends a chunk for a test, which has room.
    pub fn put_chunk(&mut self, stream: u16, protocol: u32, octets: &[u8]) {
        let chunk = OutgoingChunk {
            stream,
            protocol,
            octets,
            urgent: false,
        };
        assert_eq!(self.send(&chunk), Ok(true));
    }

    /// Returns whether the peer has ended the association.
    pub fn is_over(&self) -> bool {
        self.with(|kernel, number| kernel.associations[number].is_over())
    }
}

impl AssociationSocket for VirtualAssociation {
    fn receive(&mut self, into: &mut [u8]) -> Result<Arrived, TcpFailure> {
        self.with(|kernel, number| {
            let Some(arrival) = kernel.associations[number].arrived.pop_front() else {
                return Ok(Arrived::Nothing);
            };
            Ok(match arrival {
                Arrival::Up(streams) => Arrived::Up {
                    outbound: streams,
                    inbound: streams,
                },
                Arrival::Restarted(streams) => Arrived::Restarted {
                    outbound: streams,
                    inbound: streams,
                },
                Arrival::Indication(indication) => Arrived::Indication(indication),
                Arrival::Chunk(stream, protocol, octets) => {
                    into[..octets.len()].copy_from_slice(&octets);
                    Arrived::Chunk {
                        stream,
                        protocol,
                        len: octets.len(),
                    }
                }
                Arrival::Closed => Arrived::Closed,
                Arrival::Failed(failure) => return Err(failure),
            })
        })
    }

    fn send(&mut self, chunk: &OutgoingChunk<'_>) -> Result<bool, TcpFailure> {
        self.with(|kernel, number| kernel.submit(number, chunk))
    }

    fn acknowledged(&mut self) -> u64 {
        self.with(|kernel, number| u64::from(kernel.associations[number].acked))
    }

    fn max_chunk(&self) -> usize {
        self.with(|kernel, _| kernel.max_chunk)
    }

    fn heard(&mut self) -> u64 {
        self.with(|kernel, number| kernel.associations[number].heard)
    }

    fn probe(&mut self) {
        self.with(SctpKernel::probe);
    }

    fn outlast(&mut self, patience: Option<Duration>) {
        self.with(|kernel, number| kernel.outlast(number, patience));
    }

    fn abort(&mut self) {
        self.with(|kernel, number| kernel.abort(number));
    }
}

impl Drop for VirtualAssociation {
    fn drop(&mut self) {
        self.with(|kernel, number| kernel.leave(number));
    }
}

impl Associations for VirtualAssociations {
    type Socket = VirtualAssociation;

    fn connect(
        &mut self,
        reservation: &PortReservation,
        remote: SocketAddr,
        _: u8,
    ) -> Result<VirtualAssociation, EndReason> {
        let reserved = reservation.downcast_ref::<Reserved>();
        let local = reserved.ok_or(EndReason::Unreachable)?.local;
        Ok(self.connect_by_hand(local, remote))
    }

    fn watch(&mut self, socket: &VirtualAssociation, index: usize) -> Result<(), EndReason> {
        socket.with(|kernel, number| kernel.associations[number].watched = Some(index));
        Ok(())
    }

    fn listen(
        &mut self,
        listener: ListenerId,
        reservation: &PortReservation,
    ) -> Result<(), EndReason> {
        let reserved = reservation.downcast_ref::<Reserved>();
        let local = reserved.ok_or(EndReason::Unreachable)?.local;
        lock(&self.0).listen(Some(listener), local);
        Ok(())
    }

    fn unlisten(&mut self, listener: ListenerId) {
        lock(&self.0).unlisten(listener);
    }

    fn pause(&mut self, _: ListenerId) {}

    fn accept(&mut self, listener: ListenerId) -> Option<Accepted<VirtualAssociation>> {
        let (number, local, remote) = lock(&self.0).accept(Some(listener))?;
        Some(Accepted {
            socket: self.association(number),
            local,
            remote,
        })
    }

    fn poll(&mut self, ready: &mut Vec<Ready>) {
        lock(&self.0).poll(ready);
    }
}
