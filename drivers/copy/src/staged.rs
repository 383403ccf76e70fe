//! Copies that no engine can do alone: between two cards, and with memory that the driver cannot
//! pin. Bytes pass through two buffers of host memory, one filled while the other is emptied.

use gaudi_device::{Completion as Submitted, Deadline, Error, HostBuffer, Location, Result};

use crate::kind::MemoryType;
use crate::memory::{Backing, Memory};

/// Bytes of each buffer.
const BYTES: usize = 1 << 20;

const OP: &str = "gaudi_cpy staged copy";

/// The buffers, allocated by the first staged copy.
#[derive(Default)]
pub(crate) struct Stage {
    buffers: Option<[HostBuffer; 2]>,
}

/// A part of memory.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) offset: u64,
}

impl Stage {
    /// Copies `len` bytes, and waits for them.
    ///
    /// # Errors
    /// `Unsupported`: both ends are host memory. The error of a copy.
    pub(crate) fn copy(&mut self, dst: Part<'_>, src: Part<'_>, len: u64) -> Result<()> {
        if dst.memory.kind() == MemoryType::Host && src.memory.kind() == MemoryType::Host {
            return Err(host_to_host());
        }
        let buffers = match &mut self.buffers {
            Some(buffers) => buffers,
            none => none.insert([HostBuffer::new(BYTES)?, HostBuffer::new(BYTES)?]),
        };
        let mut stores: [Option<Submitted>; 2] = [None, None];
        let (mut at, mut index) = (0, 0);
        while at < len {
            let count = (len - at).min(BYTES as u64);
            if let Some(store) = stores[index].take() {
                store.wait(Deadline::NEVER)?;
            }
            let moved = |part: Part<'_>| part.offset + at;
            fetch(src.memory, moved(src), &buffers[index], count)?;
            stores[index] = store(dst.memory, moved(dst), &buffers[index], count)?;
            at += count;
            index = 1 - index;
        }
        stores
            .into_iter()
            .flatten()
            .try_for_each(|store| store.wait(Deadline::NEVER))
    }
}

/// The error of a copy between two ranges of host memory.
pub(crate) fn host_to_host() -> Error {
    Error::unsupported(
        "gaudi_cpy",
        "host memory to host memory is not a copy for the engines",
    )
    .helped_by("copy with the processor")
}

/// Copies a part of memory into a buffer.
fn fetch(memory: &Memory, offset: u64, buffer: &HostBuffer, len: u64) -> Result<()> {
    let shared = &*memory.shared;
    match shared.location() {
        Some(location) => {
            let stage = shared.card.device()?.map(buffer)?;
            match location.in_host() {
                Some((mapping, start)) => stage.copy_on_cpu(0, mapping, start + offset, len as usize),
                None => {
                    let from: Location = location.part(offset, len);
                    shared
                        .card
                        .device()?
                        .copy(stage.at(..len)?, from)?
                        .wait(Deadline::NEVER)
                }
            }
        }
        None => match &shared.backing {
            Some(Backing::Dmabuf { cpu, .. }) => {
                let mut bytes = vec![0; len as usize];
                let access = cpu.reading()?;
                let read = access.read(offset as usize, &mut bytes);
                read.map_err(|errno| Error::from_errno(OP, errno))?;
                access.end()?;
                buffer.write(0, &bytes)
            }
            _ => Err(freed()),
        },
    }
}

/// Starts to copy a buffer into a part of memory. `None` if it is copied already.
fn store(memory: &Memory, offset: u64, buffer: &HostBuffer, len: u64) -> Result<Option<Submitted>> {
    let shared = &*memory.shared;
    match shared.location() {
        Some(location) => {
            let stage = shared.card.device()?.map(buffer)?;
            match location.in_host() {
                Some((mapping, start)) => {
                    mapping.copy_on_cpu(start + offset, &stage, 0, len as usize)?;
                    Ok(None)
                }
                None => {
                    let to: Location = location.part(offset, len);
                    shared.card.device()?.copy(to, stage.at(..len)?).map(Some)
                }
            }
        }
        None => match &shared.backing {
            Some(Backing::Dmabuf { cpu, .. }) => {
                let mut bytes = vec![0; len as usize];
                buffer.read(0, &mut bytes)?;
                let access = cpu.writing()?;
                let written = access.write(offset as usize, &bytes);
                written.map_err(|errno| Error::from_errno(OP, errno))?;
                access.end()?;
                Ok(None)
            }
            _ => Err(freed()),
        },
    }
}

#[cold]
fn freed() -> Error {
    Error::new(gaudi_device::ErrorKind::NotFound, OP).because("the memory was freed")
}
