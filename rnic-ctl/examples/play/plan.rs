//! The plan that both sides play: its lines, and the contents of memory in each step. The lines are
//! explained in `ci/lib/play.py`; the other side is `ci/guest/siw-play`.

use crate::outcome::Outcome;

/// Octets between the pieces of a scatter or gather list.
const PIECE_GAP: usize = 5;
/// Octets after the data that must not change.
const GUARD: usize = 64;
/// The content of memory where nothing is placed.
pub(crate) const EMPTY: u8 = 0xee;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    Read,
    Send { solicited: bool, invalidates: bool },
}

/// The responder's memory that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    All,
    Readable,
    Writable,
    Private,
    Foreign,
    Once,
    Freed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Good,
    Wrong,
    Stale,
}

/// One line of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) number: u32,
    /// This side requests it, the other one responds.
    pub(crate) mine: bool,
    pub(crate) operation: Operation,
    pub(crate) length: usize,
    /// Pieces that the requester gathers from, or reads into.
    pieces: usize,
    /// Pieces that a Send is received into.
    into: usize,
    /// Requests, posted together.
    pub(crate) count: usize,
    /// Where the requester's data begin in its memory.
    from: usize,
    /// Where they go in the responder's.
    pub(crate) at: i64,
    /// `at` is no offset, but the tagged offset itself.
    pub(crate) absolute: bool,
    pub(crate) inline: bool,
    pub(crate) region: Target,
    pub(crate) key: Key,
    /// Octets that each receive has for a Send.
    room: usize,
    no_receive: bool,
    /// The connection ends here, in error.
    pub(crate) ends: bool,
}

/// A `connection` line and those below it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) private_data: usize,
    pub(crate) reply: usize,
    pub(crate) reject: bool,
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    pub(crate) crc: bool,
    pub(crate) revision: u8,
    pub(crate) peer_to_peer: bool,
    pub(crate) responder_closes: bool,
    pub(crate) responder_greets: bool,
    /// The responder's driver refuses it, and its application gets no event.
    pub(crate) refused: bool,
    pub(crate) steps: Vec<Step>,
}

/// Lists of `pieces` pieces with gaps between them, `count` of them, each of `length` octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) start: usize,
    length: usize,
    pieces: usize,
    count: usize,
}

impl Layout {
    /// Returns offset and length of each piece of a list.
    pub(crate) fn cut(&self, index: usize) -> Vec<(usize, usize)> {
        let mut offset = self.start + index * self.each();
        let mut left = self.length;
        (0..self.pieces)
            .map(|piece| {
                let (at, length) = (offset, left / (self.pieces - piece));
                offset += length + PIECE_GAP;
                left -= length;
                (at, length)
            })
            .collect()
    }

    fn each(&self) -> usize {
        self.length + self.pieces * PIECE_GAP
    }

    /// Returns the octets from the start of the memory to the end of the last guard.
    pub(crate) fn extent(&self) -> usize {
        self.start + self.count * self.each() + GUARD
    }

    /// Returns the contents of memory of this layout with the data of a step, or with none.
    pub(crate) fn image(&self, seed: Option<u32>) -> Vec<u8> {
        let mut memory = vec![EMPTY; self.extent()];
        let Some(seed) = seed else { return memory };
        let pieces = (0..self.count).flat_map(|index| self.cut(index));
        let places = pieces.flat_map(|(at, length)| at..at + length);
        for (octet, place) in places.enumerate() {
            memory[place] = pattern(seed, octet);
        }
        memory
    }
}

/// Returns octet `i` of the data of a step, or of private data.
pub(crate) fn pattern(seed: u32, i: usize) -> u8 {
    (seed as usize * 31 + i * 7 + (i >> 8) * 13 + (i >> 16) * 29) as u8
}

impl Step {
    pub(crate) fn is_send(&self) -> bool {
        matches!(self.operation, Operation::Send { .. })
    }

    /// Returns whether it is a Read of no octets. An empty message announces it: see
    /// `ci/guest/siw-play/side.h`.
    pub(crate) fn reads_nothing(&self) -> bool {
        self.operation == Operation::Read && self.length == 0
    }

    pub(crate) fn invalidates(&self) -> bool {
        matches!(self.operation, Operation::Send { invalidates, .. } if invalidates)
    }

    pub(crate) fn is_solicited(&self) -> bool {
        matches!(self.operation, Operation::Send { solicited, .. } if solicited)
    }

    /// Returns the number of receives that the responder posts for the data.
    pub(crate) fn receives(&self) -> usize {
        if self.is_send() && !self.no_receive {
            self.count
        } else {
            0
        }
    }

    /// Returns the layout of the requester's memory.
    pub(crate) fn request_layout(&self) -> Layout {
        Layout {
            start: self.from,
            length: self.length,
            pieces: self.pieces,
            count: self.count,
        }
    }

