//! The file that programs look for where a host has an RDMA device. UCX and Mooncake leave devices
//! out whose file is not there, or may not be read and written. They never open it.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The file. It stands for all devices: `ibv_device` names it.
pub const NODE: &str = "/dev/infiniband/rnic";

/// Returns whether it is there.
pub fn has_node() -> bool {
    Path::new(NODE).exists()
}

/// Makes it, unless it is there, as a link to what may be read and written. Needs root. It stays: a
/// program that looks for it may be started by anybody.
pub fn make_node() -> io::Result<()> {
    make(Path::new(NODE))
}

fn make(node: &Path) -> io::Result<()> {
    if node.exists() {
        return Ok(());
    }
    if let Some(directory) = node.parent() {
        fs::create_dir_all(directory)?;
    }
    match symlink("../null", node) {
        // Somebody else was first.
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_made_once() {
        let place = std::env::temp_dir().join(format!("rnic-node-{}", std::process::id()));
        let node = place.join("infiniband/rnic");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("null"), "").unwrap();
        make(&node).unwrap();
        assert_eq!(fs::read_link(&node).unwrap(), Path::new("../null"));
        assert!(node.exists());
        make(&node).unwrap();
        fs::remove_dir_all(&place).unwrap();
        make(&node).unwrap();
        // It leads nowhere, and is made all the same.
        assert!(fs::symlink_metadata(&node).is_ok());
        make(&node).unwrap();
        fs::remove_dir_all(&place).unwrap();
    }
}
