//! Attacks by the process at the other end: a passer of descriptors, and an importer of what this
//! process exports.
//!
//! - *The attacker holds* one end of a Unix stream socket to the attacked process, any descriptor
//!   that an unprivileged process can make, and the stand-in that the attacked process exported to
//!   it. It may send any bytes with any control data, call anything on its descriptors at any time,
//!   and close or die at any point.
//! - *The attacker does not hold* root, a file system of its own (close(2) of a FUSE file waits for
//!   its server), or the right to trace the attacked process. A stand-in is a memfd: its importer
//!   can map all of the mock's device memory ([`gaudi_sys::standin`]).
//! - *Each attack ends within 30 s*: the attacked process, a process of its own ([`victim`]),
//!   reports the error and the step that returned it. It must not be killed, and it must have as
//!   many open descriptors as before.

#[path = "../device_memory/mod.rs"]
mod device_memory;
mod export;
mod message;
mod object;
mod offer;
mod timing;
mod victim;
