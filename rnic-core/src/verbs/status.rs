//! How requests end.

use std::fmt;

/// How a request ended. Names and numbers are those of ibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WcStatus {
    /// It was done.
    Success = 0,
    /// The message does not fit the buffer, or the request is longer than a message may be.
    LocalLengthError = 1,
    /// The request itself makes no sense.
    LocalQpOperationError = 2,
    /// A local piece of memory is not registered for this.
    LocalProtectionError = 4,
    /// Not done, because the queue pair failed or closed: also when TCP failed, of which the queue
    /// pair's event tells.
    WrFlushed = 5,
    /// A window was not bound, memory not registered, or an STag not invalidated: one of the
    /// request's STags is not what it must be for that, or the rights or octets that it asks for
    /// are not there.
    MwBindError = 6,
    /// The peer found the request invalid, or asked for something that is.
    RemoteInvalidRequestError = 9,
    /// The peer does not allow the access.
    RemoteAccessError = 10,
    /// The peer failed.
    RemoteOperationError = 11,
    /// The peer of a connection with the semantics of RC is gone, or has never answered.
    RetryExceeded = 12,
    /// The peer had no receive posted for too long: its receiver was not ready (RNR).
    RnrRetryExceeded = 13,
    /// Anything else: a number that this release does not know.
    GeneralError = 21,
}

impl WcStatus {
    /// Returns its name in ibverbs, without the `IBV_WC_`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::LocalLengthError => "LOC_LEN_ERR",
            Self::LocalQpOperationError => "LOC_QP_OP_ERR",
            Self::LocalProtectionError => "LOC_PROT_ERR",
            Self::WrFlushed => "WR_FLUSH_ERR",
            Self::MwBindError => "MW_BIND_ERR",
            Self::RemoteInvalidRequestError => "REM_INV_REQ_ERR",
            Self::RemoteAccessError => "REM_ACCESS_ERR",
            Self::RemoteOperationError => "REM_OP_ERR",
            Self::RetryExceeded => "RETRY_EXC_ERR",
            Self::RnrRetryExceeded => "RNR_RETRY_EXC_ERR",
            Self::GeneralError => "GENERAL_ERR",
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TryFrom<u8> for WcStatus {
    type Error = UnknownCode;
    fn try_from(code: u8) -> Result<Self, UnknownCode> {
        Ok(match code {
            0 => Self::Success,
            1 => Self::LocalLengthError,
            2 => Self::LocalQpOperationError,
            4 => Self::LocalProtectionError,
            5 => Self::WrFlushed,
            6 => Self::MwBindError,
            9 => Self::RemoteInvalidRequestError,
            10 => Self::RemoteAccessError,
            11 => Self::RemoteOperationError,
            12 => Self::RetryExceeded,
            13 => Self::RnrRetryExceeded,
            21 => Self::GeneralError,
            _ => return Err(UnknownCode(code)),
        })
    }
}

/// A number that stands for no operation, or no status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no code that this release knows")]
pub struct UnknownCode(pub u8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        let known = (0..=u8::MAX).filter_map(|code| {
            let status = WcStatus::try_from(code).ok()?;
            assert_eq!(status as u8, code);
            Some(status.to_string())
        });
        let names: std::collections::BTreeSet<_> = known.collect();
        assert_eq!(names.len(), 12);
    }
}
