//! A service that stores values by name in device memory. Its callers see a value whole, or an
//! error.

use std::collections::BTreeMap;
use std::time::Duration;

use gaudi_device::{Buffer, Device, HostMapping, Result};

/// The most bytes of a value.
pub(crate) const LARGEST: usize = 4000;
/// The longest time of a copy.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The order in which a value is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replace {
    /// In the value's own buffer. The tutorial finds what is wrong with it.
    InPlace,
    /// In another buffer, which takes the value's place once it is written.
    Anew,
}

/// A value in device memory.
struct Entry {
    buffer: Buffer,
    len: usize,
}

/// Values by name.
pub(crate) struct Store<'a> {
    device: &'a Device,
    /// The memory through which every value is copied.
    stage: HostMapping,
    entries: BTreeMap<u8, Entry>,
    /// Buffers of removed values.
    free: Vec<Buffer>,
    replace: Replace,
}

impl<'a> Store<'a> {
    /// Makes a store without values.
    pub(crate) fn new(device: &'a Device, replace: Replace) -> Result<Self> {
        Ok(Self {
            device,
            stage: device.alloc_host(LARGEST)?,
            entries: BTreeMap::new(),
            free: Vec::new(),
            replace,
        })
    }

    /// Stores a value. If it fails, the name keeps the value that it had.
    pub(crate) fn put(&mut self, name: u8, value: &[u8]) -> Result<()> {
        self.stage.write(0, value)?;
        match self.replace {
            Replace::InPlace => self.put_in_place(name, value.len()),
            Replace::Anew => self.put_anew(name, value.len()),
        }
    }

    fn put_in_place(&mut self, name: u8, len: usize) -> Result<()> {
        if let Some(entry) = self.entries.get_mut(&name) {
            upload(self.device, &entry.buffer, &self.stage, len)?;
            entry.len = len;
            return Ok(());
        }
        self.put_anew(name, len)
    }

    fn put_anew(&mut self, name: u8, len: usize) -> Result<()> {
        let buffer = self.take()?;
        if let Err(error) = upload(self.device, &buffer, &self.stage, len) {
            // The copy may still run, so the buffer is not reused. Its drop is safe.
            drop(buffer);
            return Err(error);
        }
        if let Some(old) = self.entries.insert(name, Entry { buffer, len }) {
            self.free.push(old.buffer);
        }
        Ok(())
    }

    /// Returns a value; `None` if the name has none.
    pub(crate) fn get(&self, name: u8) -> Result<Option<Vec<u8>>> {
        let Some(entry) = self.entries.get(&name) else {
            return Ok(None);
        };
        let len = entry.len as u64;
        let copy = self.device.copy(self.stage.at(..len)?, entry.buffer.at(..len)?)?;
        copy.wait(TIMEOUT)?;
        let mut value = vec![0; entry.len];
        self.stage.read(0, &mut value)?;
        Ok(Some(value))
    }

    /// Removes a value, and keeps its buffer for the next one.
    pub(crate) fn remove(&mut self, name: u8) {
        if let Some(entry) = self.entries.remove(&name) {
            self.free.push(entry.buffer);
        }
    }

    fn take(&mut self) -> Result<Buffer> {
        match self.free.pop() {
            Some(buffer) => Ok(buffer),
            None => self.device.alloc(LARGEST as u64),
        }
    }
}

fn upload(device: &Device, buffer: &Buffer, stage: &HostMapping, len: usize) -> Result<()> {
    let len = len as u64;
    let copy = device.copy(buffer.at(..len)?, stage.at(..len)?)?;
    copy.wait(TIMEOUT)
}
