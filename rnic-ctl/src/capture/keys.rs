//! The keys of associations that have a number, as those have that protect what is captured, in a
//! file that Wireshark and tshark read: their table `esp_sa`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rnic_core::esp::{Algorithm, SaId};
use rnic_xdp::facts::{AssociationKeys, association_keys};

use crate::failure::{Failure, Outcome};
use crate::out;

/// How often new associations are looked for. Those that end sooner are missing.
const INTERVAL: Duration = Duration::from_secs(1);

/// The file, which is root's alone.
pub(super) struct KeyFile {
    file: File,
    path: PathBuf,
    /// The number of associations whose keys are wanted; all, if there is none.
    if_id: Option<NonZeroU32>,
    /// Associations that were looked at: by name, and by a fingerprint of the key, as a name comes
    /// again with another one.
    known: BTreeSet<(SaId, u32)>,
    written: usize,
    next: Instant,
    /// Looking has failed, which was said.
    fails: bool,
}

impl KeyFile {
    /// Makes the file, with the keys of the associations that are there.
    pub(super) fn create(path: &Path, if_id: Option<NonZeroU32>) -> Outcome<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(|error| match error.kind() {
            // It may have lines of others, and other readers.
            ErrorKind::AlreadyExists => not_written(path, "it exists; name a file that does not"),
            _ => not_written(path, error),
        })?;
        let mut keys = Self {
            file,
            path: path.to_owned(),
            if_id,
            known: BTreeSet::new(),
            written: 0,
            next: Instant::now(),
            fails: false,
        };
        let looked = keys.look();
        // The next try is not to find a file without keys.
        looked.inspect_err(|_| keys.remove())?;
        Ok(keys)
    }

    /// Removes the file.
    pub(super) fn remove(&self) {
        // Who is told why says more than that this fails too.
        let _ = fs::remove_file(&self.path);
    }

    /// Looks for new associations, once a second. The capture goes on where that fails.
    pub(super) fn look_now_and_then(&mut self) {
        if Instant::now() < self.next {
            return;
        }
        match self.look() {
            Err(why) if !self.fails => {
                self.fails = true;
                out::note(format_args!("rnic-ctl: keys may be missing: {why}"));
            }
            Err(_) => {}
            Ok(()) => self.fails = false,
        }
    }

    /// Adds the keys of new associations.
    fn look(&mut self) -> Outcome {
        self.next = Instant::now() + INTERVAL;
        let found = association_keys();
        for found in found.map_err(|why| Failure::environment("read keys", why))? {
            if self.if_id.is_some_and(|wanted| wanted.get() != found.if_id) {
                continue;
            }
            if !self.known.insert((found.id, found.keys.print())) {
                continue;
            }
            let spi = found.id.spi;
            let Some(line) = line(&found) else {
                let name = found.algorithm.name();
                out::note(format_args!(
                    "rnic-ctl: no key of SPI {spi:#010x}: Wireshark does not know {name}"
                ));
                continue;
            };
            let written = self.file.write_all(line.as_bytes());
            written.map_err(|error| not_written(&self.path, error))?;
            self.written += 1;
        }
        Ok(())
    }

    /// Ends the file, and says what it has.
    pub(super) fn finish(mut self, is_silent: bool) -> Outcome {
        self.look()?;
        if !is_silent {
            let (count, path) = (self.written, self.path.display());
            out::note(format_args!("{path} has the keys of {count} associations"));
        }
        Ok(())
    }
}

fn not_written(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::operation(format_args!("write {}", path.display()), why)
}

/// Returns an association as a line of `esp_sa`, `None` if Wireshark does not know the algorithm.
fn line(association: &AssociationKeys) -> Option<String> {
    const SHA1: &str = "HMAC-SHA-1-96 [RFC2404]";
    const SHA256: &str = "HMAC-SHA-256-128 [RFC4868]";
    let (encryption, integrity) = match association.algorithm {
        Algorithm::AesGcm => ("AES-GCM with 16 octet ICV [RFC4106]", "NULL"),
        Algorithm::AesCbcHmacSha256 => ("AES-CBC [RFC3602]", SHA256),
        Algorithm::AesCbcHmacSha1 => ("AES-CBC [RFC3602]", SHA1),
        Algorithm::NullHmacSha256 => ("NULL", SHA256),
        Algorithm::NullHmacSha1 => ("NULL", SHA1),
        Algorithm::ChaCha20Poly1305 | Algorithm::AesGmac => return None,
    };
    let AssociationKeys { id, source, .. } = association;
    let version = match source {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    };
    let (of_encryption, of_integrity) = association.keys.octets();
    let (spi, destination) = (id.spi, id.destination);
    let (of_encryption, of_integrity) = (hexadecimal(of_encryption), hexadecimal(of_integrity));
    let ends = format!("\"{version}\",\"{source}\",\"{destination}\",\"{spi:#010x}\"");
    Some(format!(
        "{ends},\"{encryption}\",\"{of_encryption}\",\"{integrity}\",\"{of_integrity}\"\n"
    ))
}

/// Returns octets as Wireshark reads a key.
fn hexadecimal(key: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * key.len());
    if !key.is_empty() {
        text.push_str("0x");
    }
    for octet in key {
        // A string takes all that is written to it.
        let _ = write!(text, "{octet:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use rnic_core::esp::Keys;

    use super::*;

    fn association(algorithm: Algorithm, encryption: &[u8], integrity: &[u8]) -> AssociationKeys {
        AssociationKeys {
            id: SaId {
                spi: 0x0102_0304,
                destination: "192.0.2.2".parse().unwrap(),
            },
            source: "192.0.2.1".parse().unwrap(),
            if_id: 7,
            algorithm,
            keys: Keys::new(encryption.to_vec(), integrity.to_vec()),
        }
    }

    #[test]
    fn a_line_has_both_ends_the_spi_and_the_keys() {
        let sealed = association(Algorithm::AesGcm, &[0xa0, 1, 2], &[]);
        let expected = "\"IPv4\",\"192.0.2.1\",\"192.0.2.2\",\"0x01020304\",\
                        \"AES-GCM with 16 octet ICV [RFC4106]\",\"0xa00102\",\"NULL\",\"\"\n";
        assert_eq!(line(&sealed).unwrap(), expected);
        let both = association(Algorithm::AesCbcHmacSha1, &[1], &[0xff]);
        let expected = "\"AES-CBC [RFC3602]\",\"0x01\",\"HMAC-SHA-1-96 [RFC2404]\",\"0xff\"\n";
        assert!(line(&both).unwrap().ends_with(expected));
        let plain = association(Algorithm::NullHmacSha256, &[], &[7]);
        let expected = "\"NULL\",\"\",\"HMAC-SHA-256-128 [RFC4868]\",\"0x07\"\n";
        assert!(line(&plain).unwrap().ends_with(expected));
    }

    #[test]
    fn what_wireshark_does_not_know_has_no_line() {
        for algorithm in [Algorithm::ChaCha20Poly1305, Algorithm::AesGmac] {
            assert_eq!(line(&association(algorithm, &[1], &[])), None);
        }
    }
}
