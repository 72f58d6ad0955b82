use crate::decoder::Rule;
use crate::script::Script;

/// What is done to a conversation, and which rule that breaks.
pub(super) type Fault = (&'static str, Rule, fn(&mut Script));
