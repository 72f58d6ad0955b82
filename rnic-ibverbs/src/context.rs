//! Contexts: what a program opens of a device.
