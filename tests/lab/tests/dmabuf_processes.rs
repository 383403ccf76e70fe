//! Buffers in several processes: passing, fetching, forking, and their lifetime.

mod common;

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use common::{LONG, Other, alone, await_notice, buffer, heap, listed, notify, read, refused, word, write};
use gaudi_dmabuf::{DmaBuf, ErrorKind, Exporter, MESSAGE_BYTES, OFFER_BYTES, Offer, Window, receive, send};
use gaudi_sys::socket::{receive_with_fds, send_with_fds};
use gaudi_sys::{PAGE, standin};

fn whole(buffer: &DmaBuf) -> Window {
    buffer.whole().expect("a window")
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn another_process_reads_what_was_written_here() {
    let _alone = alone();
    let other = Other::new(|socket| {
        let window = receive(socket, LONG).expect("it comes");
        (window.offset(), window.len()) == (100, 5000) && read(&window, 4000, 5) == b"there"
    });
    let buffer = buffer(2);
    let window = buffer.window(100, 5000).expect("inside");
    write(&window, 4000, b"there");
    send(&other.socket, &window, LONG).expect("it goes");
    other.agrees();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn writes_of_another_process_are_read() {
    let _alone = alone();
    let other = Other::new(|socket| {
        let window = receive(socket, LONG).expect("it comes");
        write(&window, 7, b"from the other");
        true
    });
    let window = whole(&heap().allocate(PAGE).expect("a heap buffer"));
    send(&other.socket, &window, LONG).expect("it goes");
    other.agrees();
    assert_eq!(read(&window, 7, 14), b"from the other");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn identity_is_equal_in_both_processes() {
    let _alone = alone();
    let buffers = [buffer(1), heap().allocate(PAGE).expect("a heap buffer")];
    let sent: Vec<_> = buffers
        .iter()
        .map(|b| (b.identity(), b.exporter().clone()))
        .collect();
    let other = Other::new(|socket| {
        sent.iter().all(|(identity, exporter)| {
            let window = receive(socket, LONG).expect("it comes");
            (window.dmabuf().identity(), window.dmabuf().exporter()) == (*identity, exporter)
        })
    });
    for buffer in &buffers {
        send(&other.socket, &whole(buffer), LONG).expect("it goes");
    }
    other.agrees();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn buffer_lives_until_the_last_process_closes() {
    let _alone = alone();
    let other = Other::new(|socket| {
        let window = receive(socket, LONG).expect("it comes");
        notify(socket);
        await_notice(socket) && word(&window, 4096) == 4096
    });
    let buffer = buffer(2);
    let inode = buffer.identity().file.inode;
    send(&other.socket, &whole(&buffer), LONG).expect("it goes");
    assert!(await_notice(&other.socket), "the other has it");
    buffer.close().expect("nothing here refers to it");
    assert!(listed(inode).is_some(), "the other process does");
    notify(&other.socket);
    other.agrees();
    assert_eq!(listed(inode), None, "it went with the other process");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn socket_keeps_buffer_in_flight() {
    let _alone = alone();
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let buffer = heap().allocate(PAGE).expect("a heap buffer");
    let inode = buffer.identity().file.inode;
    write(&whole(&buffer), 0, b"in flight");
    send(&near, &whole(&buffer), LONG).expect("it goes");
    buffer.close().expect("nothing here refers to it");
    assert!(listed(inode).is_some(), "the message does");
    let window = receive(&far, LONG).expect("it comes");
    assert_eq!(read(&window, 0, 9), b"in flight");
    drop(window);
    assert_eq!(listed(inode), None);
    send(&near, &whole(&heap().allocate(PAGE).expect("another")), LONG).expect("it goes");
    drop((near, far));
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn killed_process_releases_its_buffers() {
    let _alone = alone();
    let other = Other::new(|socket| {
        let window = receive(socket, LONG).expect("it comes");
        let cpu = window.attach_cpu("held").expect("a CPU view");
        let _access = cpu.writing().expect("access begins");
        notify(socket);
        await_notice(socket)
    });
    let buffer = buffer(1);
    let inode = buffer.identity().file.inode;
    send(&other.socket, &whole(&buffer), LONG).expect("it goes");
    assert!(await_notice(&other.socket), "the other has it");
    drop(buffer);
    assert!(listed(inode).is_some());
    drop(other);
    assert_eq!(listed(inode), None, "killed in the middle of an access");
}

/// The message that `send` sends.
fn message(window: &Window) -> [u8; MESSAGE_BYTES] {
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    send(&near, window, LONG).expect("it goes");
    let mut bytes = [0; MESSAGE_BYTES];
    receive_with_fds(&far, &mut bytes).expect("it comes");
    bytes
}

/// A window is sent with one byte of its message changed, and must be refused with nothing kept.
#[track_caller]
fn lie(at: usize, flip: u8) {
    let _alone = alone();
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let buffer = buffer(1);
    let mut bytes = message(&whole(&buffer));
    bytes[at] ^= flip;
    send_with_fds(&near, &bytes, &[buffer.as_fd()]).expect("it goes");
    let inode = buffer.identity().file.inode;
    drop(buffer);
    let error = receive(&far, LONG).expect_err("the descriptor is something else");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert_eq!(listed(inode), None, "nothing of a refused message stays open");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn false_exporter_in_message_is_rejected() {
    lie(12, 1);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn false_inode_in_message_is_rejected() {
    lie(16, 1);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn false_size_in_message_is_rejected() {
    lie(34, 1);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn window_outside_the_buffer_is_rejected() {
    lie(41, 0x10);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn file_instead_of_buffer_is_rejected() {
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    send_with_fds(&near, &message(&whole(&buffer(1))), &[null.as_fd()]).expect("it goes");
    refused(receive(&far, LONG), ErrorKind::Protocol, "/dev/null");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_window_is_fetched_from_its_process() {
    let _alone = alone();
    let buffer = buffer(2);
    let window = buffer.window(4096, 100).expect("inside");
    let offer = window.offer().expect("an offer").to_bytes();
    let other = Other::new(|socket| {
        use std::io::Read as _;
        let mut bytes = [0; OFFER_BYTES];
        { socket }.read_exact(&mut bytes).expect("it comes");
        let window = Offer::from_bytes(&bytes).fetch().expect("it is fetched");
        (window.offset(), window.len()) == (4096, 100)
            && window.dmabuf().exporter() == &Exporter::Udmabuf
            && word(&window, 0) == 4096
    });
    use std::io::Write as _;
    { &other.socket }.write_all(&offer).expect("it goes");
    other.agrees();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fetched_window_outlives_its_process() {
    let _alone = alone();
    let buffer = buffer(1);
    let fetched = whole(&buffer)
        .offer()
        .expect("an offer")
        .fetch()
        .expect("from ourselves");
    assert_eq!(fetched.dmabuf().identity(), buffer.identity());
    buffer.close().expect("the fetched one is another descriptor");
    assert_eq!(word(&fetched, 4), 4);
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn offer_of_closed_window_is_not_found() {
    let _alone = alone();
    let buffer = buffer(1);
    let offer = whole(&buffer).offer().expect("an offer");
    buffer.close().expect("closed");
    refused(offer.fetch(), ErrorKind::NotFound, "has closed its descriptor");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn offer_of_dead_process_is_reported() {
    let _alone = alone();
    let buffer = buffer(1);
    let mut bytes = whole(&buffer).offer().expect("an offer").to_bytes();
    let other = Other::new(|_| true);
    let pid = u32::try_from(other.pid.as_raw()).expect("a number");
    other.agrees();
    bytes[MESSAGE_BYTES..MESSAGE_BYTES + 4].copy_from_slice(&pid.to_le_bytes());
    refused(
        Offer::from_bytes(&bytes).fetch(),
        ErrorKind::Disconnected,
        "has ended",
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn offer_of_reused_descriptor_is_rejected() {
    let _alone = alone();
    let buffer = buffer(1);
    let offer = whole(&buffer).offer().expect("an offer");
    let number = buffer.as_fd().as_raw_fd();
    buffer.close().expect("closed");
    let next = heap().allocate(PAGE).expect("a heap buffer");
    // The lowest free number: the one that was closed, or one that the heap's node took and gave
    // back.
    let taken = [next.as_fd().as_raw_fd()].contains(&number);
    let filler: Vec<_> = std::iter::repeat_with(|| gaudi_sys::fd::duplicate(&next).expect("a duplicate"))
        .take(if taken { 0 } else { 4 })
        .collect();
    assert!(
        taken || filler.iter().any(|fd| fd.as_raw_fd() == number),
        "the number is in use again"
    );
    refused(offer.fetch(), ErrorKind::Protocol, "does not describe");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn a_malformed_offer_asks_no_process() {
    let mut bytes = whole(&buffer(1)).offer().expect("an offer").to_bytes();
    // A process that is not there: were it asked, the answer would be another.
    bytes[MESSAGE_BYTES..MESSAGE_BYTES + 4].copy_from_slice(&4_000_000_u32.to_le_bytes());
    assert_eq!(
        Offer::from_bytes(&bytes).fetch().expect_err("removed").kind(),
        ErrorKind::Disconnected
    );
    bytes[0] ^= 1;
    refused(
        Offer::from_bytes(&bytes).fetch(),
        ErrorKind::Protocol,
        "no dma-buf message",
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn fork_child_cannot_use_buffers() {
    let _alone = alone();
    let buffer = buffer(1);
    let window = whole(&buffer);
    let cpu = window.attach_cpu("parent").expect("a CPU view");
    let fence = gaudi_dmabuf::Directions::Read;
    let child = Other::new(|socket| {
        let kinds = [
            window.attach("child").map(drop),
            window.attach_cpu("child").map(drop),
            cpu.reading().map(drop),
            buffer.export_fence(fence).map(drop),
            buffer.set_name("child"),
            window.offer().map(drop),
            send(socket, &window, LONG),
        ];
        kinds.iter().all(|answer| {
            answer
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::Forked)
        })
    });
    child.agrees();
    assert_eq!(buffer.attachments(), ["parent"]);
    cpu.writing()
        .expect("access begins")
        .write(0, b"still ours")
        .expect("inside");
    assert_eq!(read(&window, 0, 10), b"still ours");
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn exec_inherits_no_buffer() {
    let _alone = alone();
    let (buffer, real) = (buffer(1), heap().allocate(PAGE).expect("a heap buffer"));
    let _received = whole(&real).offer().expect("an offer").fetch().expect("fetched");
    let output = Command::new("ls")
        .args(["-l", "/proc/self/fd"])
        .output()
        .expect("busybox has ls");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !stdout.is_empty());
    let marker = standin::MEMFD_NAME.to_string_lossy().into_owned();
    assert!(
        !stdout.contains("dmabuf") && !stdout.contains(&marker),
        "saw {stdout}"
    );
    drop(buffer);
}

fn listing() -> serde_json::Value {
    let output = Command::new("gaudi")
        .args(["dmabuf", "list", "--json"])
        .output()
        .expect("gaudi runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("one document")
}

fn row(listing: &serde_json::Value, inode: u64) -> Option<serde_json::Value> {
    let mut rows = listing["buffers"].as_array().expect("a list").iter();
    rows.find(|row| row["inode"] == inode).cloned()
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn list_shows_buffer_with_its_process() {
    let _alone = alone();
    let buffer = heap().allocate(3 * PAGE).expect("a heap buffer");
    buffer.set_name("for the list").expect("a name");
    let inode = buffer.identity().file.inode;
    let row = row(&listing(), inode).expect("it is there");
    assert_eq!(row["size_bytes"], 3 * PAGE);
    assert_eq!(row["exporter"], "system heap");
    assert_eq!(row["name"], "for the list");
    assert_eq!(row["holders"][0]["pid"], std::process::id());
    assert_eq!(row["holders"][0]["descriptors"], 1);
    drop(buffer);
    assert_eq!(
        self::row(&listing(), inode),
        None,
        "a closed buffer is not listed"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn the_list_counts_mappings_and_processes() {
    let _alone = alone();
    let other = Other::new(|socket| {
        let window = receive(socket, LONG).expect("it comes");
        let _cpu = window.attach_cpu("held").expect("a CPU view");
        notify(socket);
        await_notice(socket)
    });
    let buffer = buffer(1);
    send(&other.socket, &whole(&buffer), LONG).expect("it goes");
    assert!(await_notice(&other.socket), "the other has it");
    let row = row(&listing(), buffer.identity().file.inode).expect("it is there");
    let holders = row["holders"].as_array().expect("a list");
    let of = |pid: i64| {
        let found = holders.iter().find(|holder| holder["pid"] == pid);
        found.map(|holder| (holder["descriptors"].as_u64(), holder["mappings"].as_u64()))
    };
    assert_eq!(
        of(i64::from(std::process::id())),
        Some((Some(1), Some(0))),
        "{row}"
    );
    assert_eq!(
        of(i64::from(other.pid.as_raw())),
        Some((Some(1), Some(1))),
        "{row}"
    );
    notify(&other.socket);
    other.agrees();
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn list_names_what_the_kernel_lacks() {
    let listing = listing();
    let unread = listing["unread"].as_array().expect("a list");
    let whats: Vec<_> = unread.iter().filter_map(|one| one["what"].as_str()).collect();
    assert!(
        !whats
            .iter()
            .any(|what| what.contains("bufinfo") || what.contains("processes")),
        "root reads debugfs and all processes: {whats:?}"
    );
    let has = std::path::Path::new("/sys/kernel/dmabuf/buffers").exists();
    assert_eq!(
        whats.iter().any(|what| what.contains("sys/kernel/dmabuf")),
        !has,
        "{whats:?}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn list_marks_stand_ins() {
    let _alone = alone();
    let memory = gaudi_dmabuf::export::stand_in::memory(8 * PAGE).expect("memory");
    let buffer = gaudi_dmabuf::export::stand_in::export(&memory, PAGE, 2 * PAGE).expect("a stand-in");
    let row = row(&listing(), buffer.identity().file.inode).expect("it is there");
    assert_eq!(
        (row["stand_in"].as_bool(), row["size_bytes"].as_u64()),
        (Some(true), Some(2 * PAGE))
    );
    assert!(
        row["exporter"]
            .as_str()
            .is_some_and(|name| name.contains("no dma-buf")),
        "{row}"
    );
}
