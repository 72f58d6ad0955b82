//! Opens a shared device: for the first time, or after another process, whose maps go on.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use libbpf_rs::skel::SkelBuilder;

use super::attachment::{attach, replace};
use super::clients::Clients;
use super::error::SharingError;
use super::pins::{POLICE, Pins, STEER};
use super::police_skeleton::PoliceSkelBuilder;
use crate::device::error::OpenError;
use crate::device::netlink::{Generic, Link, RouteSocket, XdpAttachment, link_by_index};
use crate::device::steering::{
    CLIENTS_ASSOCIATIONS, Loaded, Maps, Mode, ModeChoice, SteeredLinks, Use, load, load_steer,
    occupied, refused,
};

/// The index of the shared device in the map of devices.
pub(super) const NIC: u32 = 0;

/// A shared device whose programs are in place.
pub(super) struct Opened {
    pub(super) maps: Maps,
    /// The program for the ends of clients.
    pub(super) police: OwnedFd,
    pub(super) mode: Mode,
    pub(super) links: SteeredLinks,
    pub(super) clients: Clients,
}

/// Opens a device with the maps that are pinned, or with new ones.
pub(super) fn open(
    link: &Link,
    choice: ModeChoice,
    pins: &Pins,
    esp: bool,
) -> Result<Opened, OpenError> {
    // Its ports have its MAC address.
    if !link.is_ethernet {
        let netdev = link.name.clone();
        return Err(OpenError::NoEthernet { netdev });
    }
    match pins.maps()? {
        Some(maps) => adopt(link, choice, (pins, esp), &maps),
        None => first(link, choice, pins, esp),
    }
}

fn first(link: &Link, choice: ModeChoice, pins: &Pins, esp: bool) -> Result<Opened, OpenError> {
    if let Some(attached) = link.xdp {
        return Err(occupied(link, attached));
    }
    let open = || {
        let programs = Programs::load(link, &Maps::default(), &pins.begin()?, esp)?;
        pins.finish(&programs.maps)?;
        programs.start(link, |programs| {
            let mode = attach(link, choice, programs.steer.as_fd())?;
            if mode == Mode::Native && !transmits_redirected(link)? {
                detach(link, &programs.maps)?;
                let netdev = link.name.clone();
                return Err(OpenError::NoRedirect { netdev });
            }
            Ok(mode)
        })
    };
    let opened = open();
    if opened.is_err() {
        // The error says more than that of the removal would.
        let _ = pins.remove();
    }
    opened
}

fn adopt(
    link: &Link,
    choice: ModeChoice,
    (pins, esp): (&Pins, bool),
    maps: &Maps,
) -> Result<Opened, OpenError> {
    check_mode(link, choice)?;
    let programs = Programs::load(link, maps, &pins.begin()?, esp)?;
    let opened = programs.start(link, |programs| match link.xdp {
        Some(attached) => replace(link, attached, maps, Some(programs.steer.as_fd())),
        None => attach(link, choice, programs.steer.as_fd()),
    })?;
    replace_police(&opened)?;
    pins.replace_programs(&[STEER, POLICE])?;
    Ok(opened)
}

/// Returns an error if a program is attached in another mode than the chosen one.
fn check_mode(link: &Link, choice: ModeChoice) -> Result<(), OpenError> {
    let Some(attached) = link.xdp else {
        return Ok(());
    };
    match (choice, attached.attachment) {
        (ModeChoice::Native, XdpAttachment::Generic)
        | (ModeChoice::Generic, XdpAttachment::Native) => Err(OpenError::OtherMode {
            netdev: link.name.clone(),
            mode: attached.attachment.words().0,
        }),
        _ => Ok(()),
    }
}

/// Puts our program in the place of a former one on the ends of all clients that are still there.
fn replace_police(opened: &Opened) -> Result<(), OpenError> {
    let mut socket = RouteSocket::open()?;
    let clients = opened.clients.list().map_err(system)?;
    for client in clients {
        let link = link_by_index(&mut socket, client.ifindex)?;
        let attached = link.as_ref().and_then(|link| Some((link, link.xdp?)));
        let Some((link, attached)) = attached else {
            continue;
        };
        let replaced = replace(link, attached, &opened.maps, Some(opened.police.as_fd()));
        // A client may end at any time, and its device with it.
        if replaced.is_err() && link_by_index(&mut socket, client.ifindex)?.is_some() {
            replaced?;
        }
    }
    Ok(())
}

