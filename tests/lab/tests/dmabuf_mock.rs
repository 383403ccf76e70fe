//! The mock's memory as real dma-bufs: what engines and processes see of each other, and what holds
//! what.

mod common;
#[path = "../../../dmabuf/tests/device_memory/mod.rs"]
mod device_memory;

use common::{LONG, Other, alone, await_notice, counted, notify, read, refused, udmabuf, word, write};
use device_memory::DeviceMemory;
use gaudi_device::{Deadline, Device};
use gaudi_dmabuf::{ErrorKind, Exporter, receive, send};
use gaudi_seam::{DeviceSpec, Errno};
use gaudi_sys::PAGE;
use gaudi_uapi::memory::MemFlags;

const MIB: u64 = 1 << 20;
/// The device's own page: nothing smaller is allocated.
const DEVICE_PAGE: u64 = 768 * MIB;

fn spec(name: &str) -> DeviceSpec {
    format!("mock:gaudi2?name={name}&dram=3GiB")
        .parse()
        .expect("a spec")
}

fn memory(name: &str, pages: u64) -> DeviceMemory {
    let io = gaudi_hal::open(&spec(name)).expect("a mock");
    DeviceMemory::new(io, pages * DEVICE_PAGE, MemFlags::NONE).expect("memory")
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn mock_export_is_a_real_dma_buf() {
    let _alone = alone();
    let memory = memory("real", 1);
    let window = memory.window(5 * PAGE, 2 * PAGE).expect("an export");
    assert_eq!(
        (window.dmabuf().exporter(), window.dmabuf().size()),
        (&Exporter::Udmabuf, 2 * PAGE)
    );
    assert!(
        common::listed(window.dmabuf().identity().file.inode).is_some(),
        "the kernel knows it"
    );
    drop(window);
    memory.close().expect("nothing refers to it");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn another_process_sees_what_the_engine_wrote() {
    let _alone = alone();
    let other = Other::new(|socket| {
        let window = receive(socket, LONG).expect("it comes");
        let real = window.dmabuf().exporter() == &Exporter::Udmabuf;
        notify(socket);
        // The engine writes when the mapping is there already.
        let cpu = window.attach_cpu("reader").expect("a CPU view");
        let mut seen = [0; 20];
        let heard = await_notice(socket);
        cpu.reading()
            .expect("access begins")
            .read(3000, &mut seen)
            .expect("inside");
        real && heard && &seen == b"written by an engine"
    });
    let device = Device::open(&spec("engine-writes")).expect("a mock");
    let buffer = device.alloc_exclusive(MIB).expect("memory");
    let dmabuf = buffer.export(..).expect("an export");
    send(&other.socket, &dmabuf.window(4096, 8192).expect("inside"), LONG).expect("it goes");
    assert!(await_notice(&other.socket), "the other has it");
    let host = device.alloc_host(4096).expect("host memory");
    host.write(0, b"written by an engine").expect("inside");
    let done = device.copy(
        buffer.at(4096 + 3000..4096 + 3020).expect("inside"),
        host.at(0..20).expect("inside"),
    );
    done.and_then(|done| done.wait(Deadline::NEVER))
        .expect("the copy is done");
    notify(&other.socket);
    other.agrees();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn an_engine_reads_what_another_process_wrote() {
    let _alone = alone();
    let other = Other::new(|socket| {
        let window = receive(socket, LONG).expect("it comes");
        write(&window, 11, b"written by a process");
        true
    });
    let device = Device::open(&spec("engine-reads")).expect("a mock");
    let buffer = device.alloc_exclusive(MIB).expect("memory");
    let dmabuf = buffer.export(..).expect("an export");
    send(&other.socket, &dmabuf.whole().expect("a window"), LONG).expect("it goes");
    other.agrees();
    let host = device.alloc_host(4096).expect("host memory");
    let done = device.copy(
        host.at(0..20).expect("inside"),
        buffer.at(11..31).expect("inside"),
    );
    done.and_then(|done| done.wait(Deadline::NEVER))
        .expect("the copy is done");
    let mut seen = [0; 20];
    host.read(0, &mut seen).expect("inside");
    assert_eq!(&seen, b"written by a process");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn memory_held_by_process_stays_allocated() {
    let _alone = alone();
    let other = Other::new(|socket| {
        let _window = receive(socket, LONG).expect("it comes");
        notify(socket);
        await_notice(socket)
    });
    let memory = memory("held-elsewhere", 1);
    let window = memory.window(0, PAGE).expect("an export");
    send(&other.socket, &window, LONG).expect("it goes");
    assert!(await_notice(&other.socket), "the other has it");
    drop(window);
    let (memory, error) = memory
        .close()
        .expect_err("the other process holds on")
        .into_parts();
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::InUse, Some(Errno::EINVAL)),
        "{error}"
    );
    assert!(
        error.to_string().contains(&format!("process {}", other.pid)),
        "{error}"
    );
    notify(&other.socket);
    other.agrees();
    memory.close().expect("nothing refers to it");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn memory_under_region_stays_allocated() {
    let _alone = alone();
    let memory = memory("held-here", 1);
    let window = memory.window(0, PAGE).expect("an export");
    let region = window
        .attach_as(gaudi_dmabuf::Hold::Region, "nic0 region 7")
        .expect("attached");
    drop(window);
    let (memory, error) = memory.close().expect_err("a region stands on it").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("nic0 region 7"), "{error}");
    drop(region);
    memory
        .close()
        .expect("region, descriptor, mapping, allocation: in this order");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_mapping_alone_holds_the_memory() {
    let _alone = alone();
    let memory = memory("mapped", 1);
    let cpu = memory
        .window(0, PAGE)
        .and_then(|window| window.attach_cpu("view"))
        .expect("a CPU view");
    let (memory, error) = memory.close().expect_err("a view is open").into_parts();
    assert!(error.to_string().contains("view"), "{error}");
    drop(cpu);
    memory.close().expect("nothing refers to it");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn covered_windows_share_one_export() {
    let _alone = alone();
    let memory = memory("cached", 1);
    let large = memory.window(PAGE, 8 * PAGE).expect("an export");
    let inner = memory.window(2 * PAGE + 5, 100).expect("a window of it");
    let outer = memory.window(0, 2 * PAGE).expect("another export");
    assert_eq!(inner.dmabuf().identity(), large.dmabuf().identity());
    assert_eq!(inner.offset(), PAGE + 5);
    assert_ne!(outer.dmabuf().identity(), large.dmabuf().identity());
    drop((large, inner));
    let again = memory.window(PAGE, PAGE).expect("a window");
    assert_eq!(
        again.dmabuf().identity(),
        outer.dmabuf().identity(),
        "a closed export is not reused"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn window_over_scattered_pages_is_one_buffer() {
    let _alone = alone();
    let io = gaudi_hal::open(&spec("apart")).expect("a mock");
    let take = |pages: u64| DeviceMemory::new(io.clone(), pages * DEVICE_PAGE, MemFlags::NONE);
    let first = take(1).expect("the first page");
    let second = take(1).expect("the second page");
    first.close().expect("the first goes");
    let apart = take(2).expect("the first and the third page");
    let window = apart.window(DEVICE_PAGE - PAGE, 2 * PAGE).expect("an export");
    assert_eq!(
        window.dmabuf().exporter(),
        &Exporter::Udmabuf,
        "a stand-in could not"
    );
    write(&window, PAGE as usize - 2, b"edge");
    assert_eq!(read(&window, PAGE as usize - 2, 4), b"edge");
    let neighbour = second.window(0, PAGE).expect("an export");
    assert_eq!(
        read(&neighbour, 0, 4),
        [0; 4],
        "the page between them is another's"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn export_above_limit_is_a_stand_in() {
    let _alone = alone();
    let memory = memory("large", 1);
    let window = memory.window(0, 64 * MIB + PAGE).expect("an export");
    assert_eq!(window.dmabuf().exporter(), &Exporter::StandIn);
    let small = memory.window(700 * MIB, MIB).expect("an export");
    assert_eq!(small.dmabuf().exporter(), &Exporter::Udmabuf);
    drop((window, small));
    memory.close().expect("nothing refers to it");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn export_keeps_device_busy() {
    let _alone = alone();
    let memory = memory("busy", 1);
    let window = memory.window(0, PAGE).expect("an export");
    drop(memory);
    refused(
        gaudi_hal::open(&spec("busy")).map(drop),
        ErrorKind::Busy,
        "saw an exported dma-buf",
    );
    drop(window);
    gaudi_hal::open(&spec("busy")).map(drop).expect("it is free");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn import_without_support_is_reported() {
    let _alone = alone();
    let io = gaudi_hal::open(&spec("mainline")).expect("a mock");
    let window = udmabuf()
        .export(&counted(1), 0, PAGE)
        .and_then(|b| b.whole())
        .expect("a window");
    refused(window.import(io), ErrorKind::Unsupported, "not in mainline");
    assert!(
        window.dmabuf().attachments().is_empty(),
        "a refused device is not attached"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn import_is_attached_until_closed() {
    let _alone = alone();
    let io = gaudi_hal::open(&"mock:gaudi2?name=imports&import=1".parse().expect("a spec")).expect("a mock");
    let buffer = udmabuf().export(&counted(4), 0, 4 * PAGE).expect("a udmabuf");
    let import = buffer
        .window(PAGE, PAGE)
        .and_then(|window| window.import(io))
        .expect("imported");
    assert_eq!(import.address().0 % PAGE, 0);
    assert_eq!(buffer.attachments(), ["device mock0?name=imports"]);
    let (buffer, error) = buffer.close().expect_err("the device reaches it").into_parts();
    assert!(error.to_string().contains("device mock0?name=imports"), "{error}");
    import.close().expect("unmapped");
    assert!(buffer.attachments().is_empty());
    assert_eq!(word(&buffer.whole().expect("a window"), 8), 8);
    buffer.close().expect("nothing refers to it");
}
