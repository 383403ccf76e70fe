//! Makes system calls and prints the nanoseconds that each took: the program that the benchmarks
//! trace. Its ioctl is the driver's INFO on /dev/null, which fails with ENOTTY and costs the least
//! that an ioctl can cost.

#![expect(unsafe_code, reason = "the ioctl that is measured")]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::time::Instant;

use nix::libc;

/// `HL_IOCTL_INFO` of the oldest interface: `_IOWR('H', 1, struct hl_info_args)`.
const INFO: libc::c_ulong = 0xc018_4801;

fn ioctl(fd: i32, argument: &mut [u64; 3]) {
    // SAFETY: the argument has the 24 bytes that the request number states.
    let result = unsafe { libc::ioctl(fd, INFO, std::ptr::from_mut(argument)) };
    assert_eq!(result, -1, "/dev/null has no ioctl");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let subject = arguments.next().expect("what to call");
    let times: u32 = arguments
        .next()
        .and_then(|text| text.parse().ok())
        .expect("how often");
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .expect("/dev/null");
    let mut argument = [0_u64; 3];
    let begin = Instant::now();
    for number in 0..times {
        argument[2] = number.into();
        if subject == "ioctls" {
            ioctl(device.as_raw_fd(), &mut argument);
        } else {
            nix::unistd::getppid();
        }
    }
    println!("{:.2}", begin.elapsed().as_nanos() as f64 / f64::from(times));
}
