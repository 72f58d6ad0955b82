//! The objects behind the pointers of the program.
