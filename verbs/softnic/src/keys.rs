//! Random keys of regions and windows.
//!
//! A key is a capability: a peer that has one must not be able to compute another. Keys are from
//! the kernel's generator, not from a counter or the seed of a fault rule. In a fabric, whose peers
//! are code of one process and whose runs repeat, they are from its seed.

#![expect(unsafe_code, reason = "getrandom(2) fills a buffer")]

use gaudi_seam::{Errno, Error, Result};
use gaudi_sys::random::SplitMix64;
use nix::libc;

/// Keys that one system call returns: 256 bytes, which getrandom(2) returns whole.
const BATCH: usize = 64;

/// A supply of random keys.
#[derive(Debug)]
pub(crate) struct Keys {
    batch: [u32; BATCH],
    /// Keys of the batch that are not used yet.
    left: usize,
    /// The source of keys in a fabric.
    seeded: Option<SplitMix64>,
}

impl Keys {
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self {
            batch: [0; BATCH],
            left: 0,
            seeded: seed.map(SplitMix64::new),
        }
    }

    /// Returns the next random number.
    ///
    /// # Errors
    /// The errno of getrandom(2).
    pub(crate) fn draw(&mut self) -> Result<u32> {
        if let Some(random) = &mut self.seeded {
            return Ok((random.next() >> 32) as u32);
        }
        if self.left == 0 {
            self.refill()?;
        }
        self.left -= 1;
        // Clears it: a key in use must not stay in the batch.
        Ok(std::mem::take(&mut self.batch[self.left]))
    }

    fn refill(&mut self) -> Result<()> {
        let bytes = size_of_val(&self.batch);
        loop {
            // SAFETY: the batch is exclusively borrowed and `bytes` long; any bytes are valid
            // numbers.
            let count = unsafe { libc::getrandom(self.batch.as_mut_ptr().cast(), bytes, 0) };
            match Errno::result(count) {
                Ok(count) if usize::try_from(count) == Ok(bytes) => {
                    self.left = BATCH;
                    return Ok(());
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(Error::from_errno("getrandom", errno)),
            }
        }
    }
}
