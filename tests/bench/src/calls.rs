//! Makes calls and prints the nanoseconds that each took: the program that the benchmarks trace.
//! `ioctls` is the driver's INFO on /dev/null, which fails with ENOTTY and costs the least that an
//! ioctl can cost; `driver` is INFO on /dev/accel/accel0; `embedded` is the same operation of this
//! project's library on a mock.

#![expect(unsafe_code, reason = "the ioctl that is measured")]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::time::Instant;

use gaudi_seam::KernelIoExt as _;
use gaudi_uapi::info::{HlInfoDeviceStatus, InfoOp};
use nix::libc;

/// `HL_IOCTL_INFO` of the oldest interface: `_IOWR('H', 1, struct hl_info_args)`.
const INFO: libc::c_ulong = 0xc018_4801;

fn ioctl(fd: i32, argument: &mut [u64; 3]) {
    // SAFETY: the argument has the 24 bytes that the request number states.
    let result = unsafe { libc::ioctl(fd, INFO, std::ptr::from_mut(argument)) };
    assert_eq!(result, -1, "/dev/null has no ioctl");
}

/// `DRM_IOCTL_HL_INFO`: `_IOWR('d', 0x40, struct hl_info_args)`.
const DRM_INFO: libc::c_ulong = 0xc018_6440;

/// Queries whether the device is operational.
fn query(fd: i32) {
    let mut answer = [0_u32; 2];
    let address = answer.as_mut_ptr().expose_provenance() as u64;
    let op = u64::from(InfoOp::DEVICE_STATUS.0);
    let mut argument = [address, op << 32 | 8, 0];
    // SAFETY: the argument has the 24 bytes that the request number states, and the answer 8.
    let result = unsafe { libc::ioctl(fd, DRM_INFO, argument.as_mut_ptr()) };
    assert_eq!(result, 0, "the device answers");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let subject = arguments.next().expect("what to call");
    let times: u32 = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .expect("how often");
    let path = match subject.as_str() {
        "driver" => "/dev/accel/accel0",
        _ => "/dev/null",
    };
    let device = File::options().read(true).write(true).open(path).expect(path);
    let mock = (subject == "embedded").then(|| {
        let spec = "mock:gaudi2".parse().expect("a spec");
        gaudi_hal::open(&spec).expect("a mock")
    });
    let mut argument = [0_u64; 3];
    let begin = Instant::now();
    for number in 0..times {
        argument[2] = number.into();
        match (subject.as_str(), &mock) {
            ("ioctls", _) => ioctl(device.as_raw_fd(), &mut argument),
            ("driver", _) => query(device.as_raw_fd()),
            (_, Some(mock)) => {
                let status = mock.query::<HlInfoDeviceStatus>();
                status.expect("the mock answers");
            }
            _ => {
                nix::unistd::getppid();
            }
        }
    }
    println!("{:.2}", begin.elapsed().as_nanos() as f64 / f64::from(times));
}
