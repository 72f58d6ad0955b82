//! Peers as JSON has them: a list of prefixes, or null for all peers.

use rnic_core::engine::{Peers, Prefix};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(peers: &Peers, serializer: S) -> Result<S::Ok, S::Error> {
    let limits = peers.limits();
    let texts = limits.map(|limits| limits.iter().map(Prefix::to_string).collect::<Vec<_>>());
    texts.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Peers, D::Error> {
    let Some(texts) = Option::<Vec<String>>::deserialize(deserializer)? else {
        return Ok(Peers::all());
    };
    let read = |text: &String| {
        let prefix = text.parse::<Prefix>();
        prefix.map_err(|error| D::Error::custom(format_args!("{text:?} is {error}")))
    };
    let prefixes: Result<Vec<_>, _> = texts.iter().map(read).collect();
    Ok(Peers::only(prefixes?))
}
