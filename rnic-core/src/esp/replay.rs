//! Protection from replays: which sequence numbers were received (RFC 4303 section 3.4.3), and the
//! upper half of a number of which the lower one was sent (appendix A2).

/// The fewest numbers that a window has.
pub const SMALLEST_WINDOW: u32 = 64;
/// The most.
pub const LARGEST_WINDOW: u32 = 4096;
/// Those of a window where nothing else is wanted.
pub const USUAL_WINDOW: u32 = 1024;

/// Numbers of a word.
const WORD: u64 = u64::BITS as u64;

/// The highest number received, and which of those below it were.
#[derive(Clone, Debug)]
pub struct Window {
    /// The highest number that was received, 0 at first.
    top: u64,
    /// Numbers that it spans.
    size: u64,
    /// Whether each of the last numbers was received: number *n* is bit *n* modulo all bits. One
    /// word more than the window, so that a word begins empty (RFC 6479).
    received: Box<[u64]>,
    /// Numbers have 64 bits, of which the lower half is sent.
    extended: bool,
}

impl Window {
    /// Makes a window of about `size` numbers, behind `top`: that and all below it were received.
    pub fn new(size: u32, extended: bool, top: u64) -> Self {
        let size = size.clamp(SMALLEST_WINDOW, LARGEST_WINDOW);
        let size = u64::from(size).next_multiple_of(WORD);
        let received = match top {
            // Number 0 is never sent.
            0 => 0,
            _ => u64::MAX,
        };
        let mut window = Self {
            top,
            size,
            received: vec![received; (size / WORD) as usize + 1].into(),
            extended,
        };
        // What is above the top in its word was not.
        *window.word(top) = received & mask_up_to(top);
        window
    }

    /// Returns the highest number that was received.
    pub fn top(&self) -> u64 {
        self.top
    }

    /// Returns the numbers that it spans.
    pub fn size(&self) -> u32 {
        self.size as u32
    }

    /// Returns the whole of a number, of which the lower half was sent. `None` if there is none
    /// that could be new.
    pub fn whole(&self, low: u32) -> Option<u64> {
        if !self.extended {
            return Some(low.into());
        }
        let (top_low, top_high) = (self.top as u32, self.top >> 32);
        let bottom = top_low.wrapping_sub(self.size as u32 - 1);
        let high = match u64::from(top_low) >= self.size - 1 {
            // The window is within one range of lower halves, or begins in the one before.
            true if low >= bottom => Some(top_high),
            true => top_high.checked_add(1),
            false if low >= bottom => top_high.checked_sub(1),
            false => Some(top_high),
        };
        high.filter(|high| *high <= u64::from(u32::MAX))
            .map(|high| high << 32 | u64::from(low))
    }

    /// Returns whether a number could be new. Nothing changes: the packet may be forged.
    pub fn is_new(&self, number: u64) -> bool {
        // rfc: 5040-124, 5041-100
        if number == 0 {
            return false;
        }
        if number > self.top {
            return true;
        }
        let is_within = self.top - number < self.size;
        is_within && self.received[self.index(number)] & bit(number) == 0
    }

    /// Notes a number that [is new](Self::is_new): its packet is genuine.
    pub fn receive(&mut self, number: u64) {
        if number > self.top {
            let words = self.received.len() as u64;
            let (from, to) = (self.top / WORD, number / WORD);
            for word in (from..to).take(words as usize) {
                self.received[((word + 1) % words) as usize] = 0;
            }
            self.top = number;
        }
        *self.word(number) |= bit(number);
    }

    fn index(&self, number: u64) -> usize {
        ((number / WORD) % self.received.len() as u64) as usize
    }

    fn word(&mut self, number: u64) -> &mut u64 {
        &mut self.received[self.index(number)]
    }
}

fn bit(number: u64) -> u64 {
    1 << (number % WORD)
}

/// Returns the bits of a number and of those below it in its word.
fn mask_up_to(number: u64) -> u64 {
    bit(number) | (bit(number) - 1)
}
