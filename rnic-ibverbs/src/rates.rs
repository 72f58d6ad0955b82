//! Rates of InfiniBand: numbers of an enumeration, megabits per second, and multiples of 2.5
//! gigabits per second.
#![allow(unsafe_code, reason = "C ABI: entry points")]

/// Each rate of `enum ibv_rate`: its number, its megabits per second, and the multiple where it is
/// one.
const RATES: [(u32, i32, Option<i32>); 23] = [
    (2, 2_500, Some(1)),
    (5, 5_000, Some(2)),
    (3, 10_000, Some(4)),
    (6, 20_000, Some(8)),
    (4, 30_000, Some(12)),
    (7, 40_000, Some(16)),
    (8, 60_000, Some(24)),
    (9, 80_000, Some(32)),
    (10, 120_000, Some(48)),
    (11, 14_062, None),
    (12, 56_250, None),
    (13, 112_500, None),
    (14, 168_750, None),
    (15, 25_781, None),
    (16, 103_125, None),
    (17, 206_250, None),
    (18, 309_375, None),
    (19, 28_125, Some(11)),
    (20, 53_125, Some(20)),
    (21, 425_000, Some(160)),
    (22, 637_500, Some(240)),
    (23, 850_000, Some(320)),
    (24, 1_275_000, Some(480)),
];

/// The number that stands for no particular rate.
const MAX: u32 = 0;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mult(rate: u32) -> i32 {
    let found = RATES.iter().find(|known| known.0 == rate);
    found.and_then(|known| known.2).unwrap_or(-1)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn mult_to_ibv_rate(mult: i32) -> u32 {
    let found = RATES.iter().find(|known| known.2 == Some(mult));
    found.map_or(MAX, |known| known.0)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_rate_to_mbps(rate: u32) -> i32 {
    let found = RATES.iter().find(|known| known.0 == rate);
    found.map_or(-1, |known| known.1)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: i32) -> u32 {
    let found = RATES.iter().find(|known| known.1 == mbps);
    found.map_or(MAX, |known| known.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_round_trip() {
        for (rate, mbps, mult) in RATES {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
            assert_eq!(ibv_rate_to_mbps(rate), mbps);
            assert_eq!(ibv_rate_to_mult(rate), mult.unwrap_or(-1));
        }
        assert_eq!(mult_to_ibv_rate(8), 6);
        assert_eq!((ibv_rate_to_mbps(1), mult_to_ibv_rate(3)), (-1, MAX));
    }
}
