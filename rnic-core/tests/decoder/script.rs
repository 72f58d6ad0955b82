//! Two peers that follow a script, octet by octet, without the engine, so that anything they send
//! can be wrong.

use std::ops::Range;

/// Octets of the script's Ethernet, IPv4 and TCP headers.
pub(crate) const HEADERS: usize = 14 + 20 + 20;

/// The largest segment that either accepts.
pub(crate) const MSS: u16 = 1460;

/// What one of them does in a step.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Syn,
    /// A start-up frame, or anything else that is not framed, in a segment of its own.
    Octets(Vec<u8>),
    Fpdu(Vec<u8>),
    /// Sends a part of its stream again.
    Again(Range<usize>),
    Fin,
    Reset,
}

/// One step of a script.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) by: usize,
    pub(crate) what: What,
    /// What was sent to it since its last step has not arrived.
    pub(crate) deaf: bool,
    /// Changes the FPDU before its CRC is computed, or after.
    pub(crate) before_crc: Option<fn(&mut [u8])>,
    pub(crate) after_crc: Option<fn(&mut Vec<u8>)>,
    /// Changes the whole frame.
    pub(crate) frame: Option<fn(&mut Vec<u8>)>,
    /// The FPDU is sent in pieces that end here.
    pub(crate) cuts: Vec<usize>,
    /// It goes into one segment with the FPDU of the next step.
    pub(crate) joined: bool,
}

/// The steps of both, 0 the initiator.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) steps: Vec<Step>,
    /// Whose stream has markers.
    pub(crate) markers: [bool; 2],
}

/// One direction of the stream, as far as it was sent.
#[derive(Default)]
struct Said {
    octets: Vec<u8>,
    /// Where FPDUs begin.
    full: Option<usize>,
    syn: bool,
    fin: bool,
    /// What it acknowledges.
    heard: usize,
}

impl Script {
    /// Returns a step by its name.
    pub(crate) fn at(&mut self, name: &str) -> &mut Step {
        let step = self.steps.iter_mut().find(|step| step.name == name);
        step.unwrap_or_else(|| panic!("no step {name}"))
    }

    /// Returns what the step sends.
    pub(crate) fn says(&mut self, name: &str) -> &mut Vec<u8> {
        match &mut self.at(name).what {
            What::Octets(octets) | What::Fpdu(octets) => octets,
            other => panic!("{name} is {other:?}"),
        }
    }

    /// Removes a step.
    pub(crate) fn drop(&mut self, name: &str) {
        self.steps.retain(|step| step.name != name);
    }

    /// Puts a step behind another.
    pub(crate) fn behind(&mut self, name: &str, step: Step) {
        let at = self.steps.iter().position(|step| step.name == name);
        self.steps.insert(at.expect("a step") + 1, step);
    }

    /// Returns the frames of all steps.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        let mut said = [Said::default(), Said::default()];
        let mut frames = Vec::new();
        let mut held = Vec::new();
        for step in &self.steps {
            if !step.deaf {
                said[step.by].heard = said[1 - step.by].octets.len();
            }
            let begun = frames.len();
            let first = said[step.by].octets.len();
            match &step.what {
                What::Syn => {
                    frames.push(frame(&said, step.by, first, 0x02, &[]));
                    said[step.by].syn = true;
                }
                What::Octets(octets) => {
                    frames.push(frame(&said, step.by, first, 0, octets));
                    said[step.by].octets.extend(octets);
                }
                What::Fpdu(ulpdu) => {
                    let full = *said[step.by].full.get_or_insert(first);
                    let place = first - full + held.len();
                    let markers = self.markers[step.by];
                    held.extend(fpdu(ulpdu, markers.then_some(place), step));
                    if step.joined {
                        continue;
                    }
                    let fpdu = std::mem::take(&mut held);
                    let mut from = 0;
                    for to in step.cuts.iter().copied().chain([fpdu.len()]) {
                        frames.push(frame(&said, step.by, first + from, 0, &fpdu[from..to]));
                        from = to;
                    }
                    said[step.by].octets.extend(fpdu);
                }
                What::Again(range) => {
                    let octets = said[step.by].octets[range.clone()].to_vec();
                    frames.push(frame(&said, step.by, range.start, 0, &octets));
                }
                What::Fin => {
                    frames.push(frame(&said, step.by, first, 0x01, &[]));
                    said[step.by].fin = true;
                }
                What::Reset => frames.push(frame(&said, step.by, first, 0x04, &[])),
            }
            if let Some(change) = step.frame {
                frames[begun..].iter_mut().for_each(change);
            }
        }
        frames
    }
}

