//! Two nodes in two processes: they share a set-up socket and the cable, nothing else.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use gaudi_softnic::SoftNic;
use gaudi_verbs::{RemoteRegion, WcStatus, exchange};

use crate::node::*;

const LEN: usize = 2_500_001;

/// Set where this program is the far node.
const FAR_NODE: &str = "SOFTNIC_TEST_FAR_NODE";

/// The far node. Its standard input is the set-up socket; the cable comes over it.
fn node_b() {
    let setup: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut setup = UnixStream::from(setup);
    setup.set_read_timeout(Some(MAX_WAIT)).unwrap();
    let (_, mut fds) = gaudi_sys::socket::receive_with_fds(&setup, &mut [0; 1]).unwrap();
    let mut b = Node::new(SoftNic::open("softnic-b", fds.pop().unwrap(), Default::default()).unwrap());
    let remote = exchange(&mut setup, &b.qp.address().unwrap()).unwrap();
    b.qp.connect(&remote, FULL).unwrap();
    b.qp.post_recv(1).post(&[]).unwrap();
    let _theirs: RemoteRegion = exchange(&mut setup, &b.device_mr.remote()).unwrap();
    let wc = b.completes(1, WcStatus::SUCCESS);
    assert_eq!(wc.imm_data, Some(LEN as u32));
    assert!(
        bytes_of(&b.device, 0, LEN) == pattern(LEN, 77),
        "the file arrived in the device memory of node B"
    );
}

#[test]
fn device_memory_travels_to_another_process() {
    if std::env::var_os(FAR_NODE).is_some() {
        return node_b();
    }
    let (mut setup, theirs) = UnixStream::pair().unwrap();
    setup.set_read_timeout(Some(MAX_WAIT)).unwrap();
    let (cable, far) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "processes::device_memory_travels_to_another_process",
            "--nocapture",
        ])
        .env(FAR_NODE, "1")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    gaudi_sys::socket::send_with_fds(&setup, b"c", &[far.as_fd()]).unwrap();
    drop(far);
    let mut a = Node::new(SoftNic::open("softnic-a", cable, Default::default()).unwrap());
    let remote = exchange(&mut setup, &a.qp.address().unwrap()).unwrap();
    a.qp.connect(&remote, FULL).unwrap();
    let theirs: RemoteRegion = exchange(&mut setup, &a.device_mr.remote()).unwrap();
    a.device.write(5, &pattern(LEN, 77)).unwrap();
    let local = [a.device_mr.sge(5, LEN as u32).unwrap()];
    let to = theirs.at(0, LEN as u64).unwrap();
    a.qp.post_send(2)
        .write_imm(&local, to, LEN as u32)
        .post()
        .unwrap();
    a.completes(2, WcStatus::SUCCESS);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "node B failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn killed_peer_process_is_detected() {
    let (_setup, theirs) = UnixStream::pair().unwrap();
    let (cable, far) = UnixStream::pair().unwrap();
    // A process that holds the far end of the cable and does nothing else.
    let mut child = Command::new("sleep")
        .arg("600")
        .stdin(OwnedFd::from(far))
        .spawn()
        .unwrap();
    drop(theirs);
    let mut a = Node::new(SoftNic::open("softnic-a", cable, Default::default()).unwrap());
    let mut remote = a.qp.address().unwrap();
    remote.gid.0[15] ^= 1;
    a.qp.connect(&remote, FULL).unwrap();
    a.qp.post_recv(2).post(&[]).unwrap();
    a.qp.post_send(1)
        .send(&[a.host_mr.sge(0, 1 << 20).unwrap()])
        .post()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    a.nothing_completes();
    child.kill().unwrap();
    child.wait().unwrap();
    a.completes(1, WcStatus::RETRY_EXC_ERR);
    a.completes(2, WcStatus::WR_FLUSH_ERR);
}
