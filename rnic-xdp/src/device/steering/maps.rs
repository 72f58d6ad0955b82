//! Access to BPF maps by aya, in terms of `std::io`.

use std::io;

use aya::maps::{Map, MapData, MapError, PerCpuArray};

use super::layout::{SteeringCounters, VERDICTS};

/// Returns the map of a descriptor, in the type that the kernel states.
pub(super) fn map_from(data: MapData) -> io::Result<Map> {
    Map::from_map_data(data).map_err(io_error)
}

/// Reads the counters of all CPUs.
pub(crate) fn read_counters(map: &PerCpuArray<MapData, u64>) -> io::Result<SteeringCounters> {
    let mut values = [0; VERDICTS as usize];
    for (index, value) in (0..VERDICTS).zip(&mut values) {
        let per_cpu = map.get(&index, 0).map_err(io_error)?;
        *value = per_cpu.iter().sum();
    }
    Ok(SteeringCounters::from_values(values))
}

/// Returns the kernel's error number inside an error of aya.
pub(crate) fn io_error(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        MapError::IoError(error) => error,
        MapError::KeyNotFound | MapError::ElementNotFound => io::ErrorKind::NotFound.into(),
        other => io::Error::other(other.to_string()),
    }
}
