//! Whether the kernel rejects every open of a compute node.
//!
//! habanalabs of Linux 6.12 to 7.3 lacks `FOP_UNSIGNED_OFFSET` (habanalabs_drv.c:hl_fops), so
//! drm_file.c:drm_open_helper rejects each open with EINVAL and logs a warning for the first. The
//! version alone does not decide: a distribution may have the patch. Trying an open would block
//! other users if it succeeds, and cause a reset. So the kernel's log decides.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use nix::libc::O_NONBLOCK;

use super::machine::{compute_nodes, version_of};
use super::{Check, fail, ok, warn};
use crate::machine::Machine;

/// The module's folder in sysfs.
const MODULE: &str = "/sys/module/hl_open_flag";
const REMEDY: &str =
    "load the module of tools/hl-open-flag, or patch the kernel by one line: docs/src/how-to/open-flag.md";

/// Returns `None` if the check does not apply: another kernel, the vendor's driver, or no compute
/// node.
pub(super) fn check(machine: &Machine) -> Option<Check> {
    let release = machine.read("/proc/sys/kernel/osrelease")?;
    let version = version_of(&release)?;
    // Mainline's module has no version of its own; the vendor's has nodes that DRM does not open.
    let is_mainline = !machine.path("/sys/module/habanalabs/version").exists();
    if !is_mainline || !((6, 12)..=(7, 3)).contains(&version) {
        return None;
    }
    (compute_nodes(machine) > 0).then_some(())?;
    let driver = format!("habanalabs of Linux {release}");
    if machine.path(MODULE).exists() {
        return Some(ok(format!("hl_open_flag sets what {driver} lacks")));
    }
    if warned(machine) {
        let cause = format!(
            "{driver} lacks FOP_UNSIGNED_OFFSET, so the kernel rejects every open of a compute node with EINVAL"
        );
        return Some(fail(cause, REMEDY));
    }
    let cause = format!(
        "{driver} lacks FOP_UNSIGNED_OFFSET, unless it is patched: then every open of a compute node fails with EINVAL"
    );
    Some(warn(cause, REMEDY))
}

/// The most records of the kernel's log that are read: more than its buffer holds.
const RECORDS: usize = 1 << 17;

/// Whether the kernel's log has the warning of a rejected open. `false` if the log cannot be read.
fn warned(machine: &Machine) -> bool {
    let log = File::options()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open(machine.path("/dev/kmsg"));
    let Ok(mut log) = log else {
        return false;
    };
    // Each read returns one record, at most this long (kernel/printk/internal.h
    // PRINTK_MESSAGE_MAX).
    let mut record = [0; 2048];
    for _ in 0..RECORDS {
        match log.read(&mut record) {
            Ok(0) => return false,
            Ok(len) => {
                let text = String::from_utf8_lossy(&record[..len]);
                if text.contains("WARNING:") && text.contains("drm_open_helper") {
                    return true;
                }
            }
            // EPIPE: records were overwritten before they were read; the next read continues after
            // them.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(_) => return false,
        }
    }
    false
}
