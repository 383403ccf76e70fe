//! Device memory of a mock: what a failed call leaves allocated.

use gaudi_seam::Errno;
use gaudi_uapi::memory::MemFlags;

use crate::device_memory::DeviceMemory;

#[test]
fn failed_map_frees_the_allocation() {
    let spec = "mock:gaudi2?name=map-fails+fault=mem_map_device:when=1:error=ENOMEM";
    let spec = spec.parse().expect("a spec");
    let io = gaudi_hal::open(&spec).expect("the mock opens");
    let error = DeviceMemory::new(io.clone(), 1, MemFlags::NONE).expect_err("the map fails");
    assert_eq!(error.errno(), Some(Errno::ENOMEM), "{error}");
    let ledger = gaudi_hal::mock_ledger(&spec).expect("the mock");
    assert!(ledger.is_clean(), "{ledger:?}");
    let memory = DeviceMemory::new(io, 1, MemFlags::NONE).expect("the second map works");
    memory.close().expect("nothing holds it");
}
