//! Where rnicd listens.
//!
//! Clients connect at a path that containers may be given, with its directory. Administrators, and
//! those who observe, have sockets in directories of their own: no container gets them with the
//! clients' directory.

use std::path::{Path, PathBuf};

use crate::protocol::SOCKET;

/// What the name of the administrators' directory has behind that of the clients'.
const ADMINISTRATION: &str = "-admin";
/// What the name of the observers' directory has behind that of the clients'.
const OBSERVATION: &str = "-observe";

/// Returns where rnicd listens for clients: what `RNICD_SOCKET` of the environment says, or
/// [`SOCKET`].
pub fn default_socket() -> PathBuf {
    std::env::var_os("RNICD_SOCKET").map_or_else(|| SOCKET.into(), Into::into)
}

/// Returns where the rnicd that listens for clients at a path listens for administrators:
/// `/run/rnic-admin/rnicd.sock` belongs to `/run/rnic/rnicd.sock`.
pub fn administration_socket(clients: &Path) -> PathBuf {
    beside(clients, ADMINISTRATION)
}

/// Returns where the rnicd that listens for clients at a path listens for observers:
/// `/run/rnic-observe/rnicd.sock` belongs to `/run/rnic/rnicd.sock`.
pub fn observation_socket(clients: &Path) -> PathBuf {
    beside(clients, OBSERVATION)
}

fn beside(clients: &Path, what: &str) -> PathBuf {
    let mut directory = clients
        .parent()
        .unwrap_or(Path::new(""))
        .as_os_str()
        .to_owned();
    directory.push(what);
    Path::new(&directory).join(clients.file_name().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn administrators_and_observers_have_directories_of_their_own() {
        let clients = Path::new(SOCKET);
        let admin = administration_socket(clients);
        assert_eq!(admin, Path::new("/run/rnic-admin/rnicd.sock"));
        let observe = observation_socket(clients);
        assert_eq!(observe, Path::new("/run/rnic-observe/rnicd.sock"));
        assert_eq!(beside(Path::new("/s"), "-admin"), Path::new("/-admin/s"));
    }
}
