//! Attacks of a hostile peer.
//!
//! The attacker is a remote process. It holds a NIC on the victim's fabric, with raw queue pairs
//! and protection domains of its own; both queue pairs that the victim connects to it; the victim's
//! control socket; and every byte that the victim sends it. An accomplice, connected to the same
//! NIC of the victim, passes on the addresses and keys of its own offer. The attacker may post any
//! work request with any key, address and length, send any message, write any bytes to the control
//! socket and to its cable, and stop or close any of them at any time.
//!
//! After every attack, within 30 s, the victim has an error with the cause or still serves; the
//! secret offered to the accomplice is unchanged; no region, buffer or thread is left.

#[path = "../remote/nodes.rs"]
#[allow(
    dead_code,
    reason = "shared with the test target `remote`, which uses all of it"
)]
mod nodes;

mod answers;
mod attacker;
mod cable;
mod control;
mod isolation;
mod relay;
mod requests;
