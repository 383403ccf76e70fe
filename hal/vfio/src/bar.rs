//! A BAR in this process: aligned words are accessed through a mapping, all else through the
//! device's file.

#![expect(
    unsafe_code,
    reason = "a register is a volatile word at an address in a mapping"
)]

use std::fs::File;
use std::ptr::NonNull;
use std::sync::OnceLock;

use gaudi_seam::RawMapping;
use volatile_register::RW;

/// The part of a BAR that may be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    /// Its offset in the BAR.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) len: u64,
}

/// A BAR.
#[derive(Debug)]
pub(crate) struct Bar {
    /// Bytes; 0 if the function has no such BAR.
    pub(crate) size: u64,
    /// Its offset in the device's file.
    pub(crate) offset: u64,
    /// The part that may be mapped.
    pub(crate) area: Option<Area>,
    map: OnceLock<Option<RawMapping>>,
}

impl Bar {
    pub(crate) fn new(size: u64, offset: u64, area: Option<Area>) -> Self {
        Self {
            size,
            offset,
            area,
            map: OnceLock::new(),
        }
    }

    /// Reads an aligned word of 4 or 8 bytes with one access, if it lies in the mapped part.
    /// Returns `false` if it read nothing.
    ///
    /// The function's memory must be on: otherwise the kernel kills the process with SIGBUS.
    pub(crate) fn load(&self, file: &File, at: u64, into: &mut [u8]) -> bool {
        let Some(word) = self.word(file, at, into.len()) else {
            return false;
        };
        match into.len() {
            4 => into.copy_from_slice(&register::<u32>(&word).read().to_ne_bytes()),
            _ => into.copy_from_slice(&register::<u64>(&word).read().to_ne_bytes()),
        }
        true
    }

    /// Writes an aligned word, as [`load`](Self::load) reads one.
    pub(crate) fn store(&self, file: &File, at: u64, from: &[u8]) -> bool {
        let Some(word) = self.word(file, at, from.len()) else {
            return false;
        };
        if let Ok(bytes) = from.try_into() {
            // SAFETY: a write may start DMA, which accesses only memory that is mapped for the
            // device. No Rust reference to such memory exists.
            unsafe { register::<u32>(&word).write(u32::from_ne_bytes(bytes)) };
        } else if let Ok(bytes) = from.try_into() {
            // SAFETY: as above.
            unsafe { register::<u64>(&word).write(u64::from_ne_bytes(bytes)) };
        }
        true
    }

    // Returns the address of an aligned word of 4 or 8 bytes in the mapping. The first call maps
    // the BAR.
    fn word(&self, file: &File, at: u64, len: usize) -> Option<Word<'_>> {
        let area = self.area?;
        if !matches!(len, 4 | 8) || at % len as u64 != 0 {
            return None;
        }
        let inside = at.checked_sub(area.at)?;
        let map = self.map.get_or_init(|| {
            let len = usize::try_from(area.len).ok()?;
            // If the mapping fails, accesses go through the file.
            RawMapping::of_fd(file, self.offset.checked_add(area.at)?, len).ok()
        });
        let at = map.as_ref()?.at(usize::try_from(inside).ok()?, len).ok()?;
        Some(Word { at, _bar: self })
    }
}

// The address of a mapped, aligned word, valid while the BAR lives.
struct Word<'a> {
    at: NonNull<u8>,
    _bar: &'a Bar,
}

fn register<'a, T: Copy>(word: &'a Word<'_>) -> &'a RW<T> {
    // SAFETY: `Bar::word` checked that the word is mapped and aligned for the length of the
    // caller's slice, and `T` has that size. `RW` accesses it with volatile loads and stores.
    unsafe { word.at.cast::<RW<T>>().as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_sys::Memfd;

    fn bar(area: Option<Area>) -> (File, Bar) {
        let memory = Memfd::sparse(c"bar", 0x4000).expect("a file");
        let file = File::from(gaudi_sys::fd::duplicate(&memory).expect("a descriptor"));
        (file, Bar::new(0x2000, 0x1000, area))
    }

    #[test]
    fn words_are_where_the_file_has_them() {
        use std::os::unix::fs::FileExt as _;
        let area = Some(Area {
            at: 0x1000,
            len: 0x1000,
        });
        let (file, bar) = bar(area);
        assert!(bar.store(&file, 0x1008, &7u32.to_le_bytes()));
        assert!(bar.store(&file, 0x1010, &0x0102_0304_0506_0708u64.to_le_bytes()));
        let mut seen = [0; 16];
        file.read_exact_at(&mut seen, 0x2008).expect("in the file");
        assert_eq!(seen, [7, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        let mut word = [0; 8];
        assert!(bar.load(&file, 0x1010, &mut word));
        assert_eq!(word, [8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn partial_words_are_left_alone() {
        let area = Some(Area {
            at: 0x1000,
            len: 0x1000,
        });
        let (file, whole) = bar(area);
        for (at, len) in [
            (0xffc, 4),
            (0x1002, 4),
            (0x1004, 8),
            (0x1000, 2),
            (0x1000, 0),
            (0x1000, 16),
            (0x2000, 4),
            (u64::MAX - 3, 4),
        ] {
            assert!(!whole.load(&file, at, &mut vec![0; len]), "{at:#x}+{len}");
            assert!(!whole.store(&file, at, &vec![0; len]), "{at:#x}+{len}");
        }
        let (file, none) = bar(None);
        assert!(!none.load(&file, 0x1000, &mut [0; 4]), "nothing may be mapped");
    }
}
