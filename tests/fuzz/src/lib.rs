//! Fuzz targets: a function over bytes for each parser of foreign input, and for the chip.
//!
//! - *One body, two runners*: the targets of `fuzz/`, which `cargo xtask fuzz` builds for
//!   libFuzzer, and the property test of this crate, which mutates the same seeds in CI.
//! - *A body panics on a violation*: an input that does not round-trip, memory that changed outside
//!   of a mapping, work that does not end.
//! - *Seeds are text*: `fuzz/seeds/TARGET/*.txt` are the bytes, `*.hex` are hexadecimal bytes with
//!   `#` comments.

mod captures;
mod chip;
mod driver;
mod operations;
mod seeds;
mod texts;
mod wires;

pub use seeds::{Seed, as_text, seeds};

/// The kind of a target's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// UTF-8 text.
    Text,
    /// Bytes; seeds are written in hexadecimal.
    Bytes,
}

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of its file in `fuzz/fuzz_targets`, and of its folder of seeds.
    pub name: &'static str,
    /// What it reads.
    pub input: Input,
    /// Cases of the property test.
    pub cases: u32,
    /// Runs one input.
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($(#[$doc:meta])* $name:ident: $module:ident $input:ident $cases:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Panics
            /// The input shows a defect.
            pub fn $name(bytes: &[u8]) {
                $module::$name(bytes);
            }
        )*

        /// Every target.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            input: Input::$input,
            cases: $cases,
            run: $name,
        },)*];
    };
}

targets! {
    /// Device specs.
    device_spec: texts Text 2000;
    /// Fault plans.
    fault_plan: texts Text 2000;
    /// The mapping table of `GAUDI_MAPPING_TABLE`.
    mapping_table: texts Text 1000;
    /// Trees of sysfs and PCI configuration spaces, and the topology that is read from them.
    sysfs: texts Text 200;
    /// Lines of a trace.
    trace: texts Text 1000;
    /// Capture files: reader, index, decoder, replay.
    gcap: captures Bytes 1000;
    /// One frame of a capture file with a valid checksum.
    gcap_frame: captures Bytes 2000;
    /// Captures as text: reader, writer, decoder.
    capture_text: captures Text 1000;
    /// A program's ioctls on the mock: numbers and arguments.
    codec: driver Bytes 500;
    /// Packets of command buffers, decoded and encoded.
    packets: chip Bytes 2000;
    /// Command buffers that the modelled chip executes.
    model: chip Bytes 500;
    /// Accesses to the registers of the modelled function, with rings in host memory.
    registers: chip Bytes 200;
    /// Messages of vfio-user to the server.
    vfio_user: wires Bytes 100;
    /// Frames of the software NIC's cable.
    nic_wire: wires Bytes 60;
    /// Keys of `gaudi_copy` and offers of dma-bufs.
    keys: wires Bytes 2000;
    /// Sequences of operations of `gaudi_device` under a plan of faults.
    operations: operations Bytes 200;
}
