//! The FPDU of a short message that is the only one to be sent.

use crate::connection::Context;
use crate::connection::upper::RdmapUser;
use crate::mpa::frame;
use crate::rdmap::{SHORT_ROOM, Short};
use crate::verbs::wr::MAX_INLINE;
use crate::wire::mpa::LENGTH_LEN;

use super::{Stream, User};

/// Octets of the longest FPDU of a short message.
const ROOM: usize = frame::fpdu_len(SHORT_ROOM);
// It fits, whatever MPA allows, and whatever room a segment has.
const _: () = assert!(SHORT_ROOM <= frame::MIN_MULPDU);

impl Stream {
    /// The message to be sent, if there is only this one and it is short. Where a FIN is asked for, no message begins.
    #[inline(always)]
    pub(in crate::connection) fn lone(&self, context: &Context<'_, '_>) -> Option<Short> {
        let may_begin = self.may_send() && self.ddp.may_begin() && self.markers.is_none();
        match &self.user {
            User::Rdmap(user) if may_begin => user.rdmap.lone_short(&user.qp, context.cqs),
            _ => None,
        }
    }

    /// Builds its FPDU at the front of a payload, whose first octet stands at `start` of the stream. Returns its length and
    /// its sum.
    #[inline(always)]
    pub(in crate::connection) fn build_lone(
        &mut self,
        lone: &Short,
        payload: &mut [u8],
        start: u64,
        context: &mut Context<'_, '_>,
    ) -> (u16, u16) {
        let User::Rdmap(RdmapUser { rdmap, qp, .. }) = &mut self.user else {
            return (0, 0);
        };
        let fpdu = &mut payload[..ROOM];
        let ulpdu = &mut fpdu[LENGTH_LEN..];
        let header_len = self.ddp.whole(lone.header, lone.len).emit(ulpdu);
        lone.copy(qp, &mut ulpdu[header_len..header_len + MAX_INLINE]);
        let ulpdu_len = header_len + lone.len as usize;
        let (len, sum) = frame::seal_and_sum_up(fpdu, ulpdu_len, self.crc);
        rdmap.begin_short(lone, start + len as u64);
        context.counters.rdma.fpdus_sent += 1;
        (len as u16, sum)
    }
}
