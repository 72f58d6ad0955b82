//! The variables by which a program finds our libraries, and these their interfaces.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::{Args, ValueEnum};
use rnic_verbs::{Ipsec, Via, if_id, rdma};

use super::devices::{Devices, VARIABLE};
use super::libraries::PRELOADED;

const PATH: &str = "LD_LIBRARY_PATH";

/// Names libraries that are loaded before all others.
const PRELOAD: &str = "LD_PRELOAD";

/// Names to our preloaded library the directory that it shows in the place of sysfs.
const SYSFS: &str = "RNIC_SYSFS";

/// The variable that tells our libraries what devices call themselves.
const LABEL: &str = "RNIC_DEVICE";

/// What devices call themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Label {
    /// What they are
    Iwarp,
    /// For programs that refuse iWARP, such as UCX
    Roce,
}

impl Label {
    /// Returns this label as devices know it.
    pub(super) fn of_devices(self) -> rdma::Label {
        match self {
            Self::Iwarp => rdma::Label::Iwarp,
            Self::Roce => rdma::Label::Roce,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
            Self::Roce => "roce",
        }
    }
}

/// What protects the program's connections.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct IpsecArgs {
    /// Protect by ESP what the IPsec policies demand that have this number (`if_id`), with the
    /// associations that have it. The interface must be for the program alone. The default is
    /// RNIC_IPSEC_IF_ID of the environment
    #[arg(long, value_name = "NUMBER", value_parser = if_id)]
    ipsec_if_id: Option<NonZeroU32>,

    /// Speak protected or not at all: RNIC_REQUIRE_PROTECTION=1
    #[arg(long)]
    require_protection: bool,
}

impl IpsecArgs {
    /// Returns the variables with their values. What was not chosen is left to the environment.
    pub(super) fn variables(self) -> impl Iterator<Item = (&'static str, OsString)> {
        let number = self
            .ipsec_if_id
            .map(|number| (Ipsec::IF_ID, number.to_string().into()));
        let required = self
            .require_protection
            .then(|| (Ipsec::REQUIRED, "1".into()));
        number.into_iter().chain(required)
    }
}

/// Returns what devices call themselves, if that was chosen, here or in the environment.
pub(super) fn label(chosen: Option<Label>) -> Option<Label> {
    let named = || std::env::var(LABEL).ok();
    chosen.or_else(|| Label::from_str(&named()?, false).ok())
}

/// Returns the variables with their values. A label that was not chosen is left to the environment.
/// `sysfs` is the directory that programs are to see in the place of sysfs, if they are.
pub(super) fn variables(
    libraries: &Path,
    devices: &Devices,
    label: Option<Label>,
    sysfs: Option<&Path>,
) -> Vec<(&'static str, OsString)> {
    let path = std::env::var_os(PATH);
    let mut variables = vec![(PATH, prepended(libraries, path))];
    if !devices.names.is_empty() {
        variables.push((VARIABLE, devices.names.join(",").into()));
    }
    if devices.via != Via::Best {
        variables.push((Via::VARIABLE, devices.via.to_string().into()));
    }
    variables.extend(label.map(|label| (LABEL, label.name().into())));
    match sysfs {
        Some(sysfs) => {
            let preloaded = preloaded(libraries, std::env::var_os(PRELOAD));
            variables.extend([(PRELOAD, preloaded), (SYSFS, sysfs.into())]);
        }
        // An `rnic run` around this one may have preloaded it, for other devices.
        None if std::env::var_os(SYSFS).is_some() => variables.push((SYSFS, OsString::new())),
        None => (),
    }
    variables
}

/// Puts our library behind those that are preloaded already: some, such as that of the address
/// sanitizer, must be the first.
fn preloaded(libraries: &Path, others: Option<OsString>) -> OsString {
    let separates = |octet: &u8| matches!(octet, b':' | b' ');
    let library = libraries.join(PRELOADED);
    // What the list cannot name is found in LD_LIBRARY_PATH.
    let library = match library.as_os_str().as_bytes().iter().any(separates) {
        true => OsStr::new(PRELOADED),
        false => library.as_os_str(),
    };
    let mut all = others.unwrap_or_default();
    let mut names = all.as_bytes().split(separates);
    if names.any(|name| name == library.as_bytes()) {
        return all;
    }
    if !all.is_empty() {
        all.push(":");
    }
    all.push(library);
    all
}

/// Puts a directory ahead of a list. An empty list is none: an empty element would stand for the
/// working directory.
fn prepended(directory: &Path, list: Option<OsString>) -> OsString {
    let mut all = directory.as_os_str().to_owned();
    if let Some(list) = list.filter(|list| !list.is_empty()) {
        all.push(":");
        all.push(list);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_directory_comes_first() {
        let ours = Path::new("/ours");
        assert_eq!(prepended(ours, None), "/ours");
        assert_eq!(prepended(ours, Some("".into())), "/ours");
        assert_eq!(prepended(ours, Some("/a:/b".into())), "/ours:/a:/b");
    }

    #[test]
    fn our_library_is_preloaded_once_and_last() {
        let place = Path::new("/ours");
        let ours = "/ours/librnic_sysfs.so";
        assert_eq!(preloaded(place, None), ours);
        assert_eq!(preloaded(place, Some("".into())), ours);
        let both = format!("/a.so b.so:{ours}");
        assert_eq!(preloaded(place, Some("/a.so b.so".into())), *both);
        assert_eq!(preloaded(place, Some((&both).into())), *both);
        let odd = Path::new("/our own");
        assert_eq!(preloaded(odd, Some("a.so".into())), "a.so:librnic_sysfs.so");
    }
}
