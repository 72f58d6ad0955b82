//! The variables by which a program finds our libraries, and these their interfaces.

use std::ffi::OsString;
use std::path::Path;

use super::devices::{Devices, VARIABLE};

const PATH: &str = "LD_LIBRARY_PATH";

/// Returns the variables with their values.
pub(super) fn variables(libraries: &Path, devices: &Devices) -> [(&'static str, OsString); 2] {
    let path = std::env::var_os(PATH);
    [
        (PATH, prepended(libraries, path)),
        (VARIABLE, devices.names.join(",").into()),
    ]
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