/// Puts another copy of the steering program in the place of ours, for this number of queues.
pub(super) fn steer_again(
    link: &Link,
    queues: u32,
    maps: &Maps,
    (pins, esp): (&Pins, bool),
) -> Result<(), OpenError> {
    let now = link_by_index(&mut RouteSocket::open()?, link.index)?;
    // What is gone has no queues.
    let Some(attached) = now.and_then(|link| link.xdp) else {
        return Ok(());
    };
    let pin = pins.begin()?.join(STEER);
    let steer = load_steer(queues, maps, Use::Shared { pin: &pin, esp })?;
    replace(link, attached, maps, Some(steer.program.as_fd()))?;
    pins.replace_programs(&[STEER])
}

/// Attaches another copy of the steering program to a device that has none any more.
pub(super) fn attach_again(
    link: &Link,
    mode: &Mode,
    maps: &Maps,
    (pins, esp): (&Pins, bool),
) -> Result<(), OpenError> {
    let pin = pins.begin()?.join(STEER);
    let steer = load_steer(link.rx_queues, maps, Use::Shared { pin: &pin, esp })?;
    attach(link, ModeChoice::only(mode), steer.program.as_fd())?;
    pins.replace_programs(&[STEER])
}

/// Detaches our program from the shared device, if it is attached.
pub(super) fn detach(link: &Link, maps: &Maps) -> Result<(), OpenError> {
    let now = link_by_index(&mut RouteSocket::open()?, link.index)?;
    match now.and_then(|link| link.xdp) {
        Some(attached) => replace(link, attached, maps, None).map(drop),
        None => Ok(()),
    }
}

/// Returns whether a device sends what programs redirect to it. Some do only while they have a
/// program.
fn transmits_redirected(link: &Link) -> Result<bool, OpenError> {
    let features = Generic::open()?.xdp_features(link.index)?;
    Ok(features.transmits_redirected())
}

/// Both programs with common maps, in the kernel but not attached.
struct Programs {
    steer: OwnedFd,
    police: OwnedFd,
    maps: Maps,
}

impl Programs {
    /// Loads the programs with the maps that are given, and pins them in a directory.
    fn load(link: &Link, given: &Maps, pins: &Path, esp: bool) -> Result<Self, OpenError> {
        let pin = pins.join(STEER);
        let by = Use::Shared { pin: &pin, esp };
        let steer = load_steer(link.rx_queues, given, by)?;
        let mut maps = given.try_clone().map_err(system)?;
        maps.extend(steer.maps);
        let police = load_police(&maps, &pins.join(POLICE), esp)?;
        maps.extend(police.maps);
        Ok(Self {
            steer: steer.program,
            police: police.program,
            maps,
        })
    }

    /// Fills the maps, and attaches the steering program by `attach`.
    fn start(
        self,
        link: &Link,
        attach: impl FnOnce(&Self) -> Result<Mode, OpenError>,
    ) -> Result<Opened, OpenError> {
        let links = SteeredLinks::new(link.index, &self.maps).map_err(system)?;
        links.read(&mut RouteSocket::open()?)?.map_err(system)?;
        let mut clients = Clients::new(&self.maps).map_err(system)?;
        let netdev = || link.name.clone();
        clients
            .set_device(NIC, link.index)
            .map_err(|error| match error {
                SharingError::System { doing, source } => OpenError::System { doing, source },
                _ => OpenError::NoSuchDevice { netdev: netdev() },
            })?;
        let mode = attach(&self)?;
        Ok(Opened {
            maps: self.maps,
            police: self.police,
            mode,
            links,
            clients,
        })
    }
}

/// Loads the program for the ends of clients.
fn load_police(given: &Maps, pin: &Path, esp: bool) -> Result<Loaded, OpenError> {
    let mut object = MaybeUninit::uninit();
    let open = PoliceSkelBuilder::default().open(&mut object);
    let mut open = open.map_err(refused)?;
    let constants = open.maps.rodata_data.as_deref_mut();
    constants.expect("it has constants").police_esp = esp.into();
    let associations = &mut open.maps.police_sas;
    associations
        .set_max_entries(CLIENTS_ASSOCIATIONS)
        .map_err(refused)?;
    load(open, given, Some(pin))
}

fn system(source: io::Error) -> OpenError {
    OpenError::System {
        doing: "fill the maps of a shared device",
        source,
    }
}
