//! Posting several requests, or none of them.

use super::Qp;
use crate::error::PostError;
use crate::request::SendRequest;

impl Qp {
    /// Posts several requests with one doorbell, or none of them: they are asked for twice, and
    /// posted when all are right and have room. The iterator must give the same requests each time.
    /// Fails with the error of the first request that is wrong, or if the send queue has no room
    /// for all.
    pub fn post_whole<'a, E: From<PostError>, I>(
        &mut self,
        mut requests: impl FnMut() -> I,
    ) -> Result<(), E>
    where
        I: IntoIterator<Item = Result<SendRequest<'a>, E>>,
    {
        let mut count = 0;
        for request in requests() {
            self.check_send(&request?)?;
            count += 1;
        }
        if count > self.sq.free() {
            return Err(PostError::SendQueueFull(self.sq.capacity()).into());
        }
        for request in requests() {
            // Its state is not looked at again, which may have changed: then they wait, all of
            // them.
            self.push_checked(&request?)?;
        }
        if count > 0 {
            self.ring();
        }
        Ok(())
    }

    /// Fails if a request cannot be posted. That there may be no room for it is not looked at.
    fn check_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let (max_sge, max_inline) = (self.caps.max_sge, self.caps.max_inline);
        if request.plain(max_sge, max_inline).is_none() {
            request.encode(max_sge, max_inline)?;
        }
        if !self.takes_sends && !request.is_local() {
            self.check_connected()?;
        }
        Ok(())
    }

    /// Pushes a request that was [checked](Self::check_send).
    fn push_checked(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let (max_sge, max_inline) = (self.caps.max_sge, self.caps.max_inline);
        match request.plain(max_sge, max_inline) {
            Some((front, payload)) => self.push_plain(&front, payload),
            None => {
                let wr = request.encode(max_sge, max_inline)?;
                self.push_encoded(&wr)
            }
        }
    }
}
