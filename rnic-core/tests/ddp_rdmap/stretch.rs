//! Segments of the peer that arrive ahead of order.

use rnic_core::wire::rdmap::Opcode;

use crate::fixture::{End, MARKERS, Refused, Ulpdu, tagged};

impl End {
    /// Lays out segments in the peer's stream, to arrive in any order. Segment `marked` holds a
    /// marker: it may arrive first, and it and those behind it are located ahead of order.
    pub(crate) fn lay_out(&mut self, marked: usize, ulpdus: &[Ulpdu]) -> Stretch {
        // Long enough to end in front of the next marker behind the shortest.
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

    /// Returns the range of segment `which` in the peer's stream, behind a Write of `len` octets.
    fn reach(&mut self, which: usize, ulpdus: &[Ulpdu], len: usize) -> (u32, u32) {
        let fpdus = self.fpdus(len, &ulpdus[..=which]);
        let (at, fpdu) = &fpdus[which + 1];
        let begin = self.written + at;
        (begin, begin + fpdu.len() as u32)
    }

    /// Makes the next FPDUs, a Write of `len` octets and these. Returns the offset of each.
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

/// Consecutive segments of the peer's stream, which arrive in any order.
pub(crate) struct Stretch {
    /// The Write in front of them, if it has not arrived.
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

    /// Lets segment `which` arrive.
    pub(crate) fn come(&mut self, end: &mut End, which: usize) {
        let (at, fpdu) = &self.parts[which];
        end.raw().send_ahead(*at, fpdu);
        end.work();
        self.came[which] = true;
    }

    /// Lets segment `which` arrive while something in front of it is missing.
    pub(crate) fn place(&mut self, end: &mut End, which: usize) {
        assert!(self.filler.is_some() || self.came[..which].contains(&false));
        self.come(end, which);
    }

    /// Lets all others arrive, so that everything is in order.
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
