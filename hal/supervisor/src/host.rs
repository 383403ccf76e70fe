//! [`Mirrors`]: host memory of the program, as the model accesses it.
//!
//! The model accesses memory of this process. Each mapping has a copy here, and the content at the
//! last comparison. A comparison passes on what either side changed: the program's changes before
//! the model works, the device's after.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gaudi_sys::{PAGE, RawMapping};
use nix::errno::Errno;
use nix::unistd::{SysconfVar, sysconf};

use crate::remote::Space;

/// Bytes that are compared at a time.
const STRIDE: usize = 1 << 16;
/// Bytes that are passed on together.
const WORD: usize = 8;

/// Host memory of the program that is mapped on the device, by its device address.
#[derive(Debug, Default)]
pub(crate) struct Mirrors(BTreeMap<u64, Mirror>);

/// How many bytes of the program's memory can have a mirror at a time.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    most: u64,
}

impl Budget {
    /// A quarter of the machine's memory: a mirror has two copies, beside the program's.
    pub(crate) fn of_machine() -> Self {
        let pages = sysconf(SysconfVar::_PHYS_PAGES).ok().flatten();
        let pages = pages.and_then(|pages| u64::try_from(pages).ok());
        Self {
            used: AtomicU64::new(0),
            // A system that hides its memory has no limit here.
            most: pages.map_or(u64::MAX, |pages| pages * PAGE / 4),
        }
    }

    fn take(self: &Arc<Self>, len: u64) -> Result<Share, Errno> {
        let grown = |used: u64| used.checked_add(len).filter(|&sum| sum <= self.most);
        let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, grown);
        taken.map_err(|_| Errno::ENOMEM)?;
        Ok(Share(Arc::clone(self), len))
    }
}

/// A mirror's part of a [`Budget`].
#[derive(Debug)]
struct Share(Arc<Budget>, u64);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.used.fetch_sub(self.1, Ordering::AcqRel);
    }
}

/// Host memory of the program, and its copy.
#[derive(Debug)]
pub(crate) struct Mirror {
    space: Arc<Space>,
    address: u64,
    /// The copy starts at this offset of `memory`, so that both have the same place in a page.
    skip: usize,
    memory: RawMapping,
    len: usize,
    /// The content at the last comparison. It takes memory only where it is not zero.
    base: RawMapping,
    /// The program's memory can no longer be reached: unmapped, or the process has ended or
    /// executed another program.
    is_lost: bool,
    _share: Share,
}

