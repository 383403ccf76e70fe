//! [`Mirrors`]: host memory of the program, as the model accesses it.
//!
//! The model accesses memory of this process. Each mapping has a copy here, and the content at the
//! last comparison. A comparison passes on what either side changed: the program's changes before
//! the model works, the device's after.

use std::collections::BTreeMap;

use gaudi_codec::UserMemory as _;
use gaudi_sys::{PAGE, RawMapping};
use nix::errno::Errno;

use crate::remote::Remote;

/// Bytes that are compared at a time.
const STRIDE: usize = 1 << 16;

/// Host memory of the program that is mapped on the device, by its device address.
#[derive(Debug, Default)]
pub(crate) struct Mirrors(BTreeMap<u64, Mirror>);

/// Host memory of the program, and its copy.
#[derive(Debug)]
pub(crate) struct Mirror {
    remote: Remote,
    address: u64,
    /// The copy starts at this offset of `memory`, so that both have the same place in a page.
    skip: usize,
    memory: RawMapping,
    /// The content at the last comparison.
    base: Vec<u8>,
    /// The program's memory can no longer be reached: unmapped, or the process has ended.
    is_lost: bool,
}

impl Mirror {
    /// Copies `len` bytes of the program.
    pub(crate) fn new(remote: Remote, address: u64, len: u64) -> Result<Self, Errno> {
        let skip = (address % PAGE) as usize;
        let len = usize::try_from(len).map_err(|_| Errno::ENOMEM)?;
        let whole = skip
            .checked_add(len)
            .and_then(|whole| whole.checked_next_multiple_of(PAGE as usize));
        let whole = whole.filter(|_| len > 0).ok_or(Errno::EINVAL)?;
        // Read first: a length without memory behind it allocates nothing.
        remote.read(address, &mut [0])?;
        let last = address.checked_add(len as u64 - 1).ok_or(Errno::EFAULT)?;
        remote.read(last, &mut [0])?;
        let memory = RawMapping::anonymous_sparse(whole)?;
        let mut mirror = Self {
            remote,
            address,
            skip,
            memory,
            base: vec![0; len],
            is_lost: false,
        };
        mirror.compare();
        if mirror.is_lost {
            Err(Errno::EFAULT)
        } else {
            Ok(mirror)
        }
    }

    /// The address of the copy in this process.
    pub(crate) fn here(&self) -> u64 {
        self.memory.as_ptr().as_ptr().expose_provenance() as u64 + self.skip as u64
    }

    /// Passes on the changes of both sides. If both changed a byte, the device's is kept.
    fn compare(&mut self) {
        let mut theirs = vec![0; STRIDE.min(self.base.len())];
        let mut ours = theirs.clone();
        for (nth, base) in self.base.chunks_mut(STRIDE).enumerate() {
            let at = nth * STRIDE;
            let (theirs, ours) = (&mut theirs[..base.len()], &mut ours[..base.len()]);
            let remote = self.address + at as u64;
            if self.is_lost || self.remote.read(remote, theirs).is_err() {
                self.is_lost = true;
                return;
            }
            if self.memory.read(self.skip + at, ours).is_err() {
                unreachable!("the copy has the length of the program's memory");
            }
            if *ours == *base && *theirs == *base {
                continue;
            }
            let device_changed = *ours != *base;
            for ((theirs, ours), base) in theirs.iter_mut().zip(ours.iter_mut()).zip(base.iter()) {
                if *ours != *base {
                    *theirs = *ours;
                } else {
                    *ours = *theirs;
                }
            }
            if device_changed && self.remote.write(remote, theirs).is_err() {
                self.is_lost = true;
                return;
            }
            if self.memory.write(self.skip + at, ours).is_err() {
                unreachable!("the copy has the length of the program's memory");
            }
            base.copy_from_slice(ours);
        }
    }
}

impl Mirrors {
    pub(crate) fn insert(&mut self, va: u64, mirror: Mirror) {
        self.0.insert(va, mirror);
    }

    pub(crate) fn remove(&mut self, va: u64) {
        self.0.remove(&va);
    }

    /// Passes on what the program and the device changed.
    pub(crate) fn compare(&mut self) {
        self.0.values_mut().for_each(Mirror::compare);
    }

    /// The address in this process of memory of the program. `None` if it is not mapped on the
    /// device.
    pub(crate) fn here(&self, address: u64) -> Option<u64> {
        self.0.values().find_map(|mirror| {
            let inside = address.checked_sub(mirror.address)?;
            (inside < mirror.base.len() as u64).then(|| mirror.here() + inside)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_both_sides_are_passed_on() {
        let theirs = RawMapping::anonymous(3 * STRIDE, true).unwrap();
        let address = theirs.as_ptr().as_ptr().expose_provenance() as u64 + 5;
        theirs.write(5, b"program").unwrap();
        let remote = Remote::of(std::process::id());
        let mirror = Mirror::new(remote, address, 2 * STRIDE as u64).unwrap();
        let read = |memory: &RawMapping, at: usize| {
            let mut bytes = [0; 7];
            memory.read(at, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(&read(&mirror.memory, mirror.skip), b"program");
        let mut mirrors = Mirrors::default();
        mirrors.insert(1, mirror);
        theirs.write(5, b"P").unwrap();
        let mirror = &mirrors.0[&1];
        mirror.memory.write(mirror.skip + 6, b"X").unwrap();
        mirror.memory.write(mirror.skip + STRIDE, b"device!").unwrap();
        mirrors.compare();
        assert_eq!(&read(&theirs, 5), b"PrograX");
        assert_eq!(&read(&theirs, 5 + STRIDE), b"device!");
        let mirror = &mirrors.0[&1];
        assert_eq!(&read(&mirror.memory, mirror.skip), b"PrograX");
        assert_eq!(mirrors.here(address + 9), Some(mirrors.0[&1].here() + 9));
        assert_eq!(mirrors.here(address - 1), None);
        assert_eq!(Mirror::new(remote, 8, 1 << 40).map(drop), Err(Errno::EFAULT));
    }
}
