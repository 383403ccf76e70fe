//! Bytes travel host → device A → dma-buf → NIC → dma-buf → device B → host: what `gaudi demo` does, in one process.
use gaudi_device::{Deadline, Device};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::{Access, Context, MrAddr, QpInit, WorkCompletion};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const LEN: usize = 1 << 20;
    let (nic_a, nic_b) = SoftNic::pair(SoftNicConfig::default())?;
    let a = Device::open(&"mock:gaudi2".parse()?)?;
    let memory_a = a.alloc_exclusive(LEN as u64)?;
    let host_a = a.alloc_host(LEN)?;
    host_a.fill(0, LEN, 42)?;
    a.copy(&memory_a, &host_a)?.wait(Deadline::NEVER)?; // host → device A, by LIN_DMA
    let buf_a = memory_a.export(..)?.whole()?; // the dma-buf of its memory
    let pd_a = Context::open(nic_a)?.alloc_pd()?;
    let mr_a = pd_a.reg_dmabuf_mr(&buf_a, MrAddr::from(memory_a.address()), Access::empty())?;
    let cq_a = pd_a.context().create_cq(16)?;
    let mut qp_a = pd_a.create_qp(&QpInit::new(&cq_a))?;

    let b = Device::open(&"mock:gaudi2?index=1".parse()?)?;
    let memory_b = b.alloc_exclusive(LEN as u64)?;
    let buf_b = memory_b.export(..)?.whole()?;
    let pd_b = Context::open(nic_b)?.alloc_pd()?;
    let open_to_peer = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr_b = pd_b.reg_dmabuf_mr(&buf_b, MrAddr::from(memory_b.address()), open_to_peer)?;
    let mut qp_b = pd_b.create_qp(&QpInit::new(&pd_b.context().create_cq(16)?))?;
    qp_b.connect(&qp_a.address()?, Access::REMOTE_WRITE)?;
    qp_a.connect(&qp_b.address()?, Access::empty())?;

    let (from, to) = (mr_a.sge(0, LEN as u32)?, mr_b.remote().at(0, LEN as u64)?);
    qp_a.post_send(1).signaled(true).write(&[from], to).post()?; // device A → device B, by RDMA
    let mut done = [WorkCompletion::EMPTY];
    cq_a.wait(&mut done, std::time::Duration::from_secs(10))?;
    let host_b = b.alloc_host(LEN)?;
    b.copy(&host_b, &memory_b)?.wait(Deadline::NEVER)?; // device B → host, by LIN_DMA
    let mut got = vec![0; LEN];
    host_b.read(0, &mut got)?;
    assert!(
        done[0].is_success() && got == [42; LEN],
        "what arrived is what was sent: {done:?}"
    );
    println!("{LEN} bytes went from {buf_a:?} to {buf_b:?}");
    Ok(())
}
