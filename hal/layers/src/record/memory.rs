//! [`Mapped`]: the memory that the device can write, and what of it has changed.

use std::collections::BTreeMap;

use gaudi_capture::record::{Memory, Moment};
use gaudi_seam::{AnyAnswer, AnyRequest};
use gaudi_sys::{PAGE, process_memory};

/// The most bytes of changed memory in a record: an event of a capture has at most 16 MiB.
pub(super) const MOST: usize = 12 << 20;
/// Memory is compared and recorded in units of a page.
const UNIT: usize = PAGE as usize;
/// Bytes that are read at a time.
const STRIDE: usize = 64 * UNIT;

/// The memory of this process that a node's device can write, with the content recorded last.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Host memory that is mapped on the device.
    hosts: BTreeMap<u64, Range>,
    /// Mapped buffers. The seam does not report munmap(2): a later mapping at their addresses ends
    /// them.
    buffers: BTreeMap<u64, Range>,
    /// Start of host memory by its device address.
    by_va: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Range {
    shadow: Vec<u8>,
    /// Mappings of the range on the device; 1 for a buffer.
    users: usize,
}

impl Mapped {
    fn add_host(&mut self, address: u64, len: usize) {
        self.end_buffers(address, len);
        Self::add(&mut self.hosts, address, len);
    }

    pub(super) fn add_mmap(&mut self, address: u64, len: usize) {
        self.end_buffers(address, len);
        Self::add(&mut self.buffers, address, len);
    }

    /// Removes the buffers whose addresses have another mapping now.
    fn end_buffers(&mut self, address: u64, len: usize) {
        let end = address.saturating_add(len as u64);
        self.buffers
            .retain(|&start, range| start >= end || start + range.shadow.len() as u64 <= address);
    }

    fn add(ranges: &mut BTreeMap<u64, Range>, address: u64, len: usize) {
        let range = ranges.entry(address).or_insert_with(|| Range {
            shadow: Vec::new(),
            users: 0,
        });
        range.users += 1;
        if range.shadow.len() < len {
            let from = range.shadow.len();
            range.shadow.resize(len, 0);
            // Memory that cannot be read is compared with zeros, and dropped at that time.
            let _ = process_memory::read(address + from as u64, &mut range.shadow[from..]);
        }
    }

    /// Appends what changed before an operation after which a program can expect changes. Returns
    /// the number of changed bytes that did not fit.
    pub(super) fn before(&mut self, request: AnyRequest<'_>, memory: &mut Vec<Memory>) -> u64 {
        match changes_memory(request) {
            true => self.changes(memory),
            false => 0,
        }
    }

    /// Updates the ranges after an operation. Appends what changed, if the operation is one after
    /// which a program can expect changes. Returns the number of changed bytes that did not fit.
    pub(super) fn observe(
        &mut self,
        request: AnyRequest<'_>,
        answer: Option<AnyAnswer<'_>>,
        memory: &mut Vec<Memory>,
    ) -> u64 {
        use AnyRequest as Any;
        let cut = self.before(request, memory);
        match (request, answer) {
            (Any::MemMapHost(host), Some(AnyAnswer::DeviceVa(va))) => {
                if let Ok(len) = usize::try_from(host.size) {
                    self.add_host(host.address.0, len);
                    self.by_va.insert(va.0, host.address.0);
                }
            }
            (Any::MemUnmap(unmap), Some(_)) => {
                if let Some(address) = self.by_va.remove(&unmap.0.0) {
                    if let Some(range) = self.hosts.get_mut(&address) {
                        range.users -= 1;
                        if range.users == 0 {
                            self.hosts.remove(&address);
                        }
                    }
                }
            }
            _ => {}
        }
        cut
    }

    fn changes(&mut self, memory: &mut Vec<Memory>) -> u64 {
        let held = memory.iter().map(|piece| piece.bytes.len()).sum();
        let mut left = MOST.saturating_sub(held);
        let mut cut = 0;
        for ranges in [&mut self.hosts, &mut self.buffers] {
            ranges.retain(|&address, range| {
                compare(address, &mut range.shadow, memory, &mut left, &mut cut).is_ok()
            });
        }
        cut
    }
}

/// Whether a program can expect changes of its memory after the operation.
fn changes_memory(request: AnyRequest<'_>) -> bool {
    use AnyRequest as Any;
    matches!(
        request,
        Any::Submit(_)
            | Any::WaitCs(_)
            | Any::WaitMultiCs(_)
            | Any::WaitInterrupt(_)
            | Any::RegisterTimestamp(_)
            | Any::MemUnmap(_)
    )
}

/// Appends the changed pages of a range, and updates its shadow.
fn compare(
    address: u64,
    shadow: &mut [u8],
    memory: &mut Vec<Memory>,
    left: &mut usize,
    cut: &mut u64,
) -> gaudi_sys::SysResult<()> {
    let mut buffer = vec![0; STRIDE.min(shadow.len())];
    let mut at = address;
    for old in shadow.chunks_mut(STRIDE) {
        let new = &mut buffer[..old.len()];
        process_memory::read(at, new)?;
        if *old != *new {
            for (old, new) in old.chunks_mut(UNIT).zip(new.chunks(UNIT)) {
                if *old != *new && *left >= new.len() {
                    *left -= new.len();
                    old.copy_from_slice(new);
                    append(memory, at, new);
                } else if *old != *new {
                    *cut += new.len() as u64;
                }
                at += new.len() as u64;
            }
        } else {
            at += new.len() as u64;
        }
    }
    Ok(())
}

/// Appends changed bytes. Extends the last piece if they follow it.
fn append(memory: &mut Vec<Memory>, address: u64, bytes: &[u8]) {
    let follows = memory
        .last_mut()
        .filter(|last| last.at == Moment::Exit && last.address + last.whole == address);
    match follows {
        Some(last) => {
            last.bytes.extend_from_slice(bytes);
            last.whole += bytes.len() as u64;
        }
        None => memory.push(Memory {
            address,
            at: Moment::Exit,
            bytes: bytes.to_vec(),
            whole: bytes.len() as u64,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_pages_are_appended_once() {
        let memory = gaudi_sys::RawMapping::anonymous(3 * UNIT, true).unwrap();
        let address = memory.as_ptr().as_ptr().expose_provenance() as u64;
        let mut mapped = Mapped::default();
        mapped.add_mmap(address, 3 * UNIT);
        let mut seen = Vec::new();
        assert_eq!((mapped.changes(&mut seen), seen.len()), (0, 0), "nothing changed");
        memory.write(UNIT + 5, &[7]).unwrap();
        memory.write(2 * UNIT, &[8]).unwrap();
        assert_eq!(mapped.changes(&mut seen), 0);
        assert_eq!(seen.len(), 1, "adjacent pages are one piece");
        let piece = &seen[0];
        assert_eq!(
            (piece.address, piece.bytes.len()),
            (address + UNIT as u64, 2 * UNIT)
        );
        assert_eq!((piece.bytes[5], piece.bytes[UNIT]), (7, 8));
        seen.clear();
        assert_eq!(
            (mapped.changes(&mut seen), seen.len()),
            (0, 0),
            "recorded already"
        );
        mapped.add_host(address + UNIT as u64, UNIT);
        assert!(mapped.buffers.is_empty(), "another mapping has its addresses");
        memory.write(UNIT, &[9]).unwrap();
        assert_eq!(mapped.changes(&mut seen), 0);
        assert_eq!((seen.len(), seen[0].bytes.len()), (1, UNIT));
    }
}
