//! Writes one line for each access to a BAR, such as `W DCORE0_TPC0_QM+0x80 00000001`.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gaudi_seam::BarOffset;
use gaudi_spec::gaudi2::rows;
use gaudi_spec::gaudi2::{CFG_BAR, CFG_SIZE};

/// Offset of the registers in their BAR.
const REGISTERS: u64 = 0x400_0000;

/// A trace of the accesses of a peer.
#[derive(Debug)]
pub struct Trace<W> {
    out: Mutex<W>,
}

impl<W: Write> Trace<W> {
    /// Traces to `out`.
    pub fn new(out: W) -> Self {
        let out = Mutex::new(out);
        Self { out }
    }

    /// Writes the buffered lines.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn flush(&self) -> std::io::Result<()> {
        self.out().flush()
    }

    fn out(&self) -> MutexGuard<'_, W> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line: `R` for a read, `W` for a write.
    pub fn line(&self, sign: char, bar: u8, at: BarOffset, bytes: &[u8]) {
        let mut out = self.out();
        let register = at.get().checked_sub(REGISTERS);
        let register = register.filter(|&register| bar == CFG_BAR.0 && register < CFG_SIZE);
        let place = match register.and_then(|register| u32::try_from(register).ok()) {
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