    /// Returns the layout of the responder's memory: what a Send is received into, or what a Read
    /// or Write names. Where the step ends in an error, it is the start of the memory, which must
    /// not change.
    pub(crate) fn response_layout(&self) -> Layout {
        if self.is_send() {
            return Layout {
                start: 0,
                length: self.room,
                pieces: self.into,
                count: self.count,
            };
        }
        Layout {
            start: if self.ends { 0 } else { self.at as usize },
            length: self.length * self.count,
            pieces: 1,
            count: 1,
        }
    }
}

/// Parses a plan. `me` is this side's name in it.
pub(crate) fn read(text: &str, me: &str) -> Outcome<Vec<Connection>> {
    let mut connections: Vec<Connection> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] | ["#", ..] => {}
            ["connection", words @ ..] => connections.push(connection(words, me)?),
            [who, operation, length, words @ ..] => {
                let connection = connections.last_mut().ok_or("a step before a connection")?;
                let number = connection.steps.len() as u32;
                let mut step = step(operation, length, words)?;
                step.number = number;
                step.mine = *who == me;
                connection.steps.push(step);
            }
            _ => return Err(format!("no plan: '{line}'").into()),
        }
    }
    Ok(connections)
}

fn step(operation: &str, length: &str, words: &[&str]) -> Outcome<Step> {
    let operation = match operation {
        "write" => Operation::Write,
        "read" => Operation::Read,
        "send" => send(false, false),
        "send-se" => send(true, false),
        "send-inv" => send(false, true),
        "send-se-inv" => send(true, true),
        other => return Err(format!("no operation '{other}'").into()),
    };
    let length = length.parse()?;
    let mut step = Step {
        number: 0,
        mine: false,
        operation,
        length,
        pieces: 1,
        into: 1,
        count: 1,
        from: 0,
        at: 0,
        absolute: false,
        inline: false,
        region: Target::All,
        key: Key::Good,
        room: length,
        no_receive: false,
        ends: false,
    };
    if step.invalidates() {
        step.region = Target::Once;
    }
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        match name {
            "pieces" => step.pieces = value.parse()?,
            "into" => step.into = value.parse()?,
            "count" => step.count = value.parse()?,
            "from" => step.from = value.parse()?,
            "at" => step.at = value.parse()?,
            "tagged-offset" => (step.at, step.absolute) = (value.parse::<i64>()?, true),
            "inline" => step.inline = true,
            "region" => step.region = target(value)?,
            "stag" => step.key = key(value)?,
            "room" => step.room = value.parse()?,
            "no-receive" => step.no_receive = true,
            "ends" => step.ends = true,
            _ => return Err(format!("unknown word '{word}'").into()),
        }
    }
    Ok(step)
}

fn send(solicited: bool, invalidates: bool) -> Operation {
    Operation::Send {
        solicited,
        invalidates,
    }
}

fn target(name: &str) -> Outcome<Target> {
    Ok(match name {
        "all" => Target::All,
        "readable" => Target::Readable,
        "writable" => Target::Writable,
        "private" => Target::Private,
        "foreign" => Target::Foreign,
        "once" => Target::Once,
        "freed" => Target::Freed,
        _ => return Err(format!("no region '{name}'").into()),
    })
}

fn key(name: &str) -> Outcome<Key> {
    Ok(match name {
        "good" => Key::Good,
        "wrong" => Key::Wrong,
        "stale" => Key::Stale,
        _ => return Err(format!("no stag '{name}'").into()),
    })
}

fn connection(words: &[&str], me: &str) -> Outcome<Connection> {
    let mut connection = Connection {
        private_data: 0,
        reply: 0,
        reject: false,
        ird: 16,
        ord: 16,
        crc: true,
        revision: 2,
        peer_to_peer: false,
        responder_closes: false,
        responder_greets: false,
        refused: false,
        steps: Vec::new(),
    };
    for word in words {
        let word = match word.split_once('.') {
            Some((who, word)) if who == me => word,
            Some(_) => continue,
            None => word,
        };
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        match name {
            "private" => connection.private_data = value.parse()?,
            "reply" => connection.reply = value.parse()?,
            "reject" => connection.reject = true,
            "ird" => connection.ird = value.parse()?,
            "ord" => connection.ord = value.parse()?,
            "no-crc" => connection.crc = false,
            "revision" => connection.revision = value.parse()?,
            "peer-to-peer" => connection.peer_to_peer = true,
            "responder-closes" => connection.responder_closes = true,
            "responder-greets" => connection.responder_greets = true,
            "refused" => connection.refused = true,
            _ => return Err(format!("unknown word '{word}'").into()),
        }
    }
    Ok(connection)
}
