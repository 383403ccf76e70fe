//! What keeps a card's memory, and the effect on the card: by the real driver, memory of a modelled
//! card, and a region of the lab's NIC in a process that is not the card's user.
//!
//! habanalabs does not revoke exports: it waits for their last user, with the next open,
//! with a reset, and with its own removal.

mod chain;
mod common;
mod first_card;

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use gaudi_lab::nic::Nic;
use gaudi_lab::rxe::Build;
use gaudi_lab::uverbs::Request;
use gaudi_lab::{card, run, say, skip};
use gaudi_seam::{CbCreate, CqCounter, ErrorKind, InterruptId, KernelIoExt as _, TimestampRegistration};
use gaudi_spec::gaudi2::USER_INTERRUPTS;
use gaudi_uapi::info::{DeviceStatus, HlInfoDeviceStatus};

use chain::{
    Holder, Owner, exported, exported_bytes, register_bytes, reopen, reopened, skips_peers, whole_chain_works,
};
use common::{Other, await_notice, notify};
use first_card::{open, spec};

/// The device's status, as anybody may ask.
fn status() -> DeviceStatus {
    let control = gaudi_hal::control(&spec()).expect("the control node opens");
    let answer: HlInfoDeviceStatus = control.query().expect("it answers");
    answer.status
}

/// The kind of error that a next user meets.
fn refusal() -> ErrorKind {
    let error = gaudi_hal::open(&spec()).map(drop).expect_err("the card is held");
    error.kind()
}

