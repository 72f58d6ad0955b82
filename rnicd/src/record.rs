//! What must be known of a port when rnicd starts again: whose it is. It lies in a file that only
//! root can read, as long as the port exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rnic_manager::Token;
use rnic_xdp::shared::{HostEnd, QueuePort};
use serde::{Deserialize, Serialize};
use tracing::error;

/// Whose a port is, and what was granted with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The number of the port.
    pub(crate) port: u32,
    /// What shows that it is the client's.
    pub(crate) token: Token,
    /// The user of the client.
    pub(crate) uid: u32,
    /// The user as whom the client counts, if that is another one.
    #[serde(default)]
    pub(crate) account: Option<u32>,
    /// The groups of the client, the primary one first.
    pub(crate) gids: Vec<u32>,
    /// The name of its program.
    pub(crate) program: String,
    /// The process of the client when it opened the port or came back last.
    #[serde(default)]
    pub(crate) pid: i32,
    /// When the port was opened, in seconds since 1970-01-01 UTC.
    #[serde(default)]
    pub(crate) since: u64,
    /// Frames, those to be sent and those that circulate at first.
    pub(crate) frames: u32,
    /// Octets of its UMEM on hugepages.
    pub(crate) huge_octets: u64,
    /// The hardware queue that the port is.
    #[serde(default)]
    pub(crate) queue: Option<QueuePort>,
    /// Those of its leases that listen.
    #[serde(default)]
    pub(crate) listeners: BTreeSet<SocketAddr>,
    /// Where their client wanted to listen, of those that it asked to be mapped.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mapped: BTreeMap<SocketAddr, SocketAddr>,
    /// What is still there of it, if it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<Ended>,
}

/// What is still there of a port that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// The device that it was a port of.
    pub(crate) netdev: String,
    /// Its host end, which goes with its socket. Without one, nobody has that, and its memory is
    /// being freed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host_end: Option<HostEnd>,
}

impl Record {
    /// Returns the user as whom the client counts.
    pub(crate) fn account(&self) -> u32 {
        self.account.unwrap_or(self.uid)
    }
}

/// The records of the ports of a device.
#[derive(Debug)]
pub(crate) struct Records {
    directory: PathBuf,
}

impl Records {
    /// Uses a directory, which is made if need be. Only root may enter it.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        Ok(Self { directory })
    }

    fn path(&self, port: u32) -> PathBuf {
        self.directory.join(format!("{port}.json"))
    }

    /// Keeps a record. A reader finds all of it or nothing.
    pub(crate) fn keep(&self, record: &Record) -> io::Result<()> {
        let path = self.path(record.port);
        let part = path.with_extension("part");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&part)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(part, path)
    }

    /// Forgets the record of a port. It may be gone already.
    pub(crate) fn forget(&self, port: u32) {
        let _ = fs::remove_file(self.path(port));
    }

    /// Reads all records. A file that is none is put aside: without it, its port alone is lost.
    pub(crate) fn read(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                match read(&path) {
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        let aside = path.with_extension("bad");
                        error!("{error}; it is now {}", aside.display());
                        fs::rename(&path, aside)?;
                    }
                    record => records.push(record?),
                }
            }
        }
        Ok(records)
    }
}

fn read(path: &Path) -> io::Result<Record> {
    let octets = fs::read(path)?;
    serde_json::from_slice(&octets).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} is no record of a port: {error}", path.display()),
        )
    })
}
