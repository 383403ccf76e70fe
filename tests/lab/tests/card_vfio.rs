//! A modelled card bound to the guest's vfio-pci: the suite of `DeviceIo`, behind an IOMMU; and
//! what only a real function can do to its user. The driver of the kernel is not loaded here.

#![expect(unsafe_code, reason = "fork(2) is what one test is about")]

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gaudi_device_conformance::{Card, HOST, REGISTERS, for_each_case, run};
use gaudi_lab::is_loaded;
use gaudi_lab::vfio;
use gaudi_seam::{BarOffset, DeviceIo, DeviceSpec, Errno, ErrorKind, Event, Iova, RawMapping};
use gaudi_spec::gaudi2::{CFG_BAR, DEVICE, SRAM_BASE, VENDOR};
use gaudi_sys::poll;
use gaudi_vfio::VfioDevice;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Uid, fork, seteuid};

/// `PSOC_GLOBAL_CONF_SCRATCHPAD_12`, which no firmware reads.
const SCRATCH: BarOffset = BarOffset(REGISTERS + 0x4c4_b130);
const COMMAND: u64 = 4;

/// A card has one user at a time.
fn alone() -> MutexGuard<'static, ()> {
    static CARD: Mutex<()> = Mutex::new(());
    CARD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn address() -> String {
    let mut cards = vfio::functions(VENDOR, DEVICE);
    cards.pop().expect("the lab plugs a card into this machine")
}

fn open() -> VfioDevice {
    let address = vfio::bind(&address());
    VfioDevice::open(address).unwrap_or_else(|error| panic!("the card opens: {error:?}"))
}

macro_rules! tests {
    ($($case:ident)*) => {
        $(#[test]
        #[ignore = "runs in a guest: cargo xtask lab test"]
        fn $case() {
            let _alone = alone();
            run(stringify!($case), &open());
        })*
    };
}
for_each_case!(tests);

fn scratch(device: &VfioDevice) -> gaudi_seam::Result<u32> {
    let mut word = [0; 4];
    device.bar_read(CFG_BAR.0, SCRATCH, &mut word)?;
    Ok(u32::from_le_bytes(word))
}

fn set_scratch(device: &VfioDevice, value: u32) -> gaudi_seam::Result<()> {
    device.bar_write(CFG_BAR.0, SCRATCH, &value.to_le_bytes())
}

fn page() -> Arc<RawMapping> {
    Arc::new(RawMapping::anonymous(4096, false).expect("memory"))
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn vfio_spec_opens_for_one_user() {
    let _alone = alone();
    let address = address();
    vfio::bind(&address);
    let spec: DeviceSpec = format!("vfio:{address}").parse().expect("a spec");
    let device = gaudi_vfio::open(&spec).expect("it opens");
    assert_eq!(device.name(), format!("{address} (vfio-pci)"));
    let second = gaudi_vfio::open(&spec).expect_err("it is open");
    assert_eq!(
        (second.kind(), second.errno()),
        (ErrorKind::Busy, Some(Errno::EBUSY))
    );
    assert!(
        second.help().is_some_and(|help| help.contains("fuser")),
        "{second:?}"
    );
    drop(device);
    drop(gaudi_vfio::open(&spec).expect("it is free again"));
    assert!(
        !is_loaded("habanalabs"),
        "no driver of the kernel had a part in this"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn missing_vfio_feature_has_a_next_step() {
    let refused = |address: &str| {
        let spec: DeviceSpec = format!("vfio:{address}").parse().expect("a spec");
        gaudi_vfio::open(&spec).expect_err("it does not open")
    };
    // QEMU's NIC, which the kernel drives; its host bridge, which has no driver; a missing
    // function.
    let nic = vfio::functions(0x1af4, 0x1041)
        .pop()
        .expect("every guest has a NIC");
    let error = refused(&nic);
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Busy, Some(Errno::EBUSY))
    );
    assert!(error.to_string().contains("virtio-pci"), "{error}");
    let bridge = vfio::functions(0x8086, 0x29c0)
        .pop()
        .expect("q35 has a host bridge");
    let error = refused(&bridge);
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::NotFound, Some(Errno::ENODEV))
    );
    assert!(
        error.help().is_some_and(|help| help.contains("driver_override")),
        "{error:?}"
    );
    let error = refused("0000:1f:1f.7");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::NotFound, Some(Errno::ENOENT))
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn close_resets_and_releases_the_function() {
    let _alone = alone();
    let device = open();
    set_scratch(&device, 7).expect("in the BAR");
    let memory = page();
    device.dma_map(Iova(HOST), memory.clone()).expect("free");
    device
        .set_interrupt(3, Some(Event::new().expect("an event")))
        .expect("a vector");
    drop(device);
    assert!(Arc::try_unwrap(memory).is_ok(), "the memory has no other owner");
    let device = open();
    assert_eq!(scratch(&device).expect("in the BAR"), 0, "as after power-on");
    device.dma_map(Iova(HOST), page()).expect("free again");
}

