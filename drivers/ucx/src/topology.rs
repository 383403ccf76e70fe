//! The cards as devices of UCX's topology.

#![allow(unsafe_code, reason = "calls UCX's topology")]

use std::ffi::CString;

use crate::abi::SYSTEM_DEVICE_UNKNOWN;
use crate::cards::Card;
use crate::library::ucx;
use crate::status::OK;

/// `ucs_sys_bus_id_t`.
#[repr(C)]
struct BusId {
    domain: u16,
    bus: u8,
    slot: u8,
    function: u8,
}

/// Priority of the name of a card among the names of its device.
const PRIORITY: u32 = 10;

/// UCX's number of a card's PCI function; unknown without an address.
pub(crate) fn system_device(card: &Card) -> u8 {
    match card.system_device.get() {
        Some(number) => *number,
        None => ask(card).map_or(SYSTEM_DEVICE_UNKNOWN, |number| {
            *card.system_device.get_or_init(|| number)
        }),
    }
}

/// Asks UCX, and gives the device its name.
fn ask(card: &Card) -> Option<u8> {
    let bus = card.bus?;
    let address = BusId {
        domain: u16::try_from(bus.domain).ok()?, // UCX has 16 bits for it
        bus: bus.bus,
        slot: bus.device,
        function: bus.function,
    };
    let mut number = SYSTEM_DEVICE_UNKNOWN;
    // SAFETY: valid pointers to a structure of UCX's layout and a byte.
    let found = unsafe { (ucx().find_system_device)((&raw const address).cast(), &raw mut number) };
    if found != OK {
        return None;
    }
    let name = CString::new(card.device.as_str()).unwrap_or_default(); // has no NUL: `gaudiN`
    // SAFETY: a number that UCX gave, and a terminated string that it copies.
    unsafe { (ucx().name_system_device)(number, name.as_ptr(), PRIORITY) };
    Some(number)
}
