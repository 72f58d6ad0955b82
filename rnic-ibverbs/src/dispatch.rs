//! The dispatcher of an adapter: a thread that hands on what the engine reports, so that no program has to ask.
