//! The stock driver rejects every open of its compute node; `gaudi doctor` names the cause, and the
//! module of `tools/hl-open-flag` removes it.

mod first_card;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use gaudi_lab::card;
use gaudi_lab::{is_loaded, run, say, skips_unnamed, stdout_of};
use gaudi_sys::Errno;
use serde_json::Value;

use first_card::{TIMEOUT, spec, wait_until_free};

const NODE: &str = "/dev/accel/accel0";
const MODULE: &str = "/lab/modules/hl_open_flag.ko";

fn succeed(words: &[&str]) {
    let output = run(words);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {text}; {}", card::log());
}

/// Loads and unloads modules until exactly these are loaded.
fn loaded(driver: bool, module: bool) {
    if is_loaded("hl_open_flag") && !module {
        succeed(&["rmmod", "hl_open_flag"]);
    }
    if is_loaded("habanalabs") && !driver {
        card::unload();
    }
    if driver && !is_loaded("habanalabs") {
        succeed(&["modprobe", "habanalabs", TIMEOUT]);
    }
    if module && !is_loaded("hl_open_flag") {
        succeed(&["insmod", MODULE]);
    }
    if driver {
        wait_until_free(&spec());
    }
}

fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(NODE)
}

fn is_rejected() -> bool {
    open().is_err_and(|error| error.raw_os_error() == Some(Errno::EINVAL as i32))
}

/// The row of `gaudi doctor` on the flag.
fn doctor() -> Value {
    let output = run(&["gaudi", "doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let checks = report["checks"].as_array().expect("checks");
    let row = checks.iter().find(|check| check["name"] == "open flag");
    row.unwrap_or_else(|| panic!("a row on the flag: {report}"))
        .clone()
}

fn copies() {
    wait_until_free(&spec());
    stdout_of(&["gaudi", "copy", "-d", "kernel:0", "--size", "1MiB"]);
    wait_until_free(&spec());
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn doctor_names_the_rejected_open() {
    loaded(true, false);
    assert!(is_rejected(), "the kernel has no patch: {:?}", open());
    let row = doctor();
    assert_eq!(row["verdict"], "fail", "{row}");
    let text = row.to_string();
    for word in ["FOP_UNSIGNED_OFFSET", "EINVAL", "how-to/open-flag.md"] {
        assert!(text.contains(word), "{word}: {row}");
    }
    assert!(
        stdout_of(&["gaudi", "list"]).contains("kernel:0"),
        "the control node opens"
    );
    stdout_of(&["gaudi", "info", "-d", "kernel:0"]);
    let copy = run(&["gaudi", "copy", "-d", "kernel:0"]);
    let error = String::from_utf8_lossy(&copy.stderr).into_owned();
    assert!(
        !copy.status.success() && error.contains("how-to/open-flag.md"),
        "{error}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn module_sets_and_clears_the_flag() {
    loaded(true, true);
    let row = doctor();
    assert_eq!(row["verdict"], "ok", "{row}");
    assert!(stdout_of(&["gaudi", "list"]).contains("kernel:0"), "listed");
    stdout_of(&["gaudi", "info", "-d", "kernel:0"]);
    copies();
    let file = open().expect("it opens");
    succeed(&["rmmod", "hl_open_flag"]);
    assert!(is_rejected(), "cleared: {:?}", open());
    drop(file); // a file that was open before stays open
    loaded(true, true);
    copies();
}

/// In every run, `card_trace` does the same below tracers on 7.3.
#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn check_passes_on_the_stock_driver() {
    if skips_unnamed("check_passes_on_the_stock_driver") {
        return;
    }
    // With the driver's own timeout of 30 s: a case fills a queue, which takes seconds in a guest
    // on a busy machine.
    loaded(true, true);
    card::unload();
    succeed(&["modprobe", "habanalabs"]);
    wait_until_free(&spec());
    // A guest without KVM is slower than any card.
    let report = run(&["gaudi", "check", "-d", "kernel:0", "--timeout", "1200"]);
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    text.lines().for_each(say);
    assert!(
        report.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&report.stderr)
    );
    wait_until_free(&spec());
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn module_serves_a_driver_loaded_later() {
    loaded(false, true);
    loaded(true, true);
    copies();
    card::unload();
    succeed(&["modprobe", "habanalabs", TIMEOUT]);
    copies();
    card::unload();
    succeed(&["rmmod", "hl_open_flag"]);
    loaded(true, true);
    copies();
    let taint = fs::read_to_string(Path::new("/sys/module/hl_open_flag/taint")).expect("a module's taint");
    assert_eq!(taint.trim(), "OE", "out of tree and unsigned");
}
