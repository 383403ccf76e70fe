//! Endpoints between two mocks over software NICs: every pair of ways, and every way to fail.

mod bytes;
mod connect;
mod errors;
mod events;
mod ladder;
mod nodes;
mod serving;
mod transfers;
mod watch;
