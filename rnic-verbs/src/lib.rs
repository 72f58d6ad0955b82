//! The verbs that an application links.
