//! The variables by which a program finds our libraries, and these their interfaces.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::Path;

use clap::{Args, ValueEnum};
use rnic_verbs::{Ipsec, Via, if_id};

use super::devices::{Devices, VARIABLE};

const PATH: &str = "LD_LIBRARY_PATH";

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

/// Returns what devices call themselves, if that was chosen, here or in the environment.
pub(super) fn label(chosen: Option<Label>) -> Option<Label> {
    let named = || std::env::var(LABEL).ok();
    chosen.or_else(|| Label::from_str(&named()?, false).ok())
}

/// Returns the variables with their values. What was not chosen is left to the environment.
pub(super) fn variables(
    libraries: &Path,
    devices: &Devices,
    label: Option<Label>,
    ipsec: IpsecArgs,
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
    let number = ipsec.ipsec_if_id;
    variables.extend(number.map(|number| (Ipsec::IF_ID, number.to_string().into())));
    if ipsec.require_protection {
        variables.push((Ipsec::REQUIRED, "1".into()));
    }
    variables
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
}
