//! Segments of the peer that come ahead of order.

use rnic_core::wire::rdmap::Opcode;

use crate::fixture::{End, Refused, Ulpdu, tagged};

/// The distance of markers in a stream.
pub(crate) const MARKERS: u32 = 512;

impl End {
    /// Lays out segments in the peer's stream, to come in any order. Number `marked` holds a marker: it may come first, and is
    /// known for what it is ahead of its turn, as are those behind it.
    pub(crate) fn lay_out(&mut self, marked: usize, ulpdus: &[Ulpdu]) -> Stretch {
        // About as long as it ends in front of the next marker behind the shortest.
        let (begin, end) = self.reach(marked, ulpdus, 0);
        let missing = begin.next_multiple_of(MARKERS).saturating_sub(end) as usize;
        let least = missing.saturating_sub(8) / 4 * 4;
        let len = (least..least + MARKERS as usize)
            .step_by(4)
            .find(|len| {
                let (begin, end) = self.reach(marked, ulpdus, *len);
                begin.next_multiple_of(MARKERS) < end
            })
            .expect("some filler brings a marker into it");
        let mut parts = self.fpdus(len, ulpdus);
        let len = parts.last().map_or(0, |(at, fpdu)| at + fpdu.len() as u32);
        let (_, filler) = parts.remove(0);
        let mut stretch = Stretch {
            filler: Some(filler),
            came: vec![false; parts.len()],
            parts,
            len,
        };
        if marked > 0 {
            stretch.fill(self);
        }
        stretch
    }

    /// From where to where in the peer's stream segment `which` reaches behind a Write of `len` octets.
    fn reach(&mut self, which: usize, ulpdus: &[Ulpdu], len: usize) -> (u32, u32) {
        let fpdus = self.fpdus(len, &ulpdus[..=which]);
        let (at, fpdu) = &fpdus[which + 1];
        let begin = self.written + at;
        (begin, begin + fpdu.len() as u32)
    }

    /// The FPDUs that come next, a Write of `len` octets and these, and where each stands from here.
    fn fpdus(&mut self, len: usize, ulpdus: &[Ulpdu]) -> Vec<(u32, Vec<u8>)> {
        let scratch = self.scratch.expect("an end that requires markers");
        let filler = tagged(Opcode::Write, true, scratch, 0, &vec![0; len]);
        let (mut at, mut all) = (0, Vec::new());
        for ulpdu in [&filler].into_iter().chain(ulpdus) {
            let fpdu = self.raw().fpdu(ulpdu);
            let len = fpdu.len() as u32;
            self.raw().skip(len);
            all.push((at, fpdu));
            at += len;
        }
        self.raw().skip(at.wrapping_neg());
        all
    }
}

/// Segments that stand behind one another in the peer's stream, and come in any order.
pub(crate) struct Stretch {
    /// What stands in front of them, if it has not come.
    filler: Option<Vec<u8>>,
    parts: Vec<(u32, Vec<u8>)>,
    came: Vec<bool>,
    len: u32,
}

impl Stretch {
    fn fill(&mut self, end: &mut End) {
        if let Some(filler) = self.filler.take() {
            end.raw().send_ahead(0, &filler);
            end.work();
        }
    }

    /// Segment `which` comes.
    pub(crate) fn come(&mut self, end: &mut End, which: usize) {
        let (at, fpdu) = &self.parts[which];
        end.raw().send_ahead(*at, fpdu);
        end.work();
        self.came[which] = true;
    }

    /// The same while something in front of it has not come.
    pub(crate) fn place(&mut self, end: &mut End, which: usize) {
        assert!(self.filler.is_some() || self.came[..which].contains(&false));
        self.come(end, which);
    }

    /// All that has not come does: it is the turn of each.
    pub(crate) fn deliver(mut self, end: &mut End) -> Result<(), Refused> {
        self.fill(end);
        for which in 0..self.parts.len() {
            if !self.came[which] {
                self.come(end, which);
            }
        }
        end.raw().skip(self.len);
        end.written += self.len;
        end.refused().map_or(Ok(()), Err)
    }
}
