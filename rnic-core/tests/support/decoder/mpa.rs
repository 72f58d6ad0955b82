//! FPDUs and markers: RFC 5044 section 4.

use super::findings::{Findings, Rule};
use super::half::Half;
use super::{ddp, startup};

const LENGTH_LEN: usize = 2;
const CRC_LEN: usize = 4;
const MARKER_LEN: usize = 4;
const MARKER_DISTANCE: u64 = 512;

/// The longest ULPDU: RFC 5044 section 3.
const MAX_MULPDU: usize = 64_768;

/// An FPDU as it stands in the stream.
struct Fpdu {
    /// Where its length field stands, in the stream.
    length_at: u64,
    ulpdu: Vec<u8>,
    pad: Vec<u8>,
    crc: [u8; CRC_LEN],
    /// Octets from its start to the CRC, as they were sent.
    covered: usize,
    /// Where each marker stands, and its octets.
    markers: Vec<(u64, [u8; MARKER_LEN])>,
    /// Where the next FPDU begins.
    end: u64,
}

/// Reads octets of a stream, without the markers in it.
struct Walker<'a> {
    octets: &'a [u8],
    /// Where the next octet stands, in the stream.
    at: u64,
    /// Where the first marker stands, if there are any.
    first_marker: Option<u64>,
    markers: Vec<(u64, [u8; MARKER_LEN])>,
}

impl Walker<'_> {
    /// Steps over a marker that stands here. `None`: it is not whole yet.
    fn step_over(&mut self) -> Option<()> {
        let here = |first: u64| (self.at - first).is_multiple_of(MARKER_DISTANCE);
        if self.first_marker.is_some_and(here) {
            let marker = self.octets.get(self.at as usize..)?.first_chunk()?;
            self.markers.push((self.at, *marker));
            self.at += MARKER_LEN as u64;
        }
        Some(())
    }

    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut taken = Vec::with_capacity(len);
        while taken.len() < len {
            self.step_over()?;
            let to_marker = self
                .first_marker
                .map(|first| MARKER_DISTANCE - (self.at - first) % MARKER_DISTANCE);
            let here = (len - taken.len()).min(to_marker.unwrap_or(u64::MAX) as usize);
            taken.extend(self.octets.get(self.at as usize..)?.get(..here)?);
            self.at += here as u64;
        }
        Some(taken)
    }
}

/// The FPDU at `at`, once it is whole.
fn next(octets: &[u8], at: u64, first_marker: Option<u64>) -> Option<Fpdu> {
    let mut walker = Walker {
        octets,
        at,
        first_marker,
        markers: Vec::new(),
    };
    walker.step_over()?;
    let length_at = walker.at;
    let length = walker.take(LENGTH_LEN)?;
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let ulpdu = walker.take(length)?;
    let pad = walker.take((LENGTH_LEN + length).wrapping_neg() % 4)?;
    // A marker right behind the pad belongs to this FPDU, and its CRC covers it.
    walker.step_over()?;
    let covered = (walker.at - at) as usize;
    let crc = walker.take(CRC_LEN)?;
    Some(Fpdu {
        length_at,
        ulpdu,
        pad,
        crc: [crc[0], crc[1], crc[2], crc[3]],
        covered,
        end: walker.at,
        markers: walker.markers,
    })
}

/// Reads the next FPDU and what is in it.
pub(super) fn read(speaker: &mut Half, listener: &mut Half, findings: &mut Findings<'_>) -> bool {
    let initiator = speaker.initiator;
    let Some(own) = speaker.startup else {
        return false;
    };
    let has_more = speaker.stream.octets().len() as u64 > speaker.read;
    if has_more && speaker.terminated {
        findings.object(Rule::AfterTerminate, "octets behind a Terminate");
    }
    let heard = |len| !findings.judged || speaker.acknowledged >= len;
    let theirs = listener.startup;
    let Some(theirs) = theirs.filter(|theirs| !initiator || heard(theirs.len)) else {
        if has_more && initiator {
            return read_giving_up(speaker, listener, own.crc, None, findings);
        }
        return false;
    };
    let first_marker = theirs.markers.then_some(own.len);
    let Some(fpdu) = next(speaker.stream.octets(), speaker.read, first_marker) else {
        return false;
    };
    let covered = &speaker.stream.octets()[speaker.read as usize..][..fpdu.covered];
    check(&fpdu, covered, own.crc || theirs.crc, findings);
    check_place(speaker, listener, &fpdu.ulpdu, findings);
    ddp::read(speaker, listener, &fpdu.ulpdu, fpdu.end, findings);
    speaker.mpa.fpdus += 1;
    speaker.mpa.first_end.get_or_insert(fpdu.end);
    speaker.read = fpdu.end;
    findings.heard.fpdus += 1;
    true
}

