//! A card of vfio-pci that is taken out of the machine while it is open. It does not come back: the
//! kernel would have to find room for its BARs again. So this is a program of its own, the last of
//! its machine.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use gaudi_lab::vfio::{self, FUNCTIONS};
use gaudi_seam::{DeviceIo as _, ErrorKind};
use gaudi_spec::gaudi2::{DEVICE, VENDOR};
use gaudi_vfio::VfioDevice;

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn removed_function_is_released_while_open() {
    let mut cards = vfio::functions(VENDOR, DEVICE);
    let name = cards.pop().expect("the lab plugs a card into this machine");
    let address = vfio::bind(&name);
    let device = VfioDevice::open(address).expect("the card opens");
    let folder = Path::new(FUNCTIONS).join(&name);
    let remove = folder.join("remove");
    let taker = thread::spawn(move || fs::write(remove, "1"));
    thread::sleep(Duration::from_millis(500));
    assert!(folder.exists(), "the kernel waits for its user");
    let mut identity = [0; 2];
    device.config_read(0, &mut identity).expect("it still answers");
    assert_eq!(identity, VENDOR.to_le_bytes());
    // It disappears when its last file is closed: a file left open would keep the other
    // thread for ever.
    drop(device);
    taker.join().expect("a thread").expect("taken out");
    assert!(!folder.exists(), "it is removed");
    let error = VfioDevice::open(address).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