/// For some time the card cannot be opened, while the process with the region still writes to it.
fn is_held_by(holder: &Holder) {
    for _ in 0..5 {
        assert_eq!(refusal(), ErrorKind::Busy, "common/habanalabs_drv.c:231");
        assert_eq!(status(), DeviceStatus::OPERATIONAL, "an exited user is no error");
        assert!(holder.writes(), "the region is not revoked");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn foreign_region_keeps_closed_card_and_module() {
    if skips_peers("foreign_region_keeps_closed_card_and_module") {
        return;
    }
    let holder = Holder::new();
    let io = reopen();
    holder.take(exported(&io).0);
    let begin = Instant::now();
    drop(io);
    let closed = begin.elapsed();
    is_held_by(&holder);
    let unload = run(&["rmmod", "habanalabs"]);
    let stderr = String::from_utf8_lossy(&unload.stderr).into_owned();
    assert!(
        !unload.status.success() && stderr.contains("Resource temporarily unavailable"),
        "the module stays: {stderr}"
    );
    // The last reference's holder runs the reset that the close did not.
    let ended = holder.ends();
    let (io, opened) = reopened();
    drop(io);
    say(&format!(
        "close {closed:?}, the region's end {ended:?}, the next open after {opened:?}"
    ));
    whole_chain_works();
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn killed_owner_leaves_card_to_region() {
    if skips_peers("killed_owner_leaves_card_to_region") {
        return;
    }
    let holder = Holder::new();
    let (owner, fd) = Owner::new();
    holder.take(fd);
    owner.kill();
    is_held_by(&holder);
    holder.ends();
    whole_chain_works();
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn killed_process_with_writes_leaves_nothing() {
    if skips_peers("killed_process_with_writes_leaves_nothing") {
        return;
    }
    const EACH: usize = 4 << 20;
    const POSTED: usize = 64 << 20;
    let other = Other::new(|socket| {
        let (io, nic) = (reopen(), Nic::open(Build::Patched));
        let (fd, ..) = exported_bytes(&io, EACH);
        let region = register_bytes(&nic, fd.as_raw_fd(), EACH).expect("a region");
        let (host, mut pair) = (nic.host(EACH), nic.pair());
        let (remote, rkey) = (0, region.rkey);
        for nth in 0..POSTED / EACH {
            pair.post(nth as u64, host.local(0, EACH), Request::Write { remote, rkey })
                .expect("the queue has room");
        }
        notify(socket);
        std::thread::sleep(Duration::from_secs(600));
        false
    });
    assert!(await_notice(&other.socket), "all are posted");
    let begin = Instant::now();
    drop(other); // which kills it
    let reaped = begin.elapsed();
    let (io, opened) = reopened();
    drop(io);
    say(&format!(
        "the process is reaped after {reaped:?}, the card opens {opened:?} later"
    ));
    whole_chain_works();
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn killed_process_with_registered_timestamp_frees_card() {
    let name = "killed_process_with_registered_timestamp_frees_card";
    // wake_pending_user_interrupt_threads() frees the process's DMA memory with a spinlock held:
    // `WARNING kernel/dma/mapping.c dma_free_attrs` (kernels.toml names it), and on 6.12 `BUG:
    // scheduling while atomic` too. Then it reads the record of the freed buffer, which is an Oops
    // if the kernel unmapped the buffer in between. So no boot with other tests runs it.
    let need = format!("may end in an Oops, by name: cargo xtask lab test -p gaudi-lab -- {name}");
    if !std::env::args().any(|word| word == name) && skip(name, &need) {
        return;
    }
    let other = Other::new(|socket| {
        let io = reopen();
        let handle = io
            .cb_create(CbCreate {
                size: 4096,
                map_to_device: true,
            })
            .expect("a command buffer");
        let registration = TimestampRegistration {
            interrupt: InterruptId(USER_INTERRUPTS.start),
            counter: CqCounter { handle, offset: 0 },
            target: 1,
            buffer: io.ts_alloc(16).expect("timestamps"),
            index: 0,
        };
        io.register_timestamp(&registration).expect("registered");
        notify(socket);
        std::thread::sleep(Duration::from_secs(600));
        false
    });
    assert!(await_notice(&other.socket), "it is registered");
    drop(other); // which kills it
    drop(reopen());
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn reset_waits_for_foreign_region() {
    if skips_peers("reset_waits_for_foreign_region") {
        return;
    }
    let holder = Holder::new();
    let (owner, fd) = Owner::new();
    holder.take(fd);
    let from = card::log().len();
    owner.hangs();
    // It has waited ten seconds for the user that it killed, whose memory is exported still
    // (common/device.c:device_hard_reset_pending).
    card::wait_for("Could not reset device", from);
    assert_eq!(status(), DeviceStatus::IN_RESET);
    assert_eq!(refusal(), ErrorKind::InReset, "common/habanalabs_drv.c:203");
    assert!(holder.writes(), "the region is not revoked");
    let log = card::log();
    let new = log.get(from..).unwrap_or_default();
    assert!(
        new.contains("will try again in 10 seconds") && !new.contains("Successfully finished resetting"),
        "the reset waits: {new}"
    );
    holder.ends();
    card::wait_for("Successfully finished resetting", from);
    whole_chain_works();
}

/// The first card's PCI address, as sysfs names it.
fn address() -> String {
    let device = fs::canonicalize("/sys/class/accel/accel0/device").expect("the card is a PCI function");
    let name = device.file_name().expect("it has a name");
    name.to_string_lossy().into_owned()
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn last_region_releases_card_to_driver() {
    if skips_peers("last_region_releases_card_to_driver") {
        return;
    }
    let holder = Holder::new();
    let (owner, fd) = Owner::new();
    holder.take(fd);
    owner.kill();
    let driver = Path::new("/sys/bus/pci/drivers/habanalabs");
    let (from, card) = (card::log().len(), address());
    let unbind = std::thread::spawn({
        let card = card.clone();
        move || fs::write(driver.join("unbind"), card)
    });
    card::wait_for("Waiting for all processes to exit", from);
    std::thread::sleep(Duration::from_secs(3));
    assert!(!unbind.is_finished(), "it waits for the region");
    assert!(holder.writes(), "the region is not revoked");
    holder.ends();
    unbind
        .join()
        .expect("no panic")
        .expect("the driver has left the card");
    assert_eq!(
        refusal(),
        ErrorKind::NotFound,
        "a card without a driver has no node"
    );
    fs::write(driver.join("bind"), card).expect("the driver takes it back");
    drop(open());
    whole_chain_works();
}
