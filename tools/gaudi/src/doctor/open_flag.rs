//! Whether the kernel rejects every open of a compute node.
//!
//! habanalabs of Linux 6.12 to 7.3 lacks `FOP_UNSIGNED_OFFSET` (habanalabs_drv.c:hl_fops), so drm_file.c:drm_open_helper answers each open with
//! EINVAL. The version alone does not tell: a distribution may have the patch. So the node is opened where the version is one of these and the
//! module that sets the flag is not loaded; a rejected open reaches no card, and one that succeeds is closed at once.

use std::fs::OpenOptions;

use gaudi_seam::Errno;

use super::machine::{Machine, version_of};
use super::{Check, fail, ok, warn};

const NAME: &str = "open flag";
/// The module's folder in sysfs.
const MODULE: &str = "/sys/module/hl_open_flag";
const REMEDY: &str =
    "load the module of tools/hl-open-flag, or patch the kernel by one line: docs/src/how-to/open-flag.md";

/// `None` where the question does not arise: another kernel, the vendor's driver, or no compute node.
pub(super) fn check(machine: &Machine) -> Option<Check> {
    let release = machine.read("/proc/sys/kernel/osrelease")?;
    let version = version_of(&release)?;
    // Mainline's module has no version of its own; the vendor's has nodes that DRM does not open.
    let is_mainline = !machine.path("/sys/module/habanalabs/version").exists();
    if !is_mainline || !((6, 12)..=(7, 3)).contains(&version) {
        return None;
    }
    let is_compute = |name: &String| {
        name.strip_prefix("accel")
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let node = machine.names("/dev/accel").into_iter().find(is_compute)?;
    let driver = format!("habanalabs of Linux {release}");
    if machine.path(MODULE).exists() {
        return Some(ok(NAME, format!("hl_open_flag sets what {driver} lacks")));
    }
    let cause = format!(
        "{driver} lacks FOP_UNSIGNED_OFFSET, so the kernel rejects every open of a compute node with EINVAL"
    );
    if !machine.is_this() {
        return Some(warn(NAME, format!("probably: {cause}"), REMEDY));
    }
    let path = format!("/dev/accel/{node}");
    match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(_) => Some(ok(NAME, format!("{path} opens"))),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EINVAL) => Some(fail(NAME, cause, REMEDY)),
            // The flag comes first: a node that another process has open, or that is in reset, has it.
            Some(Errno::EBUSY | Errno::EAGAIN | Errno::EPERM) => {
                Some(ok(NAME, format!("{path}: not missing")))
            }
            _ => Some(warn(
                NAME,
                format!("cannot open {path} ({error}); if not for permissions: {cause}"),
                REMEDY,
            )),
        },
    }
}
