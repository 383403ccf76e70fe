//! Host memory over soft-RoCE through libibverbs: every operation, byte for byte.

mod ibv;

use gaudi_lab::nic::pattern;
use gaudi_lab::rxe::{Build, skips_verbs};
use gaudi_verbs::{SendOp, WcOpcode};

use ibv::{Nic, succeeded};

const LEN: usize = 1 << 16;

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_write_puts_each_byte_in_its_place_and_no_other() {
    if skips_verbs("a_write_puts_each_byte_in_its_place_and_no_other") {
        return;
    }
    let nic = Nic::open(Build::Patched);
    let (from, to) = (nic.host(LEN), nic.host(LEN));
    from.pattern(1);
    let (here, _there) = nic.pair();
    let done = here.run(&[from.sge(5, 30_001)], SendOp::Write(to.remote(11)));
    succeeded(&done, "a write");
    assert_eq!(done.opcode, WcOpcode::RDMA_WRITE, "it says what it was");
    let mut wanted = vec![0; LEN];
    wanted[11..11 + 30_001].copy_from_slice(&pattern(1, LEN)[5..5 + 30_001]);
    assert!(to.bytes(0, LEN) == wanted, "each byte is in its place");
}
