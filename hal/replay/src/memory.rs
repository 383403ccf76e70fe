//! [`HostMemory`]: where the memory of the recorded program lies in this process.

use std::collections::BTreeMap;

use gaudi_sys::{Memfd, process_memory};
use nix::sys::uio::pwrite;

/// Ranges of the recorded program's memory, by their first address there.
#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    ranges: BTreeMap<u64, Range>,
    /// Host memory with its recorded address, by the device address of its mapping.
    by_va: BTreeMap<u64, (u64, Range)>,
}

#[derive(Debug, Clone, Copy)]
struct Range {
    len: u64,
    at: Place,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// Memory of this process that is mapped on the device.
    Host(u64),
    /// A buffer in the replay's file.
    File(u64),
}

impl HostMemory {
    pub(crate) fn map_host(&mut self, va: u64, recorded: u64, here: u64, len: u64) {
        // A capture may give one device address twice.
        self.unmap(va);
        self.end_files(recorded, len);
        let at = Place::Host(here);
        let range = Range { len, at };
        self.by_va.insert(va, (recorded, range));
        self.ranges.insert(recorded, range);
    }

    pub(crate) fn map_file(&mut self, recorded: u64, offset: u64, len: u64) {
        self.end_files(recorded, len);
        let at = Place::File(offset);
        self.ranges.insert(recorded, Range { len, at });
    }

    /// Removes the buffers whose recorded addresses have another mapping now: munmap(2) need not be
    /// recorded.
    fn end_files(&mut self, recorded: u64, len: u64) {
        let end = recorded.saturating_add(len);
        self.ranges.retain(|&start, range| {
            let is_file = matches!(range.at, Place::File(_));
            !is_file || start >= end || start.saturating_add(range.len) <= recorded
        });
    }

    pub(crate) fn unmap(&mut self, va: u64) {
        if let Some((recorded, _)) = self.by_va.remove(&va) {
            // Only memory that is still mapped may be written: another mapping of the same recorded
            // address can be shorter, or have another place here.
            self.ranges.remove(&recorded);
            if let Some(&(_, range)) = self.by_va.values().find(|(other, _)| *other == recorded) {
                self.ranges.insert(recorded, range);
            }
        }
    }

    /// Writes bytes of the recorded program's memory to their place here. Bytes without a place
    /// here, and memory that this program has unmapped, are left out.
    pub(crate) fn write(&self, file: &Memfd, address: u64, bytes: &[u8]) {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let Some(now) = address.checked_add(done as u64) else {
                return;
            };
            let before = self.ranges.range(..=now).next_back();
            let found = before.filter(|&(start, range)| now - *start < range.len);
            let Some((start, range)) = found else {
                // Go on at the next range.
                match self.ranges.range(now..).next() {
                    Some((next, _)) => done += usize::try_from(next - now).unwrap_or(usize::MAX - done),
                    None => return,
                }
                continue;
            };
            let inside = now - start;
            let len = usize::try_from(range.len - inside).map_or(rest.len(), |left| left.min(rest.len()));
            let part = &rest[..len];
            match range.at {
                Place::Host(here) => {
                    // `KernelIo::mem_map_host` lets the device write to the range.
                    let _ = process_memory::write(here.saturating_add(inside), part);
                }
                Place::File(offset) => {
                    if let Ok(at) = i64::try_from(offset.saturating_add(inside)) {
                        let _ = pwrite(file, part, at);
                    }
                }
            }
            done += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_bytes_reach_their_ranges() {
        let file = Memfd::sparse(c"replay", 1 << 20).unwrap();
        let host = gaudi_sys::RawMapping::anonymous(4096, true).unwrap();
        let here = host.as_ptr().as_ptr().expose_provenance() as u64;
        let mut memory = HostMemory::default();
        memory.map_host(7, 0x1000, here, 4);
        memory.map_file(0x1006, 8192, 100);
        memory.write(&file, 0xffe, b"abcdefghijk");
        let mut seen = [0; 6];
        host.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"cdef\0\0", "bytes outside of the range are left out");
        let buffer = gaudi_sys::RawMapping::of_fd(&file, 8192, 4096).unwrap();
        buffer.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"ijk\0\0\0");
        memory.unmap(7);
        memory.write(&file, 0x1000, b"zzzz");
        host.read(0, &mut seen).unwrap();
        assert_eq!(&seen, b"cdef\0\0", "unmapped");
        memory.write(&file, u64::MAX - 1, b"zzzz");
    }

    /// Memory of this process, and its address.
    fn host() -> (gaudi_sys::RawMapping, u64) {
        let host = gaudi_sys::RawMapping::anonymous(4096, true).unwrap();
        let here = host.as_ptr().as_ptr().expose_provenance() as u64;
        (host, here)
    }

    fn first(host: &gaudi_sys::RawMapping) -> u8 {
        let mut seen = [0];
        host.read(0, &mut seen).unwrap();
        seen[0]
    }

    #[test]
    fn address_mapped_twice_replaces_the_first() {
        let file = Memfd::sparse(c"replay", 1 << 20).unwrap();
        let [(one, first_here), (two, second_here)] = [host(), host()];
        let mut memory = HostMemory::default();
        memory.map_host(7, 0x1000, first_here, 64);
        memory.map_host(7, 0x3000, second_here, 64);
        memory.write(&file, 0x1000, b"x");
        memory.write(&file, 0x3000, b"y");
        assert_eq!(
            (first(&one), first(&two)),
            (0, b'y'),
            "the first mapping has ended"
        );
    }

    #[test]
    fn memory_mapped_twice_keeps_the_other() {
        let file = Memfd::sparse(c"replay", 1 << 20).unwrap();
        let [(one, first_here), (two, second_here)] = [host(), host()];
        let mut memory = HostMemory::default();
        memory.map_host(1, 0x1000, first_here, 64);
        memory.map_host(2, 0x1000, second_here, 8);
        memory.unmap(2);
        memory.write(&file, 0x1000, b"x");
        assert_eq!(
            (first(&one), first(&two)),
            (b'x', 0),
            "the second mapping has ended"
        );
    }
}
