//! Streams of FPDUs with markers, read and written octet by octet: shares nothing with the engine.

/// One FPDU: its start among the octets of the stream, its ULPDU.
pub(crate) type Found = (usize, Vec<u8>);

/// Reads a stream of FPDUs with markers from its first octet; checks every marker, length and CRC.
pub(crate) fn read(stream: &[u8]) -> Vec<Found> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        let begin = at;
        let start = if at % 512 == 0 { at + 4 } else { at };
        let mut octets = Vec::new();
        let mut whole = None;
        while whole.is_none_or(|whole| octets.len() < whole) {
            if at % 512 == 0 {
                let distance = at.saturating_sub(start) as u16;
                let pointer = distance.to_be_bytes();
                assert_eq!(stream[at..at + 4], [0, 0, pointer[0], pointer[1]], "{at}");
                at += 4;
            }
            octets.push(stream[at]);
            at += 1;
            if octets.len() == 2 {
                let len = usize::from(u16::from_be_bytes([octets[0], octets[1]]));
                whole = Some((2 + len).next_multiple_of(4));
            }
        }
        if at % 512 == 0 {
            let pointer = ((at - start) as u16).to_be_bytes();
            assert_eq!(stream[at..at + 4], [0, 0, pointer[0], pointer[1]], "{at}");
            at += 4;
        }
        let crc = crc32c::crc32c(&stream[begin..at]).to_le_bytes();
        assert_eq!(stream[at..at + 4], crc, "the CRC covers the markers");
        at += 4;
        let len = usize::from(u16::from_be_bytes([octets[0], octets[1]]));
        found.push((start, octets[2..2 + len].to_vec()));
    }
    found
}

/// Writes a stream of FPDUs with markers.
pub(crate) struct Writer {
    /// Octets written so far.
    pub(crate) position: usize,
    crc: bool,
}

impl Writer {
    pub(crate) fn new(crc: bool) -> Self {
        Self { position: 0, crc }
    }

    /// The next FPDU.
    pub(crate) fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        self.fpdu_with(ulpdu, |_, distance| distance)
    }

    /// Writes the next FPDU. `pointer` gets the position of each marker and the right pointer, and
    /// returns the pointer to be written.
    pub(crate) fn fpdu_with(
        &mut self,
        ulpdu: &[u8],
        pointer: impl Fn(usize, u16) -> u16,
    ) -> Vec<u8> {
        let mut plain = (ulpdu.len() as u16).to_be_bytes().to_vec();
        plain.extend(ulpdu);
        plain.resize(plain.len().next_multiple_of(4), 0);
        let mut octets = Vec::new();
        let mut start = None;
        for index in 0..=plain.len() / 4 {
            if self.position.is_multiple_of(512) {
                let distance = start.map_or(0, |start| (self.position - start) as u16);
                octets.extend([0, 0]);
                octets.extend(pointer(self.position, distance).to_be_bytes());
                self.position += 4;
            }
            start.get_or_insert(self.position);
            if let Some(four) = plain.chunks(4).nth(index) {
                octets.extend(four);
                self.position += 4;
            }
        }
        let crc = if self.crc {
            crc32c::crc32c(&octets).to_le_bytes()
        } else {
            [0; 4]
        };
        octets.extend(crc);
        self.position += 4;
        octets
    }
}
