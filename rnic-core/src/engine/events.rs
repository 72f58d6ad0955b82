//! Events on their way to the host, which may read them late or never: what unknown peers do must
//! not take more and more memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::connection::{Event, Notice};
use crate::ids::RequestId;

/// Events of all engines of a device that the host has not read. The number of those about queue
/// pairs is bounded by what the host did; connection requests are kept only while their peers wait.
#[derive(Debug, Default)]
pub struct Events {
    unread: Mutex<Unread>,
    /// Notified when there is an event, or a nudge for the thread that waits.
    news: Condvar,
    /// Woken when there is an event, whoever reads it.
    waker: OnceLock<Waker>,
}

#[derive(Debug, Default)]
struct Unread {
    notices: VecDeque<Notice>,
    requests: BTreeMap<RequestId, Notice>,
    /// A nudge: the thread that waits stops waiting, to look elsewhere.
    nudged: bool,
}

impl Unread {
    fn is_empty(&self) -> bool {
        self.notices.is_empty() && self.requests.is_empty()
    }

    fn add(&mut self, notice: Notice) {
        match &notice.event {
            Event::ConnectRequest { request, .. } => {
                self.requests.insert(*request, notice);
            }
            // The host has not read the request.
            Event::RequestGone { request } if self.requests.remove(request).is_some() => {}
            Event::Port { .. } => {
                self.forget_ports();
                self.notices.push_back(notice);
            }
            _ => self.notices.push_back(notice),
        }
    }

    /// Removes two unread changes of the link, down and up or up and down: a link that flaps must
    /// not take more and more memory.
    fn forget_ports(&mut self) {
        let is_port = |notice: &Notice| matches!(notice.event, Event::Port { .. });
        if self.notices.iter().filter(|notice| is_port(notice)).count() > 1 {
            self.notices.retain(|notice| !is_port(notice));
        }
    }
}

impl Events {
    /// Adds an event for the host.
    pub fn tell(&self, notice: Notice) {
        self.lock().add(notice);
        self.news.notify_one();
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Sets the waker that is woken for each event. It is also woken once now, because events may
    /// have come before. Returns false, and sets nothing, if there is one already.
    pub fn set_waker(&self, waker: Waker) -> bool {
        let mut new = Some(waker);
        let waker = self.waker.get_or_init(|| new.take().expect("called once"));
        waker.wake_by_ref();
        new.is_none()
    }

    /// Removes and returns the next event. Connection requests come behind all other events.
    pub fn next(&self) -> Option<Notice> {
        let mut unread = self.lock();
        let request = |unread: &mut Unread| Some(unread.requests.pop_first()?.1);
        let notice = unread.notices.pop_front();
        notice.or_else(|| request(&mut unread))
    }

    /// Returns whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Waits until there is an event or a [nudge](Self::nudge), for `at_most` at most. Only one
    /// thread at a time may wait.
    pub fn wait(&self, at_most: Duration) {
        let none = |unread: &mut Unread| unread.is_empty() && !unread.nudged;
        let waited = self.news.wait_timeout_while(self.lock(), at_most, none);
        // The caller looks whether there is an event, or the time is over.
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Wakes the thread that waits, or the next one that begins to.
    pub fn nudge(&self) {
        self.lock().nudged = true;
        self.news.notify_one();
    }

    /// Clears a nudge that nobody has waited for.
    pub fn forget_nudge(&self) {
        self.lock().nudged = false;
    }

    fn lock(&self) -> MutexGuard<'_, Unread> {
        // Whole after every statement.
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::EndReason;
    use crate::ids::{ListenerId, QpNumber};

    fn tell(events: &Events, event: Event) {
        events.tell(Notice {
            stream: None,
            event,
        });
    }

    fn asked(request: RequestId) -> Event {
        Event::ConnectRequest {
            listener: ListenerId(1),
            request,
            peer: "192.0.2.9:5000".parse().unwrap(),
            local: "192.0.2.1:4420".parse().unwrap(),
            private_data: vec![7; 512],
            ird: 0,
            ord: 0,
            mpa_revision: 1,
        }
    }

    fn read(events: &Events) -> Vec<Event> {
        std::iter::from_fn(|| events.next())
            .map(|notice| notice.event)
            .collect()
    }

    #[test]
    fn a_request_that_is_over_before_it_is_read_leaves_nothing() {
        let events = Events::default();
        for number in 0..1000 {
            let request = RequestId(number);
            tell(&events, asked(request));
            tell(&events, Event::RequestGone { request });
        }
        assert!(events.is_empty());
        let request = RequestId(1001);
        tell(&events, asked(request));
        assert_eq!(read(&events), [asked(request)]);
        tell(&events, Event::RequestGone { request });
        assert_eq!(read(&events), [Event::RequestGone { request }]);
    }

    #[test]
    fn what_happens_to_queue_pairs_is_never_lost() {
        let events = Events::default();
        let failed = |number| Event::Failed {
            qp: QpNumber(number),
            reason: EndReason::Reset,
        };
        for number in 0..100 {
            let request = RequestId(number.into());
            tell(&events, asked(request));
            tell(&events, failed(number));
            tell(&events, Event::RequestGone { request });
        }
        let expected: Vec<_> = (0..100).map(failed).collect();
        assert_eq!(read(&events), expected);
    }

    #[test]
    fn of_a_link_that_comes_and_goes_the_last_is_known() {
        for (changes, unread) in [(1, 1), (2, 2), (3, 1), (1000, 2), (1001, 1)] {
            let events = Events::default();
            for change in 0..changes {
                let active = change % 2 == 1;
                tell(&events, Event::Port { active });
            }
            let read = read(&events);
            assert_eq!(read.len(), unread);
            let active = changes % 2 == 0;
            assert_eq!(read.last(), Some(&Event::Port { active }));
        }
    }
}
