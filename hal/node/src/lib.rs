//! An open node of any device spec behind a real file descriptor.
