//! Bytes travel host → device A → device B → host; between the devices by RDMA, from dma-buf to dma-buf. On two mocks and a NIC in software,
//! or on cards and a NIC of libibverbs: `cargo run -p gaudi --example device_to_device -- kernel:0 kernel:1 mlx5_0`
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gaudi_device::{Buffer, Device};
use gaudi_remote::{Endpoint, Nic, Options, Policy, Rights};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::Context;

const LEN: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// A node: a device with memory, and a connection to the other node by a NIC.
fn node(
    spec: &str,
    nic: Context,
    peer: UnixStream,
) -> Result<(Endpoint, Buffer, Device), gaudi_remote::Error> {
    let device = Device::open(&spec.parse().expect("a device spec"))?;
    let buffer = device.alloc_exclusive(LEN as u64)?; // pages of its own: they can be exported
    let mut options = Options::default();
    options.policy = Policy::Require; // dma-bufs or an error, no detour
    let endpoint = Endpoint::over(peer, &Nic::new(&nic)?, Some(&device), options)?;
    Ok((endpoint, buffer, device))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let spec_a = words.next().unwrap_or("mock:gaudi2".into());
    let spec_b = words.next().unwrap_or("mock:gaudi2?index=1".into());
    // Two machines have a NIC each, and Endpoint::connect and accept.
    let (nic_a, nic_b) = match words.next() {
        Some(nic) => (
            Context::open(gaudi_ibverbs::open(&nic)?)?,
            Context::open(gaudi_ibverbs::open(&nic)?)?,
        ),
        None => {
            let (nic_a, nic_b) = SoftNic::pair(SoftNicConfig::default())?;
            (Context::open(nic_a)?, Context::open(nic_b)?)
        }
    };
    let (to_b, to_a) = UnixStream::pair()?;
    let b = std::thread::spawn(move || node(&spec_b, nic_b, to_a));
    let (mut end_a, memory_a, a) = node(&spec_a, nic_a, to_b)?;
    let (mut end_b, memory_b, b) = b.join().expect("node B does not panic")?;

    let report = end_b.offer(&memory_b, Rights::PUT)?; // B lets A put into its memory
    let remote = end_a.receive_offer(PATIENCE)?;
    a.write(&memory_a, 0, &[42; LEN])?; // host → device A, by LIN_DMA
    let put = end_a.put(&memory_a, &remote)?; // device A → device B, by RDMA
    let done = end_a.wait(put, PATIENCE)?;
    let mut got = vec![0; LEN];
    b.read(&memory_b, 0, &mut got)?; // device B → host, by LIN_DMA
    assert_eq!(got, [42; LEN], "what arrived is what was sent");
    println!("{} bytes by {} to {report}", done.bytes, done.local);
    Ok(())
}
