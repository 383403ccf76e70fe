//! Detects a reset, drops what it lost, and opens the device again: `reset [DEVICE]`.
//!
//! Without an argument, the third submission of a mock ends in a reset.
use std::thread::sleep;
use std::time::{Duration, Instant};

use gaudi::{Buffer, Device, DeviceSpec, ErrorKind, HostMapping, Result};

const LEN: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(100);

/// The device and everything that a reset destroys with it.
struct Node {
    buffer: Buffer,
    host: HostMapping,
    device: Device,
}

impl Node {
    fn open(spec: &DeviceSpec) -> Result<Self> {
        let device = Device::open(spec)?;
        let (buffer, host) = (device.alloc(LEN)?, device.alloc_host(LEN as usize)?);
        Ok(Self { buffer, host, device })
    }

    /// Opens the device once its reset has ended.
    fn reopen(spec: &DeviceSpec) -> Result<Self> {
        let end = Instant::now() + TIMEOUT;
        loop {
            match Self::open(spec) {
                Err(error) if is_reset(error.kind()) && Instant::now() < end => sleep(RETRY),
                opened => return opened,
            }
        }
    }

    fn round_trip(&self, value: u8) -> Result<()> {
        self.host.fill(0, LEN as usize, value)?;
        self.device.copy(&self.buffer, &self.host)?.wait(TIMEOUT)?;
        self.device.copy(&self.host, &self.buffer)?.wait(TIMEOUT)
    }
}

/// `Hung` too: the driver resets the device after a timeout. `Busy` while the old node still
/// closes.
fn is_reset(kind: ErrorKind) -> bool {
    use ErrorKind::{Busy, DeviceLost, Hung, InReset};
    matches!(kind, Busy | DeviceLost | Hung | InReset)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let spec = std::env::args().nth(1);
    let mut spec: DeviceSpec = spec
        .as_deref()
        .unwrap_or("mock:gaudi2+fault=submit:when=3:reset")
        .parse()?;
    let mut node = Node::open(&spec)?;
    for round in 1..=3 {
        while let Err(error) = node.round_trip(round) {
            if !is_reset(error.kind()) {
                return Err(error.into());
            }
            println!("round {round}: {error}; opening the device again");
            // Every object of the device is lost. The reset waits for the last of them to close.
            drop(node);
            spec.layers.clear(); // an injected fault would fire again
            node = Node::reopen(&spec)?;
        }
        println!("round {round}: {} bytes there and back", 2 * LEN);
    }
    Ok(())
}