/// An FPDU; `place`: where it begins among the FPDUs, if there are markers.
pub(crate) fn fpdu(ulpdu: &[u8], place: Option<usize>, step: &Step) -> Vec<u8> {
    let mut plain = (ulpdu.len() as u16).to_be_bytes().to_vec();
    plain.extend(ulpdu);
    plain.resize(plain.len().next_multiple_of(4), 0);
    let mut fpdu = Vec::new();
    let mut start = None;
    for (at, octet) in plain.iter().enumerate() {
        mark(&mut fpdu, place, start);
        if at == 0 {
            start = Some(fpdu.len());
        }
        fpdu.push(*octet);
    }
    mark(&mut fpdu, place, start);
    if let Some(change) = step.before_crc {
        change(&mut fpdu);
    }
    fpdu.extend(crc32c::crc32c(&fpdu).to_le_bytes());
    if let Some(change) = step.after_crc {
        change(&mut fpdu);
    }
    fpdu
}

fn mark(fpdu: &mut Vec<u8>, place: Option<usize>, start: Option<usize>) {
    let at = fpdu.len();
    if place.is_some_and(|place| (place + at).is_multiple_of(512)) {
        let pointer = start.map_or(0, |start| at - start) as u32;
        fpdu.extend(pointer.to_be_bytes());
    }
}

/// Ethernet, IPv4 and TCP around a payload at a place of the stream.
fn frame(said: &[Said; 2], by: usize, at: usize, flags: u8, payload: &[u8]) -> Vec<u8> {
    // Both streams wrap soon.
    const ISN: [u32; 2] = [0xffff_ff00, 0xffff_fff0];
    let (own, peer) = (&said[by], &said[1 - by]);
    let syn = flags & 0x02 != 0;
    let seq = match own.syn {
        true => ISN[by].wrapping_add(1 + at as u32 + u32::from(own.fin)),
        false => ISN[by],
    };
    let ack = ISN[1 - by].wrapping_add(1 + own.heard as u32);
    let flags = flags | if peer.syn { 0x10 } else { 0 };
    let mut tcp = Vec::new();
    tcp.extend([0x10, by as u8, 0x10, 1 - by as u8]);
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([if syn { 0x60 } else { 0x50 }, flags, 0xff, 0xff, 0, 0, 0, 0]);
    if syn {
        tcp.extend([2, 4, MSS.to_be_bytes()[0], MSS.to_be_bytes()[1]]);
    }
    tcp.extend(payload);
    let mut ip = vec![0x45, 0];
    ip.extend((20 + tcp.len() as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, by as u8 + 1]);
    ip.extend([10, 0, 0, 2 - by as u8]);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    let mut pseudo = ip[12..20].to_vec();
    pseudo.extend([0, 6]);
    pseudo.extend((tcp.len() as u16).to_be_bytes());
    pseudo.extend(&tcp);
    tcp[16..18].copy_from_slice(&checksum(&pseudo));
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0x00]);
    frame.extend(ip);
    frame.extend(tcp);
    frame
}

fn checksum(octets: &[u8]) -> [u8; 2] {
    let mut sum: u32 = octets
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!sum as u16).to_be_bytes()
}
