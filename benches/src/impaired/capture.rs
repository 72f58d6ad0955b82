//! A capture file of what passes one side of the box, in the order in which it passes.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

/// Times in nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;
const LONGEST: u32 = 65536;

pub(crate) struct Capture {
    file: BufWriter<File>,
}

impl Capture {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_all(&MAGIC.to_ne_bytes())?;
        file.write_all(&2u16.to_ne_bytes())?;
        file.write_all(&4u16.to_ne_bytes())?;
        for field in [0, 0, LONGEST, ETHERNET] {
            file.write_all(&field.to_ne_bytes())?;
        }
        Ok(Self { file })
    }

    pub(crate) fn write(&mut self, at: Duration, frame: &[u8]) -> io::Result<()> {
        let len = frame.len() as u32;
        for field in [at.as_secs() as u32, at.subsec_nanos(), len, len] {
            self.file.write_all(&field.to_ne_bytes())?;
        }
        self.file.write_all(frame)
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.file.flush()
    }
}
