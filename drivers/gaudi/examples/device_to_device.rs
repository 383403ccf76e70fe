//! Device A to device B by RDMA, from dma-buf to dma-buf: `device_to_device [DEVICE DEVICE [NIC]]`.
use std::os::unix::net::UnixStream;

use gaudi::remote::{Deadline, Endpoint, EndpointOptions, Nic, Rights};
use gaudi::{Buffer, Device, verbs};

const LEN: usize = 1 << 20;
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn node(spec: &str, nic: &verbs::Context, peer: UnixStream) -> Result<(Endpoint, Buffer, Device)> {
    let device = Device::open(&spec.parse()?)?;
    let buffer = device.alloc_exclusive(LEN as u64)?; // whole pages: a dma-buf has no less
    let endpoint = Endpoint::over(peer, &Nic::new(nic)?, Some(&device), EndpointOptions::default())?;
    Ok((endpoint, buffer, device))
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let spec_a = words.next().unwrap_or("mock:gaudi2".into());
    let spec_b = words.next().unwrap_or("mock:gaudi2?index=1".into());
    let (nic_a, nic_b) = match words.next() {
        Some(nic) => (verbs::open(&nic)?, verbs::open(&nic)?),
        None => verbs::software_pair()?,
    };
    let (to_b, to_a) = UnixStream::pair()?; // two machines: Endpoint::connect and accept
    let b = std::thread::spawn(move || node(&spec_b, &nic_b, to_a));
    let (mut end_a, memory_a, a) = node(&spec_a, &nic_a, to_b)?;
    let (mut end_b, memory_b, b) = b.join().expect("node B panicked")?;

    let report = end_b.offer(&memory_b, Rights::PUT)?; // A may write to this memory of B
    let remote = end_a.receive_offer(Deadline::NEVER)?;
    a.write(&memory_a, 0, &[42; LEN])?; // host to device A
    let put = end_a.put(&memory_a, &remote)?; // device A to device B
    let done = end_a.wait(put, Deadline::NEVER)?;
    let mut got = vec![0; LEN];
    b.read(&memory_b, 0, &mut got)?; // device B to host
    assert!(got == [42; LEN]);
    println!("{} bytes by {} to {report}", done.bytes, done.local);
    Ok(())
}
