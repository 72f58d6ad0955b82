//! What changes of a shared device beside its link: its MTU, the program that it runs, and the ends
//! of its ports. A port ends when the kernel has taken its veth pair, because its client has ended.

use std::time::Duration;

use rnic_core::time::Instant;
use rnic_core::wire::ethernet::MacAddr;
use rnic_manager::states::DeviceNews;
use tracing::{info, warn};

use super::device::{DeviceEvent, SharedDevice};
use super::programs::Looked;
use crate::device::netlink::{Link, LinkChange, Message, link_by_index, links};

/// How often to look whether the device runs the program, beside what the kernel reports: it does
/// not report all.
const PROGRAM_EVERY: Duration = Duration::from_secs(10);
/// How often to try to attach it while that fails.
const ATTACH_EVERY: Duration = Duration::from_secs(2);

impl SharedDevice {
    pub(super) fn handle_changes(&mut self, messages: &[Message]) {
        for message in messages {
            match LinkChange::from_message(message) {
                Some(LinkChange::Gone(index)) => self.lose_port(index),
                Some(LinkChange::Is(link)) if link.index == self.link.index => {
                    self.follow_link(&link);
                }
                _ => {}
            }
        }
        self.follow_surroundings(messages);
    }

    /// Reads what notifications would have told.
    pub(super) fn read_again(&mut self) {
        self.read_surroundings();
        let Ok(there) = links(&mut self.requests) else {
            return warn!(
                "cannot list the network devices; ports that have ended are noticed later"
            );
        };
        if let Some(link) = there.iter().find(|link| link.index == self.link.index) {
            self.follow_link(link);
        }
        let is_there = |index: u32, name: &str| {
            let mut links = there.iter();
            links.any(|link| link.index == index && link.name == name)
        };
        let ports = self.ports.iter();
        let lost = ports.filter(|(index, port)| !is_there(**index, &self.host_end(**port)));
        let lost: Vec<_> = lost.map(|(index, _)| *index).collect();
        for index in lost {
            self.lose_port(index);
        }
    }

    fn follow_link(&mut self, link: &Link) {
        self.set_mtu(link.mtu);
        self.set_mac(link.mac);
        if !self.steering.is_ours(link.xdp) {
            self.look_at_program_soon();
        }
    }

    /// Sets another MTU for ports that are made from now on. Those that there are keep theirs,
    /// because of the size of their frames.
    fn set_mtu(&mut self, mtu: u32) {
        if self.link.mtu != mtu {
            self.link.mtu = mtu;
            self.report(DeviceNews::Mtu { mtu });
        }
    }

    fn set_mac(&mut self, mac: MacAddr) {
        if self.link.mac != mac {
            self.link.mac = mac;
            self.report(DeviceNews::Mac {
                mac: mac.to_string(),
            });
        }
    }

    pub(super) fn report(&mut self, news: DeviceNews) {
        self.events.push_back(DeviceEvent::News(news));
    }

    /// Returns why clients get no ports now, if the device does not run the steering program.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Makes the next [`poll`](Self::poll) look whether the device runs the steering program.
    pub fn look_at_program_soon(&mut self) {
        self.program_at = Instant::ZERO;
    }

    /// Looks whether the device runs the steering program, and attaches it again if it runs none.
    pub(super) fn follow_program(&mut self, now: Instant) {
        if now < self.program_at {
            return;
        }
        self.program_at = now + ATTACH_EVERY;
        let link = link_by_index(&mut self.requests, self.link.index);
        // One that is gone is given up; what cannot be read now is read later.
        let Ok(Some(link)) = link else {
            return;
        };
        match self.steering.look(&link) {
            Ok(looked) => {
                if self.fault.take().is_some() || looked == Looked::AttachedAgain {
                    self.report(DeviceNews::ProgramAttached);
                }
                self.program_at = now + PROGRAM_EVERY;
            }
            Err(error) => {
                let why = error.to_string();
                if self.fault.as_ref() != Some(&why) {
                    self.fault = Some(why.clone());
                    self.report(DeviceNews::ProgramDetached { why });
                }
            }
        }
    }

    fn lose_port(&mut self, host_end: u32) {
        let Some(number) = self.ports.remove(&host_end) else {
            return;
        };
        if let Err(error) = self.steering.remove_client(number) {
            warn!(
                "{}: entries of port {number} stay in the maps: {error}",
                self.link.name
            );
        }
        self.end_protection(number);
        self.say_ended(number);
    }

    /// Reports that nobody has the socket of a port any more.
    pub(super) fn say_ended(&mut self, number: u32) {
        info!("{}: port {number} has ended", self.link.name);
        self.events.push_back(DeviceEvent::PortEnded(number));
    }
}
