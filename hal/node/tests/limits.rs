//! Open with too few descriptors. The only test in its process, because it lowers RLIMIT_NOFILE.

mod common;

use std::fs::File;
use std::os::fd::AsRawFd as _;

use gaudi_node::VirtualNode;
use gaudi_seam::{ErrorKind, NodeKind};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use common::{Mapped, PAGE, Program, spec};

#[test]
fn failed_open_leaks_nothing() {
    let spec = spec("limits");
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    for kind in [NodeKind::Compute, NodeKind::Control] {
        let mut failed = 0;
        for spare in 0.. {
            // Use every descriptor below the limit except the last few.
            let mut taken: Vec<_> = (0..32).map(|_| File::open("/dev/null").unwrap()).collect();
            let limit = taken.iter().map(|file| file.as_raw_fd() as u64 + 1).max();
            setrlimit(Resource::RLIMIT_NOFILE, limit.unwrap(), hard).unwrap();
            taken.truncate(32 - spare);
            let opened = VirtualNode::open(&spec, kind);
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
            match opened {
                Ok(_) => break,
                Err(error) => {
                    // The driver's open(2) needs a descriptor alone.
                    assert_eq!(
                        error.kind(),
                        ErrorKind::TooManyFiles,
                        "{spare} descriptors: {error}"
                    );
                    failed += 1;
                }
            }
        }
        assert!(failed > 0, "{kind:?}");
        // Each failed open has closed the device.
        let program = Program::open(&spec).unwrap();
        Mapped::new(&program, PAGE);
    }
}
