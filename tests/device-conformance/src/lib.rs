//! One suite for every implementer of [`DeviceIo`]: what a Gaudi2 is to whoever holds it across PCI, as named cases.
//!
//! - *A case needs nothing but a card as after power-on*: no driver, no firmware's file. It programs the card's own engines by registers, as
//!   a driver would, and looks at what they did in memory that it showed them.
//! - *The same on the model in process and on a function of vfio-pci*: this crate's tests run it on the first, the lab's `card_vfio` on the
//!   second, where every access crosses a kernel, an IOMMU and a socket.
//! - *No case knows where it runs*: what must differ between the two is no case.
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
    /// A sentence, as a function's name.
    pub name: &'static str,
    run: fn(&dyn DeviceIo),
}

/// Calls a macro with the names of all cases, so that each can become a test of its own.
///
/// ```
/// macro_rules! names { ($($case:ident)*) => { [$(stringify!($case)),*] }; }
/// let names = gaudi_device_conformance::for_each_case!(names);
/// assert_eq!(names[0], "it_is_a_gaudi2");
/// ```
#[macro_export]
macro_rules! for_each_case {
    ($what:ident) => {
        $what! {
            it_is_a_gaudi2
            configuration_space_has_an_end
            the_command_register_keeps_its_bits
            it_has_three_bars_and_no_others
            registers_keep_their_words
            an_access_past_a_bar_is_refused
            the_memory_bar_is_the_same_mapped_and_read
            the_sram_is_the_same_mapped_and_read
            memory_that_is_shown_is_read_and_written_by_the_card
            one_transfer_crosses_mappings
            a_range_is_shown_once
            memory_that_was_taken_away_is_out_of_reach
            a_range_is_taken_away_as_a_whole
            other_memory_in_the_same_place_is_seen
            a_vector_signals_its_own_event
            a_vector_signals_what_it_was_last_told
            there_are_no_vectors_past_the_last
            a_reset_brings_registers_back
            the_card_works_after_a_reset
            threads_share_a_card
        }
    };
}

macro_rules! table {
    ($($case:ident)*) => { &[$(Case { name: stringify!($case), run: cases::$case }),*] };
}

/// All cases. One that the list lacks is never used, which the compiler says.
pub const CASES: &[Case] = for_each_case!(table);

/// Runs a case on a card as after power-on.
///
/// # Panics
/// Where the card does otherwise, and where no case has that name.
pub fn run(name: &str, device: &dyn DeviceIo) {
    let case = CASES.iter().find(|case| case.name == name);
    let case = case.unwrap_or_else(|| panic!("no case is named {name}"));
    (case.run)(device);
}
