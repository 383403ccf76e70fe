//! A PCI function that writes one line for each register access, such as
//! `W DCORE0_TPC0_QM+0x80 00000001`.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gaudi_seam::{BarOffset, BarWindow, DeviceIo, Event, Iova, RawMapping, Result};
use gaudi_spec::gaudi2::rows;
use gaudi_spec::gaudi2::{CFG_BAR, CFG_SIZE};

/// Offset of the registers in their BAR.
const REGISTERS: u64 = 0x400_0000;

/// A wrapper that traces another function.
pub struct Traced<W> {
    inner: Arc<dyn DeviceIo>,
    out: Mutex<W>,
}

impl<W> fmt::Debug for Traced<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Traced({:?})", self.inner)
    }
}

impl<W: Write + Send + 'static> Traced<W> {
    /// Traces `inner` to `out`.
    pub fn new(inner: Arc<dyn DeviceIo>, out: W) -> Self {
        Self {
            inner,
            out: Mutex::new(out),
        }
    }

    /// Writes the buffered lines.
    pub fn flush(&self) -> std::io::Result<()> {
        self.out().flush()
    }

    fn out(&self) -> MutexGuard<'_, W> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_line(&self, sign: char, bar: u8, at: BarOffset, bytes: &[u8]) {
        let mut out = self.out();
        let register = at
            .get()
            .checked_sub(REGISTERS)
            .filter(|&register| register < CFG_SIZE);
        let register = register.and_then(|register| u32::try_from(register).ok());
        let place = match register.filter(|_| bar == CFG_BAR.0) {
            Some(register) => match rows::find(register) {
                Some(place) => place.to_string(),
                None => format!("{register:#x}"),
            },
            None => format!("BAR{bar}+{at}"),
        };
        let value: String = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
        // A trace that cannot be written must not stop the card.
        let _ = match bytes.len() {
            1..=8 => writeln!(out, "{sign} {place} {value}"),
            len => writeln!(out, "{sign} {place} {len} bytes"),
        };
    }
}

impl<W: Write + Send + 'static> DeviceIo for Traced<W> {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn config_read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.inner.config_read(offset, into)
    }

    fn config_write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.inner.config_write(offset, from)
    }

    fn bar_size(&self, bar: u8) -> Result<u64> {
        self.inner.bar_size(bar)
    }

    fn bar_window(&self, bar: u8) -> Result<Option<BarWindow>> {
        self.inner.bar_window(bar)
    }

    fn bar_read(&self, bar: u8, at: BarOffset, into: &mut [u8]) -> Result<()> {
        self.inner.bar_read(bar, at, into)?;
        self.write_line('R', bar, at, into);
        Ok(())
    }

    fn bar_write(&self, bar: u8, at: BarOffset, from: &[u8]) -> Result<()> {
        self.write_line('W', bar, at, from);
        self.inner.bar_write(bar, at, from)
    }

    fn dma_map(&self, iova: Iova, memory: Arc<RawMapping>) -> Result<()> {
        self.inner.dma_map(iova, memory)
    }

    fn dma_unmap(&self, iova: Iova, len: u64) -> Result<u64> {
        self.inner.dma_unmap(iova, len)
    }

    fn interrupts(&self) -> u16 {
        self.inner.interrupts()
    }

    fn set_interrupt(&self, vector: u16, event: Option<Event>) -> Result<()> {
        self.inner.set_interrupt(vector, event)
    }

    fn reset(&self) -> Result<()> {
        self.inner.reset()
    }
}
