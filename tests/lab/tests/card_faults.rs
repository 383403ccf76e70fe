//! Faults of a modelled Gaudi2 below the stock driver, with the library above it. The same must
//! hold as in fault runs on a mock: work ends once, errors have the injected cause, and after a
//! reset the card works.
//!
//! The driver kills the process that has the card open when it resets the card. So the process that
//! meets such a fault is a child: this program once more.

mod first_card;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gaudi_device::{Deadline, Device};
use gaudi_lab::{card, say, skips_twice, skips_unnamed};
use gaudi_seam::ErrorKind;

use first_card::{open, spec, wait_until_free};

/// Set in a child that copies until the card fails.
const COPIES: &str = "GAUDI_LAB_COPIES";
/// The exit code of a child whose copies end with an error.
const FAILED: i32 = 17;
/// How long a child may take to end after its card was reset or removed.
const SOON: Duration = Duration::from_secs(180);

/// Bytes go to the card and come back.
fn card_works(device: &Device) {
    const LEN: usize = 70_001;
    let buffer = device.alloc(LEN as u64).expect("device memory");
    let sent: Vec<u8> = (0..LEN).map(|at| (at * 31 % 251) as u8).collect();
    device.write(&buffer, 0, &sent).expect("up");
    let mut got = vec![0; LEN];
    device.read(&buffer, 0, &mut got).expect("down");
    assert!(got == sent, "the bytes come back");
}

/// Arms a plan in the card.
fn arm(plan: &str) {
    let answer = card::ask(0, &format!("fault {plan}"));
    assert!(answer.contains("armed"), "{answer}");
}

/// Disarms every rule. Each must have injected its fault.
fn heal() {
    let counts = card::ask(0, "faults");
    card::ask(0, "heal");
    assert!(
        !counts.contains("\"fired\":0"),
        "every rule injected its fault: {counts}"
    );
}

/// In a child: copies until an error, which is the child's exit code. Each copy that ends without
/// an error must have moved its bytes.
fn copy_until_an_error() -> ! {
    let device = open();
    let (buffer, up, down) = (
        device.alloc(8192).expect("device memory"),
        device.alloc_host(8192).expect("host memory"),
        device.alloc_host(8192).expect("host memory"),
    );
    for turn in 0_u32.. {
        let copies = || -> gaudi_device::Result<()> {
            up.write(0, &turn.to_le_bytes())?;
            device.copy(&buffer, &up)?.wait(Deadline::NEVER)?;
            device.copy(&down, &buffer)?.wait(Deadline::NEVER)
        };
        if let Err(error) = copies() {
            eprintln!("turn {turn}: {error}");
            let names_state = matches!(
                error.kind(),
                ErrorKind::DeviceLost | ErrorKind::InReset | ErrorKind::Hung | ErrorKind::TimedOut
            );
            assert!(names_state, "the error names the card's state: {error:?}");
            std::process::exit(FAILED);
        }
        let mut got = [0; 4];
        down.read(0, &mut got).expect("inside");
        assert_eq!(got, turn.to_le_bytes(), "turn {turn}");
        if turn == 0 {
            println!("copying");
        }
    }
    unreachable!("the loop has no end");
}

/// Starts a child that copies, and waits until it does.
fn start_copies(test: &str) -> Child {
    drop(open());
    wait_until_free(&spec());
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env(COPIES, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child runs");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("piped")));
    let copies = lines.any(|line| line.is_ok_and(|line| line.contains("copying")));
    assert!(copies, "the child copies");
    // The child's later output is not read, and fits into the pipe.
    std::mem::forget(lines);
    child
}

fn is_child() -> bool {
    std::env::var_os(COPIES).is_some()
}

/// Waits for the child: the driver kills it, or its copies end with an error.
fn ends(mut child: Child) -> String {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            assert!(
                status.signal() == Some(9) || status.code() == Some(FAILED),
                "the driver kills the child, or a copy fails: {status:?}"
            );
            return format!("{status} after {:?}", begin.elapsed());
        }
        assert!(begin.elapsed() < SOON, "the child ends");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A fault while a child copies: the driver resets the card, after which the card works.
fn resets(test: &str, plan: &str, reason: &str) {
    if skips_twice(test) {
        return;
    }
    if is_child() {
        copy_until_an_error();
    }
    let child = start_copies(test);
    let from = card::log().len();
    arm(plan);
    card::wait_for("Going to reset device", from);
    heal();
    let end = ends(child);
    card::wait_for("Successfully finished resetting", from);
    let log = card::log();
    let new = log.get(from..).unwrap_or_default();
    assert!(
        new.to_lowercase().contains(reason),
        "{reason:?} is the reason: {new}"
    );
    say(&format!("{plan}: the child ends with {end}"));
    card_works(&open());
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn lost_interrupt_ends_in_reset() {
    resets(
        "lost_interrupt_ends_in_reset",
        "chip.interrupt:when=1:lose",
        "has not finished in",
    );
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn hung_queue_ends_in_reset() {
    resets(
        "hung_queue_ends_in_reset",
        "chip.packet:when=5:hang",
        "has not finished in",
    );
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn refused_write_ends_in_reset() {
    // gaudi2.c `gaudi2_razwi_rr_hbw_shared_printf_info`
    resets(
        "refused_write_ends_in_reset",
        "chip.dma:when=1:razwi",
        "-razwi shared rr hbw wr error",
    );
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn dead_firmware_ends_in_reset() {
    resets("dead_firmware_ends_in_reset", "chip.firmware:hang", "heartbeat");
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn wrong_events_do_not_stop_copies() {
    if skips_twice("wrong_events_do_not_stop_copies") {
        return;
    }
    let device = open();
    let from = card::log().len();
    // 1328 is the last event of the firmware (gaudi2_async_events.h).
    for event in [1329, 4000, 65535] {
        card::ask(0, &format!("event {event}"));
    }
    card_works(&device);
    card::wait_for("exceeds maximum", from);
    let log = card::log();
    let new = log.get(from..).unwrap_or_default();
    assert!(!new.contains("Going to reset"), "the card stays: {new}");
    card_works(&device);
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn zz_removal_under_load_ends_copies() {
    const TEST: &str = "zz_removal_under_load_ends_copies";
    if skips_unnamed(TEST) {
        return;
    }
    if is_child() {
        copy_until_an_error();
    }
    let child = start_copies(TEST);
    let place = fs::canonicalize("/sys/class/accel/accel0/device").expect("a card");
    let begin = Instant::now();
    fs::write(place.join("remove"), "1").expect("the card is removed");
    let removed = begin.elapsed();
    let end = ends(child);
    assert!(!place.exists(), "the card is removed");
    let error = Device::open(&spec()).expect_err("no card is left");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    fs::write("/sys/bus/pci/rescan", "1").expect("the bus is searched");
    let begin = Instant::now();
    while !Path::new("/dev/accel/accel0").exists() {
        assert!(begin.elapsed() < SOON, "the card is found again");
        std::thread::sleep(Duration::from_millis(100));
    }
    say(&format!("removed in {removed:?}; the child ends with {end}"));
    card_works(&open());
}
