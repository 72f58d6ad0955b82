//! Where our libibverbs.so.1 and librdmacm.so.1 are, and the library that programs preload: beside
//! this command, as a build leaves them, or where the Debian package has them.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// What shows programs our devices in sysfs.
pub(super) const PRELOADED: &str = "librnic_sysfs.so";

const NAMES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", PRELOADED];

/// Returns the directory of the libraries that belong to this command.
pub(super) fn directory() -> Outcome<PathBuf> {
    let own = std::env::current_exe().and_then(|path| path.canonicalize());
    let own = own.map_err(|why| Failure::environment("find the libraries of rnic", why))?;
    let places = places(own.parent().unwrap_or(Path::new("/")));
    find(&places).cloned().ok_or_else(|| {
        let places = places.map(|place| place.display().to_string());
        let why = format!(
            "{} are not in {}; the Debian package has them, and `cargo xtask libraries` builds them",
            NAMES.join(", "),
            places.join(" or in "),
        );
        Failure::environment("find the libraries of rnic", why)
    })
}

/// Returns where they may be: as the project is built, and as it is installed.
fn places(beside: &Path) -> [PathBuf; 2] {
    let installed = format!("lib/{}-linux-gnu/rnic", std::env::consts::ARCH);
    let up = beside.parent().unwrap_or(beside);
    [beside.join("lib"), up.join(installed)]
}

fn find(places: &[PathBuf]) -> Option<&PathBuf> {
    let are_in = |place: &&PathBuf| NAMES.iter().all(|name| place.join(name).is_file());
    places.iter().find(are_in)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn all_must_be_there() {
        let root = std::env::temp_dir().join(format!("rnic-libraries-{}", std::process::id()));
        let places = places(&root.join("bin"));
        assert!(places[0].ends_with("bin/lib"));
        assert!(places[1].starts_with(root.join("lib")) && places[1].ends_with("rnic"));
        fs::create_dir_all(&places[0]).unwrap();
        fs::create_dir_all(&places[1]).unwrap();
        for name in &NAMES[1..] {
            fs::write(places[0].join(name), "").unwrap();
        }
        let without_one = find(&places).cloned();
        for name in NAMES {
            fs::write(places[1].join(name), "").unwrap();
        }
        let with_all = find(&places).cloned();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((without_one, with_all.as_ref()), (None, Some(&places[1])));
    }
}
