//! A first program: bytes to the device and back. `first_copy [DEVICE]`
use gaudi::{Deadline, Device};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = match std::env::args().nth(1) {
        Some(spec) => Device::open(&spec.parse()?)?,
        None => Device::open_default()?,
    };
    println!("{}: {}", device.id(), device.info()?.card_name);

    let size = 1 << 20;
    let buffer = device.alloc(size)?;
    let (up, down) = (
        device.alloc_host(size as usize)?,
        device.alloc_host(size as usize)?,
    );
    up.fill(0, size as usize, 0xa5)?;
    up.write(0, b"to the card and back")?;

    device.copy(&buffer, &up)?.wait(Deadline::NEVER)?;
    device.copy(&down, &buffer)?.wait(Deadline::NEVER)?;

    let (mut sent, mut got) = (vec![0; size as usize], vec![0; size as usize]);
    up.read(0, &mut sent)?;
    down.read(0, &mut got)?;
    assert_eq!(got, sent, "what came back is what went up");
    println!("{} bytes copied and compared; {:?}", size, device.stats());
    Ok(())
}
