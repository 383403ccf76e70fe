//! The guest's first card, loaded and open.

use std::time::{Duration, Instant};

use gaudi_device::Device;
use gaudi_lab::card;
use gaudi_seam::DeviceSpec;

/// Seconds after which the driver gives a submission up; the usual 30 only cost time.
pub(crate) const TIMEOUT: &str = "timeout_locked=5";

pub(crate) fn spec() -> DeviceSpec {
    "kernel:0".parse().expect("a spec")
}

/// Loads the driver where it is not, and opens the card. The driver resets the chip after each close and says "busy" until that is done.
pub(crate) fn open() -> Device {
    card::load(&[TIMEOUT]);
    let begin = Instant::now();
    loop {
        match Device::open(&spec()) {
            Ok(device) => return device,
            Err(error) => assert!(
                begin.elapsed() < Duration::from_secs(120),
                "the card opens: {error}"
            ),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
