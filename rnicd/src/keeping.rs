//! What rnicd and its keeper say to each other, in datagrams of a `SOCK_SEQPACKET` socket.

use rnic_manager::protocol::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most octets of a key.
const MAX_KEY: usize = 256;
/// The most keys of a message: they fit whatever their length is.
pub(crate) const MAX_KEYS: usize = 100;

/// What rnicd tells its keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToKeeper {
    /// Keep the descriptor that comes with this, in the place of any other with this key. Not
    /// answered.
    Keep { key: String },
    /// Close some, answered by `Done` when they are closed.
    Forget { keys: Vec<String> },
    /// Send each as `Kept`, and then `Done`.
    List,
    /// Close all, answered by `Done`.
    Clear,
}

/// What the keeper answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum FromKeeper {
    /// Comes with a descriptor that is kept.
    Kept { key: String },
    /// It is done.
    Done,
}

fn check<'a>(mut keys: impl Iterator<Item = &'a String>) -> Result<(), String> {
    match keys.find(|key| key.is_empty() || key.len() > MAX_KEY) {
        Some(key) => Err(format!(
            "a key has 1 to {MAX_KEY} octets, not {}",
            key.len()
        )),
        None => Ok(()),
    }
}

impl Message for ToKeeper {
    const TYPES: &'static [&'static str] = &["keep", "forget", "list", "clear"];

    fn descriptors(&self) -> usize {
        matches!(self, Self::Keep { .. }).into()
    }

    fn from_json(value: Value) -> serde_json::Result<Self> {
        serde_json::from_value(value)
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Keep { key } => check([key].into_iter()),
            Self::Forget { keys } => check(keys.iter()),
            Self::List | Self::Clear => Ok(()),
        }
    }
}

impl Message for FromKeeper {
    const TYPES: &'static [&'static str] = &["kept", "done"];

    fn descriptors(&self) -> usize {
        matches!(self, Self::Kept { .. }).into()
    }

    fn from_json(value: Value) -> serde_json::Result<Self> {
        serde_json::from_value(value)
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Kept { key } => check([key].into_iter()),
            Self::Done => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rnic_manager::protocol::MAX_MESSAGE;

    use super::*;

    #[test]
    fn as_many_keys_as_a_message_has_fit() {
        let keys = vec!["\"".repeat(MAX_KEY); MAX_KEYS];
        let octets = ToKeeper::Forget { keys }.encode().unwrap();
        assert!(octets.len() > MAX_MESSAGE / 2 && ToKeeper::decode(&octets).is_ok());
        assert!(ToKeeper::decode(br#"{"type":"keep","key":""}"#).is_err());
    }
}
