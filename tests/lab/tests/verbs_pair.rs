//! libibverbs between two guests. Both run this program; each test has two halves that meet over
//! TCP.

mod guests;
mod ibv;

use gaudi_dmabuf::Udmabuf;
use gaudi_lab::rxe::{self, Build};
use gaudi_lab::{Side, modprobe, say, side, skips_twice, stdout_of};
use gaudi_sys::{Memfd, RawMapping};
use gaudi_verbs::provider::Device;
use gaudi_verbs::{SendOp, WcStatus};

use guests::{LEN, connected, meet, work};
use ibv::{ALL, Nic, any, bytes, skips};

/// The most rounds of work in which a rare fault must happen.
const ROUNDS: u32 = 16;

/// Impairs what this guest sends (tc-netem(8)) until dropped.
struct Impaired;

impl Impaired {
    fn new(how: &str) -> Self {
        modprobe("sch_netem");
        let words = "/usr/sbin/tc qdisc replace dev eth1 root netem";
        let words: Vec<&str> = words.split(' ').chain(how.split(' ')).collect();
        stdout_of(&words);
        Self
    }

    /// How many packets had this fault so far. Linux 6.12 counts only the dropped ones.
    fn count(fault: &str) -> Option<u64> {
        let text = stdout_of(&["/usr/sbin/tc", "-s", "qdisc", "show", "dev", "eth1"]);
        let rest = text.split(&format!("{fault} ")).nth(1)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some(
            digits
                .parse()
                .unwrap_or_else(|_| panic!("a number after {fault:?} in {text}")),
        )
    }
}

impl Drop for Impaired {
    fn drop(&mut self) {
        stdout_of(&["/usr/sbin/tc", "qdisc", "del", "dev", "eth1", "root"]);
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_guests_share_host_memory() {
    if rxe::skips_verbs("two_guests_share_host_memory") {
        return;
    }
    let mut stream = meet(7101);
    let nic = Nic::over(any(), "rxe1", "eth1", side().address());
    let memory = nic.host(LEN);
    let view = |at, len| memory.bytes(at, len);
    work(&mut stream, &nic, &[&view], memory.iova.0, memory.mr.rkey);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn two_guests_share_a_dmabuf() {
    if skips("two_guests_share_a_dmabuf") {
        return;
    }
    let mut stream = meet(7102);
    let nic = Nic::over(Build::Patched, "rxe1", "eth1", side().address());
    let memory = Memfd::sparse(c"lab", LEN as u64).expect("a memory file");
    let view = RawMapping::of_fd(&memory, 0, LEN).expect("it can be mapped");
    let buffer = Udmabuf::open()
        .and_then(|device| device.export(&memory, 0, LEN as u64))
        .expect("a udmabuf");
    let window = buffer.whole().expect("a window");
    let iova = 0x1001_0000_0000_0000;
    let mr = nic.window(&window, iova, ALL).expect("a region");
    let look = |at, len| bytes(&view, at, len);
    work(&mut stream, &nic, &[&look], iova, mr.rkey);
    nic.device.dereg_mr(mr.handle).expect("it ends");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn impaired_network_loses_no_request() {
    const TEST: &str = "impaired_network_loses_no_request";
    if skips_twice(TEST) || rxe::skips_verbs(TEST) {
        return;
    }
    // So rare that eight in the 64 packets between two acknowledgements, which end a request with
    // RETRY_EXC_ERR, do not happen.
    for (port, (how, fault)) in (7110..).zip([
        ("loss 0.5%", "dropped"),
        ("delay 4ms", "delayed"),
        ("duplicate 20%", "duplicated"),
        // Of a hundred packets one is late.
        ("delay 3ms reorder 99%", "delayed"),
        ("corrupt 0.5%", "corrupted"),
    ]) {
        let mut stream = meet(port);
        let nic = Nic::over(any(), "rxe1", "eth1", side().address());
        let memory = nic.host(LEN);
        let view = |at, len| memory.bytes(at, len);
        let impaired = Impaired::new(how);
        let mut rounds = 0;
        let has_fault = loop {
            rounds += 1;
            memory.clear();
            // An addition that is done twice, and a message that comes twice, are found there.
            work(&mut stream, &nic, &[&view], memory.iova.0, memory.mr.rkey);
            let own = Impaired::count(fault);
            let theirs = guests::say(&mut stream, &[u8::from(own != Some(0))]);
            if own != Some(0) || theirs != [0] || rounds == ROUNDS {
                say(&format!("{how}: {rounds} rounds, {fault} {own:?}"));
                break own != Some(0) || theirs != [0];
            }
        };
        drop(impaired);
        assert!(has_fault, "{how}: a packet was {fault}");
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn dead_network_ends_in_retry_exceeded() {
    const TEST: &str = "dead_network_ends_in_retry_exceeded";
    if skips_twice(TEST) || rxe::skips_verbs(TEST) {
        return;
    }
    let mut stream = meet(7120);
    let nic = Nic::over(any(), "rxe1", "eth1", side().address());
    let memory = nic.host(LEN);
    let (queue, to) = connected(&nic, &mut stream, memory.iova.0, memory.mr.rkey);
    if side() == Side::B {
        let host = nic.host(LEN);
        host.pattern(5);
        let dead = Impaired::new("loss 100%");
        let done = queue.run(&[host.sge(0, LEN)], SendOp::Write(to));
        assert_eq!(done.status, WcStatus::RETRY_EXC_ERR, "{done:?}");
        drop(dead);
    }
    guests::say(&mut stream, b"over");
    queue.close();
    assert!(memory.bytes(0, LEN).iter().all(|&byte| byte == 0), "no byte came");
    // The network works again.
    let view = |at, len| memory.bytes(at, len);
    work(&mut stream, &nic, &[&view], memory.iova.0, memory.mr.rkey);
}
