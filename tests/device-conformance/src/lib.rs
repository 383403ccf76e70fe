//! One suite for every implementation of [`DeviceIo`]: the behaviour of a Gaudi2 across PCI, as
//! named cases.
//!
//! - *A case needs only a card as after power-on*: no driver, no firmware file. It programs the
//!   card's engines by registers, as a driver does, and checks the memory that it mapped for them.
//! - *The same on the model in process and on a vfio-pci function*: this crate's tests run the
//!   suite on the first, the lab's `card_vfio` on the second, where every access crosses a kernel,
//!   an IOMMU and a socket.
//! - *No case knows its backend*: behaviour that differs between the two is not a case.
//!
//! ```
//! use gaudi_device_conformance::{CASES, run};
//! use gaudi_model::pci::ModelDevice;
//!
//! let case = CASES.first().expect("there are cases");
//! run(case.name, &ModelDevice::new(gaudi_model::pci::PciConfig::default())?);
//! # Ok::<(), gaudi_seam::Error>(())
//! ```

mod card;
mod cases;

use gaudi_seam::DeviceIo;

pub use card::{Card, HOST, REGISTERS};

/// A named case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The behaviour, as a function name.
    pub name: &'static str,
    run: fn(&dyn DeviceIo),
}

/// Calls a macro with the names of all cases, so that each can be a test of its own.
///
/// ```
/// macro_rules! names { ($($case:ident)*) => { [$(stringify!($case)),*] }; }
/// let names = gaudi_device_conformance::for_each_case!(names);
/// assert_eq!(names[0], "identity_is_gaudi2");
/// ```
#[macro_export]
macro_rules! for_each_case {
    ($what:ident) => {
        $what! {
            identity_is_gaudi2
            config_access_past_end_is_refused
            command_register_keeps_written_bits
            function_has_three_bars
            registers_keep_written_words
            bar_access_past_end_is_refused
            memory_bar_window_matches_reads
            sram_window_matches_reads
            dma_reads_and_writes_mapped_memory
            transfer_crosses_mappings
            dma_map_refuses_mapped_range
            dma_to_unmapped_memory_is_refused
            dma_unmap_removes_whole_mappings_only
            remapped_range_uses_new_memory
            vector_signals_its_own_event
            vector_signals_its_newest_event
            vector_past_last_is_refused
            reset_restores_registers
            dma_and_interrupts_work_after_reset
            threads_share_a_device
        }
    };
}

macro_rules! table {
    ($($case:ident)*) => { &[$(Case { name: stringify!($case), run: cases::$case }),*] };
}

/// All cases. The compiler reports a case that the list lacks as unused.
pub const CASES: &[Case] = for_each_case!(table);

/// Runs a case on a card as after power-on.
///
/// # Panics
/// The case fails, or no case has that name.
pub fn run(name: &str, device: &dyn DeviceIo) {
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.unwrap_or_else(|| panic!("no case is named {name}"));
    (case.run)(device);
}
