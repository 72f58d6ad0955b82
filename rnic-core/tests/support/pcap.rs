//! Capture files: pcap, little-endian, Ethernet.

use std::fs;
use std::path::{Path, PathBuf};

/// A capture and its name.
pub(crate) struct Capture {
    /// The file's name without extension.
    pub(crate) name: String,
    /// The frames in order.
    pub(crate) frames: Vec<Vec<u8>>,
}

impl Capture {
    /// Reads one file; panics where it is not what we expect.
    pub(crate) fn read(path: &Path) -> Self {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let octets = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (header, mut records) = octets.split_at(24);
        assert_eq!(
            word(header, 0),
            0xa1b2_c3d4,
            "{name}: not a little-endian pcap file"
        );
        assert_eq!(word(header, 20), 1, "{name}: not Ethernet");
        let mut frames = Vec::new();
        while !records.is_empty() {
            let (record, rest) = records.split_at(16);
            let (captured, original) = (word(record, 8), word(record, 12));
            assert_eq!(captured, original, "{name}: a frame is cut");
            let (frame, rest) = rest.split_at(captured as usize);
            frames.push(frame.to_vec());
            records = rest;
        }
        Self { name, frames }
    }

    /// Returns whether the device was to complete the checksums after the capture was taken.
    pub(crate) fn has_partial_checksums(&self) -> bool {
        self.name.contains("offload-on")
    }

    /// Returns whether the end of the traffic is missing.
    pub(crate) fn is_head(&self) -> bool {
        self.name.ends_with("-head")
    }
}

/// The octets of a capture file of these frames, each with the microsecond at which it was sent.
pub(crate) fn write<'a>(frames: impl IntoIterator<Item = (u64, &'a [u8])>) -> Vec<u8> {
    let mut octets = Vec::new();
    let words = |octets: &mut Vec<u8>, words: &[u32]| {
        octets.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    // Version 2.4, frames of any length.
    words(&mut octets, &[0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 1]);
    for (at, frame) in frames {
        let len = frame.len() as u32;
        let time = [(at / 1_000_000) as u32, (at % 1_000_000) as u32];
        words(&mut octets, &[time[0], time[1], len, len]);
        octets.extend(frame);
    }
    octets
}

fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(octets[at..at + 4].try_into().unwrap())
}

/// All captures, by name.
pub(crate) fn all() -> Vec<Capture> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let entries = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|e| e == "pcap"))
        .collect();
    paths.sort();
    paths.iter().map(|path| Capture::read(path)).collect()
}
