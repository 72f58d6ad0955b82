//! The speed of a port as InfiniBand counts it.

use std::fmt;

/// The width of a port and the speed of a lane, in the codes of the port's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// The code of the number of lanes.
    pub width: u8,
    /// The code of a lane's speed.
    pub speed: u8,
}

const WIDTH_1X: u8 = 1;
const WIDTH_4X: u8 = 2;
const WIDTH_2X: u8 = 16;

impl Lanes {
    /// Returns what comes closest to the speed of an interface, in megabits per second. Where it is
    /// not known, that is 1 Gb/s.
    pub fn of(megabits: Option<u32>) -> Self {
        let megabits = megabits.unwrap_or(1000);
        let speeds = [
            (1000, (WIDTH_1X, 1)),
            (10_000, (WIDTH_1X, 8)),
            (20_000, (WIDTH_4X, 2)),
            (25_000, (WIDTH_1X, 32)),
            (40_000, (WIDTH_4X, 8)),
            (50_000, (WIDTH_2X, 32)),
            (100_000, (WIDTH_4X, 32)),
            (200_000, (WIDTH_4X, 64)),
        ];
        let reached = speeds.iter().find(|(most, _)| megabits <= *most);
        let (width, speed) = reached.map_or((WIDTH_4X, 128), |(_, codes)| *codes);
        Self { width, speed }
    }
}

/// As the kernel prints it in sysfs.
impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes = match self.width {
            WIDTH_1X => 1,
            WIDTH_4X => 4,
            4 => 8,
            8 => 12,
            _ => 2,
        };
        // In tenths of a gigabit per second.
        let (lane, name) = match self.speed {
            1 => (25, "SDR"),
            2 => (50, "DDR"),
            4 => (100, "QDR"),
            8 => (100, "FDR10"),
            16 => (140, "FDR"),
            32 => (250, "EDR"),
            64 => (500, "HDR"),
            _ => (1000, "NDR"),
        };
        let all: u32 = lanes * lane;
        write!(f, "{}", all / 10)?;
        if !all.is_multiple_of(10) {
            write!(f, ".{}", all % 10)?;
        }
        write!(f, " Gb/sec ({lanes}X {name})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_all_lanes() {
        for (megabits, printed) in [
            (None, "2.5 Gb/sec (1X SDR)"),
            (Some(100), "2.5 Gb/sec (1X SDR)"),
            (Some(10_000), "10 Gb/sec (1X FDR10)"),
            (Some(25_000), "25 Gb/sec (1X EDR)"),
            (Some(50_000), "50 Gb/sec (2X EDR)"),
            (Some(200_000), "200 Gb/sec (4X HDR)"),
            (Some(400_000), "400 Gb/sec (4X NDR)"),
        ] {
            assert_eq!(Lanes::of(megabits).to_string(), printed);
        }
    }
}
