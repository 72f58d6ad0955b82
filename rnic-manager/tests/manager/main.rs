//! What rnicd and its clients say to each other: the messages and their transport.

mod channel;
mod hostile;
mod messages;
mod states;
mod values;