// Where a capability of the configuration space is.
fn capability(device: &VfioDevice, wanted: u8) -> u64 {
    let mut entry = [0; 2];
    device.config_read(0x34, &mut entry).expect("in the space");
    let mut at = u64::from(entry[0]);
    while at != 0 {
        device.config_read(at, &mut entry).expect("in the space");
        if entry[0] == wanted {
            return at;
        }
        at = u64::from(entry[1]);
    }
    panic!("there is a capability {wanted:#x}")
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn dead_bars_return_an_error() {
    const ON: u16 = 0b110;
    const OFF: u16 = 0b100;
    let _alone = alone();
    let device = open();
    let command = |bits: u16| device.config_write(COMMAND, &bits.to_le_bytes()).expect("asked");
    let power = capability(&device, 0x01) + 4;
    let state = |bits: u16| device.config_write(power, &bits.to_le_bytes()).expect("asked");
    set_scratch(&device, 7).expect("in the BAR");
    let is_off = |why: &str| {
        for error in [scratch(&device).err(), set_scratch(&device, 8).err()] {
            let error = error.unwrap_or_else(|| panic!("{why}: it does not answer"));
            assert_eq!(
                (error.kind(), error.errno()),
                (ErrorKind::Io, Some(Errno::EIO)),
                "{why}"
            );
            assert!(
                error.help().is_some_and(|help| help.contains("D3hot")),
                "{error:?}"
            );
        }
    };
    command(OFF);
    is_off("memory off");
    command(ON);
    assert_eq!(scratch(&device).expect("on again"), 7);
    state(3);
    is_off("asleep");
    state(0);
    assert_eq!(scratch(&device).expect("awake"), 7);
    // A read during the switch returns a word or that error; a signal would end this
    // program.
    let over = AtomicBool::new(false);
    let (words, errors) = thread::scope(|scope| {
        let readers = [0, 1].map(|_| {
            scope.spawn(|| {
                let (mut words, mut errors) = (0, 0);
                while !over.load(Ordering::Relaxed) {
                    match scratch(&device) {
                        Ok(word) => {
                            assert_eq!(word, 7);
                            words += 1;
                        }
                        Err(error) => {
                            assert_eq!(error.errno(), Some(Errno::EIO), "{error}");
                            errors += 1;
                        }
                    }
                }
                (words, errors)
            })
        });
        for _ in 0..40 {
            command(OFF);
            thread::sleep(Duration::from_millis(3));
            command(ON);
            thread::sleep(Duration::from_millis(3));
        }
        over.store(true, Ordering::Relaxed);
        let counts = readers.map(|reader| reader.join().expect("no reader fails"));
        counts
            .iter()
            .fold((0, 0), |sum: (u32, u32), one| (sum.0 + one.0, sum.1 + one.1))
    });
    println!("read {words} words and {errors} errors");
    assert!(words > 0 && errors > 0, "both were met: {words} and {errors}");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn memory_is_pinned_within_the_users_limit() {
    let _alone = alone();
    let device = open();
    let more = Arc::new(RawMapping::anonymous(1 << 20, false).expect("memory"));
    let before = getrlimit(Resource::RLIMIT_MEMLOCK).expect("a limit");
    // A superuser has none.
    setrlimit(Resource::RLIMIT_MEMLOCK, 1 << 16, before.1).expect("lowered");
    seteuid(Uid::from_raw(1000)).expect("another user");
    let refused = device.dma_map(Iova(HOST), more.clone());
    let small = device.dma_map(Iova(HOST), page());
    seteuid(Uid::from_raw(0)).expect("back again");
    setrlimit(Resource::RLIMIT_MEMLOCK, before.0, before.1).expect("as before");
    let error = refused.expect_err("1 MiB is above 64 KiB");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::OutOfMemory, Some(Errno::ENOMEM))
    );
    assert!(
        error.to_string().contains("RLIMIT_MEMLOCK: 65536 bytes"),
        "{error}"
    );
    assert!(
        error.help().is_some_and(|help| help.contains("ulimit -l")),
        "{error:?}"
    );
    small.expect("a page is below");
    assert_eq!(device.dma_unmap(Iova(HOST), 4096).expect("asked"), 4096);
    device
        .dma_map(Iova(HOST), more)
        .expect("nothing of the refused one is left");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn many_mappings_come_and_go() {
    const PIECES: u64 = 256;
    const LEN: usize = 16 * 4096;
    const STEP: u64 = 1 << 20;
    let _alone = alone();
    let device = open();
    let card = Card::new(&device);
    let pieces: Vec<_> = (0..PIECES)
        .map(|_| Arc::new(RawMapping::anonymous(LEN, true).expect("memory")))
        .collect();
    let begin = Instant::now();
    for (nth, piece) in (0..).zip(&pieces) {
        card.map(HOST + nth * STEP, piece);
    }
    let shown = begin.elapsed();
    for (nth, piece) in (0u64..).zip(&pieces).step_by(51) {
        piece.write(0, &nth.to_le_bytes()).expect("in the memory");
        card.copy(SRAM_BASE.get(), HOST + nth * STEP, LEN as u32);
        card.copy(HOST + nth * STEP + 4096, SRAM_BASE.get(), 4096);
        let mut got = [0; 8];
        piece.read(4096, &mut got).expect("in the memory");
        assert_eq!(u64::from_le_bytes(got), nth);
    }
    let begin = Instant::now();
    let taken = device.dma_unmap(Iova(HOST), PIECES * STEP).expect("asked");
    println!(
        "{PIECES} mappings of {LEN} bytes shown in {:.0} ms, taken away in {:.0} ms",
        shown.as_secs_f64() * 1e3,
        begin.elapsed().as_secs_f64() * 1e3
    );
    assert_eq!(taken, PIECES * LEN as u64);
    card.start_copy(SRAM_BASE.get(), HOST + 51 * STEP, 64);
    assert!(card.is_refused(), "they are removed");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fork_child_changes_nothing() {
    let _alone = alone();
    let device = open();
    let memory = page();
    device.dma_map(Iova(HOST), memory).expect("free");
    let event = Event::new().expect("an event");
    let other = event.duplicate().expect("a descriptor");
    device.set_interrupt(9, Some(event)).expect("a vector");
    // SAFETY: the child only calls methods that allocate little, drops the device and leaves with
    // _exit; no lock of theirs is held.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            let calls = [
                scratch(&device).map(drop),
                device.config_write(COMMAND, &[0; 2]),
                device.dma_unmap(Iova(HOST), 4096).map(drop),
                device.set_interrupt(9, None),
                device.reset(),
                device.bar_window(0).map(drop),
            ];
            let mut all = calls.into_iter();
            let refused = all.all(|call| call.is_err_and(|error| error.kind() == ErrorKind::Forked));
            drop(device);
            // SAFETY: ends the child without running the parent's destructors.
            unsafe { nix::libc::_exit(i32::from(!refused)) }
        }
        ForkResult::Parent { child } => {
            let ended = waitpid(child, None).expect("it ends");
            assert_eq!(
                ended,
                WaitStatus::Exited(child, 0),
                "each call of the child was refused"
            );
        }
    }
    let card = Card::new(&device);
    card.copy(SRAM_BASE.get(), HOST, 4096);
    card.enable_interrupts();
    card.raise(9);
    let ready = poll::readable([other.as_fd()], Duration::from_secs(60)).expect("polled");
    assert_eq!(ready, [true], "the parent goes on as before");
}
