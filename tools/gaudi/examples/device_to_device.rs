//! Bytes travel host → device A → dma-buf → NIC → dma-buf → device B → host: what `gaudi demo` does, in one process.

use std::time::Duration;

use gaudi_device::Device;
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::{Access, Context, MrAddr, QpInit, WorkCompletion};

const LEN: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (a, b) = (Device::open(&"mock:gaudi2".parse()?)?, Device::open(&"mock:gaudi2?index=1".parse()?)?);
    let (memory_a, memory_b) = (a.alloc_exclusive(LEN)?, b.alloc_exclusive(LEN)?);
    let (host_a, host_b) = (a.alloc_host(LEN as usize)?, b.alloc_host(LEN as usize)?);
    host_a.write(0, &[42; LEN as usize])?;
    a.copy(&memory_a, &host_a)?.wait(PATIENCE)?; // host → device A, by LIN_DMA

    let (nic_a, nic_b) = SoftNic::pair(SoftNicConfig::default())?;
    let (pd_a, pd_b) = (Context::open(nic_a)?.alloc_pd()?, Context::open(nic_b)?.alloc_pd()?);
    let (cq_a, cq_b) = (pd_a.context().create_cq(16)?, pd_b.context().create_cq(16)?);
    let (mut qp_a, mut qp_b) = (pd_a.create_qp(&QpInit::new(&cq_a))?, pd_b.create_qp(&QpInit::new(&cq_b))?);
    qp_a.connect(&qp_b.address()?, Access::empty())?;
    qp_b.connect(&qp_a.address()?, Access::REMOTE_WRITE)?;
    let (buf_a, buf_b) = (memory_a.export(..)?, memory_b.export(..)?); // two dma-bufs
    let mr_a = pd_a.reg_dmabuf_mr(&buf_a.whole()?, MrAddr::from(memory_a.address()), Access::empty())?;
    let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr_b = pd_b.reg_dmabuf_mr(&buf_b.whole()?, MrAddr::from(memory_b.address()), write)?;
    let to = mr_b.remote().at(0, LEN)?;
    qp_a.post_send(1).signaled(true).write(&[mr_a.sge(0, LEN as u32)?], to).post()?; // A → B, by RDMA
    let mut done = [WorkCompletion::EMPTY];
    assert!(cq_a.wait(&mut done, PATIENCE)? == 1 && done[0].is_success(), "{done:?}");

    b.copy(&host_b, &memory_b)?.wait(PATIENCE)?; // device B → host, by LIN_DMA
    let mut got = vec![0; LEN as usize];
    host_b.read(0, &mut got)?;
    assert!(got.iter().all(|byte| *byte == 42), "what arrived is what was sent");
    println!("{LEN} bytes went from {} to {} through dma-bufs {} and {}", a.id(), b.id(), buf_a.identity(), buf_b.identity());
    Ok(())
}
