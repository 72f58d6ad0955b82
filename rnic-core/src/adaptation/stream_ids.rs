//! Which streams of an association have no session (RFC 5043 sections 6.6 and 8).

/// The streams that a new session may have. A stream comes back only when [nothing of its session
/// is outstanding](super::Session::frees_stream); one of which that is not known never does.
#[derive(Debug, Default)]
pub struct StreamIds {
    /// How many pairs of streams the association has.
    count: u16,
    /// The first that had no session yet.
    fresh: u16,
    returned: Vec<u16>,
}

impl StreamIds {
    /// Makes it for an association with so many streams each way.
    // rfc: 5043-21 a pair has the same identifier both ways
    pub fn new(outbound: u16, inbound: u16) -> Self {
        Self {
            count: outbound.min(inbound),
            ..Self::default()
        }
    }

    /// Takes a stream for a session.
    pub fn take(&mut self) -> Option<u16> {
        self.returned.pop().or_else(|| {
            let stream = self.fresh;
            (stream < self.count).then(|| {
                self.fresh += 1;
                stream
            })
        })
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.returned.is_empty() && self.fresh >= self.count
    }

    /// Returns whether there is a pair of streams with this identifier.
    pub fn has(&self, stream: u16) -> bool {
        stream < self.count
    }

    /// Gives a stream back.
    pub fn give_back(&mut self, stream: u16) {
        self.returned.push(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_taken_once_until_they_come_back() {
        // rfc: 5043-21
        let mut streams = StreamIds::new(3, 2);
        assert!(streams.has(1) && !streams.has(2));
        assert_eq!((streams.take(), streams.take()), (Some(0), Some(1)));
        assert_eq!((streams.take(), streams.is_empty()), (None, true));
        streams.give_back(1);
        assert!(!streams.is_empty());
        assert_eq!((streams.take(), streams.take()), (Some(1), None));
    }
}
