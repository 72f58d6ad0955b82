//! The private data of MPA start-up.

use rnic_core::wire::mpa::{ENHANCED_LEN, MAX_PRIVATE_DATA};

use crate::error::Error;

/// Fails if private data does not fit.
pub(crate) fn check_private_data(data: &[u8], mpa_revision: u8) -> Result<(), Error> {
    let max = if mpa_revision >= 2 {
        MAX_PRIVATE_DATA - ENHANCED_LEN
    } else {
        MAX_PRIVATE_DATA
    };
    if data.len() > max {
        return Err(Error::PrivateData {
            len: data.len(),
            max,
        });
    }
    Ok(())
}