impl Mirror {
    /// Copies `len` bytes of the program.
    pub(crate) fn new(
        space: Arc<Space>,
        address: u64,
        len: u64,
        budget: &Arc<Budget>,
    ) -> Result<Self, Errno> {
        let skip = (address % PAGE) as usize;
        let len = usize::try_from(len).map_err(|_| Errno::ENOMEM)?;
        let whole = skip
            .checked_add(len)
            .and_then(|whole| whole.checked_next_multiple_of(PAGE as usize));
        let whole = whole.filter(|_| len > 0).ok_or(Errno::EINVAL)?;
        // Read first: a length without memory behind it allocates nothing.
        space.read_unchecked(address, &mut [0])?;
        let last = address.checked_add(len as u64 - 1).ok_or(Errno::EFAULT)?;
        space.read_unchecked(last, &mut [0])?;
        let share = budget.take(whole as u64)?;
        let memory = RawMapping::anonymous_sparse(whole)?;
        let mut mirror = Self {
            space,
            address,
            skip,
            memory,
            len,
            base: RawMapping::anonymous_sparse(whole)?,
            is_lost: false,
            _share: share,
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
        let most = STRIDE.min(self.len);
        let [mut theirs, mut ours, mut base] = [(); 3].map(|()| vec![0; most]);
        for at in (0..self.len).step_by(STRIDE) {
            let len = STRIDE.min(self.len - at);
            if self.is_lost
                || self
                    .pass_on(at, &mut theirs[..len], &mut ours[..len], &mut base[..len])
                    .is_err()
            {
                self.is_lost = true;
                return;
            }
        }
    }

    /// Passes on the changes of a part. Words that one side did not change are not written to the
    /// other, which may change them at the same time.
    fn pass_on(&self, at: usize, theirs: &mut [u8], ours: &mut [u8], base: &mut [u8]) -> Result<(), Errno> {
        let remote = self.address + at as u64;
        self.space.read_unchecked(remote, theirs)?;
        self.memory.read(self.skip + at, ours)?;
        self.base.read(at, base)?;
        if *theirs != *base {
            // The bytes of another program are not copied.
            self.space.check(remote)?;
        } else if *ours == *base {
            return Ok(());
        }
        for ((base, ours), theirs) in base.iter_mut().zip(ours.iter()).zip(theirs.iter()) {
            *base = if *ours != *base { *ours } else { *theirs };
        }
        changed_words(base, theirs, |from, bytes| {
            self.space.write(remote + from as u64, bytes)
        })?;
        changed_words(base, ours, |from, bytes| {
            self.memory.write(self.skip + at + from, bytes)
        })?;
        self.base.write(at, base)
    }
}

/// Calls `write` with each run of words that differ, and its place.
fn changed_words(
    new: &[u8],
    old: &[u8],
    write: impl Fn(usize, &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut start = None;
    for (nth, (one, other)) in new.chunks(WORD).zip(old.chunks(WORD)).enumerate() {
        let at = nth * WORD;
        match (one == other, start) {
            (false, None) => start = Some(at),
            (true, Some(from)) => {
                write(from, &new[from..at])?;
                start = None;
            }
            _ => {}
        }
    }
    start.map_or(Ok(()), |from| write(from, &new[from..]))
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

    /// The address space of a process that has another mirror. `None` if no mirror has it.
    pub(crate) fn space(&self, process: u32, address: u64) -> Option<Arc<Space>> {
        let mut spaces = self.0.values().map(|mirror| &mirror.space);
        spaces.find(|space| space.is_of(process, address)).cloned()
    }

    /// The address in this process of memory of the program. `None` if it is not mapped on the
    /// device.
    pub(crate) fn here(&self, address: u64) -> Option<u64> {
        self.0.values().find_map(|mirror| {
            let inside = address.checked_sub(mirror.address)?;
            (inside < mirror.len as u64).then(|| mirror.here() + inside)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(most: u64) -> Arc<Budget> {
        Arc::new(Budget {
            used: AtomicU64::new(0),
            most,
        })
    }

    fn own() -> Arc<Space> {
        Arc::new(Space::of(std::process::id()).unwrap())
    }

    fn address_of(memory: &RawMapping) -> u64 {
        memory.as_ptr().as_ptr().expose_provenance() as u64
    }

    #[test]
    fn mirrors_have_a_total_limit() {
        let theirs = RawMapping::anonymous(2 * STRIDE, true).unwrap();
        let budget = budget(2 * STRIDE as u64);
        let mirror = |len| Mirror::new(own(), address_of(&theirs), len, &budget);
        let first = mirror(STRIDE as u64 + 1).unwrap();
        assert_eq!(mirror(STRIDE as u64).map(drop), Err(Errno::ENOMEM));
        drop(first);
        assert!(
            mirror(2 * STRIDE as u64).is_ok(),
            "memory is counted until the unmap"
        );
        assert!(Budget::of_machine().most > 0);
    }

    #[test]
    fn concurrent_change_is_not_lost() {
        let theirs = RawMapping::anonymous(STRIDE, true).unwrap();
        let mirror = Mirror::new(own(), address_of(&theirs), STRIDE as u64, &budget(u64::MAX)).unwrap();
        let mut mirrors = Mirrors::default();
        mirrors.insert(1, mirror);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let writes = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let program = scope.spawn(|| {
                let mut count = 0_u64;
                while !stop.load(Ordering::Acquire) {
                    count += 1;
                    theirs.write(4096, &count.to_ne_bytes()).unwrap();
                    let mut seen = [0; 8];
                    // The comparison runs in between.
                    std::thread::yield_now();
                    theirs.read(4096, &mut seen).unwrap();
                    assert_eq!(u64::from_ne_bytes(seen), count, "the program's last write");
                    writes.store(count, Ordering::Release);
                }
            });
            let mut turn = 0_u64;
            while turn < 300 || writes.load(Ordering::Acquire) < 300 {
                turn += 1;
                // The device writes other words of the same part.
                mirrors.0[&1].memory.write(8192, &turn.to_ne_bytes()).unwrap();
                mirrors.compare();
                if program.is_finished() {
                    break;
                }
            }
            stop.store(true, Ordering::Release);
        });
    }

    #[test]
    fn changes_of_both_sides_are_passed_on() {
        let theirs = RawMapping::anonymous(3 * STRIDE, true).unwrap();
        let address = theirs.as_ptr().as_ptr().expose_provenance() as u64 + 5;
        theirs.write(5, b"program").unwrap();
        let limit = budget(u64::MAX);
        let mirror = Mirror::new(own(), address, 2 * STRIDE as u64, &limit).unwrap();
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
        assert_eq!(
            Mirror::new(own(), 8, 1 << 40, &limit).map(drop),
            Err(Errno::EFAULT)
        );
    }
}