/// Reads what a responder sends in place of its Reply when it gives up, where the Request is one of
/// RFC 6581. `None` if it sends a start-up frame.
pub(super) fn read_no_reply(
    speaker: &mut Half,
    listener: &mut Half,
    findings: &mut Findings<'_>,
) -> Option<bool> {
    let request = listener.startup.filter(|_| !speaker.initiator)?;
    let octets = speaker.stream.octets();
    let begins_otherwise = octets.first().is_some_and(|octet| *octet != b'M');
    if request.enhanced.is_none() || !begins_otherwise {
        return None;
    }
    if octets.len() as u64 == speaker.read {
        return Some(false);
    }
    if speaker.terminated {
        findings.object(Rule::AfterTerminate, "octets behind a Terminate");
        return Some(false);
    }
    let first_marker = request.markers.then_some(0);
    Some(read_giving_up(
        speaker,
        listener,
        request.crc,
        first_marker,
        findings,
    ))
}

/// Either side may give up before the Reply: then it sends a Terminate (RFC 6581 section 9.3), and
/// nothing else.
fn read_giving_up(
    speaker: &mut Half,
    listener: &mut Half,
    crc: bool,
    first_marker: Option<u64>,
    findings: &mut Findings<'_>,
) -> bool {
    let octets = speaker.stream.octets();
    let Some(fpdu) = next(octets, speaker.read, first_marker) else {
        if findings.judged && findings.aligned {
            findings.object(Rule::StartupOrder, "octets before the Reply");
        }
        return false;
    };
    let given_up = matches!(fpdu.ulpdu[..], [0x41, 0x47, .., 0x20, 5, 0, 0]);
    findings.demand(given_up, Rule::StartupOrder, || {
        format!("an FPDU before the Reply: {:02x?}", fpdu.ulpdu)
    });
    let covered = &octets[speaker.read as usize..][..fpdu.covered];
    check(&fpdu, covered, crc, findings);
    ddp::read(speaker, listener, &fpdu.ulpdu, fpdu.end, findings);
    speaker.read = fpdu.end;
    true
}

fn check(fpdu: &Fpdu, covered: &[u8], crc: bool, findings: &mut Findings<'_>) {
    let len = fpdu.ulpdu.len();
    findings.demand(len <= MAX_MULPDU, Rule::FpduLength, || {
        format!("a ULPDU of {len} octets")
    });
    findings.demand(
        fpdu.pad.iter().all(|octet| *octet == 0),
        Rule::Padding,
        || format!("{:?}", fpdu.pad),
    );
    if crc {
        let (computed, came) = (crc32c(covered).to_le_bytes(), fpdu.crc);
        findings.heard.crcs += 1;
        findings.demand(came == computed, Rule::Crc, || {
            format!("{came:02x?} where the octets give {computed:02x?}")
        });
    }
    for (at, marker) in &fpdu.markers {
        findings.heard.markers += 1;
        // Zero in front of the length field, which then follows the marker.
        let pointer = at.saturating_sub(fpdu.length_at) as u16;
        let wanted = [0, 0, pointer.to_be_bytes()[0], pointer.to_be_bytes()[1]];
        findings.demand(*marker == wanted, Rule::Marker, || {
            format!("the marker at {at} is {marker:02x?}, not {wanted:02x?}")
        });
    }
}

/// Returns which FPDU this is of those with which a peer-to-peer connection begins, if it is one: 0
/// for a Send, 1 for a Write, 2 for a Read, each without octets.
fn beginning(ulpdu: &[u8]) -> Option<usize> {
    match ulpdu {
        [0x41, control, ..] if ulpdu.len() == 18 && control & 15 == 3 => Some(0),
        [0xc1, control, ..] if ulpdu.len() == 14 && control & 15 == 0 => Some(1),
        [0x41, control, ..] if ulpdu.len() == 46 && control & 15 == 1 => {
            // RDMARDSZ, behind the sink's STag and offset.
            (ulpdu[30..34] == [0; 4]).then_some(2)
        }
        _ => None,
    }
}

/// Checks that an FPDU may be sent here, at this point of the start-up.
fn check_place(speaker: &Half, listener: &Half, ulpdu: &[u8], findings: &mut Findings<'_>) {
    let is_terminate = matches!(ulpdu, [0x41, control, ..] if control & 15 == 7);
    let kind = beginning(ulpdu);
    startup::check_fpdu(speaker, listener, is_terminate, kind, findings);
}

/// CRC32c as RFC 3720 section 12.1 defines it, octet by octet.
pub(crate) fn crc32c(octets: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !octets.iter().fold(!0, |crc, octet| {
        TABLE[usize::from((crc as u8) ^ octet)] ^ (crc >> 8)
    })
}

const fn table() -> [u32; 256] {
    /// 0x1EDC6F41 with its bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (mut value, mut bit) = (at as u32, 0);
        while bit < 8 {
            value = if value & 1 == 1 {
                value >> 1 ^ POLYNOMIAL
            } else {
                value >> 1
            };
            bit += 1;
        }
        table[at] = value;
        at += 1;
    }
    table
}
