//! Export users: called before exported memory is freed, and described by a failed close.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gaudi_device::{Buffer, Device, DeviceId, DeviceStatus, DmaBuf, ErrorKind, ExportUser};
use gaudi_spec::gaudi2::queue::PDMA_0_1;

fn open(name: &str) -> Device {
    Device::open(&format!("mock:gaudi2?name={name}").parse().expect("a spec")).expect("the mock opens")
}

/// Holds windows by allocation, as a cache of memory regions does.
#[derive(Default)]
struct Windows {
    windows: Mutex<Vec<(u64, gaudi_dmabuf::Window)>>,
    released: Mutex<Vec<u64>>,
}

impl ExportUser for Windows {
    fn release(&self, generation: u64) {
        self.released.lock().expect("whole").push(generation);
        let (freed, kept) = std::mem::take(&mut *self.windows.lock().expect("whole"))
            .into_iter()
            .partition(|(of, _)| *of == generation);
        *self.windows.lock().expect("whole") = kept;
        drop::<Vec<_>>(freed);
    }

    fn describe(&self, device: DeviceId) -> Option<String> {
        let windows = self.windows.lock().expect("whole");
        (!windows.is_empty()).then(|| format!("{} windows of {device}", windows.len()))
    }
}

impl Windows {
    fn hold(self: &Arc<Self>, buffer: &Buffer) {
        buffer.add_export_user(&(Arc::clone(self) as Arc<dyn ExportUser>));
        let window = buffer.window(..).expect("exported");
        self.windows
            .lock()
            .expect("whole")
            .push((buffer.generation(), window));
    }
}

#[test]
fn export_user_releases_before_free() {
    let device = open("user");
    let user = Arc::new(Windows::default());
    let (closed, dropped) = (device.alloc_exclusive(1), device.alloc_exclusive(1));
    let (closed, dropped) = (closed.expect("a buffer"), dropped.expect("a buffer"));
    let generations = [closed.generation(), dropped.generation()];
    user.hold(&closed);
    user.hold(&dropped);
    closed.close().expect("the user released its windows");
    drop(dropped);
    assert_eq!(*user.released.lock().expect("whole"), generations);
    // Memory that was never exported has no users.
    device
        .alloc_exclusive(1)
        .expect("a buffer")
        .close()
        .expect("free");
    assert_eq!(user.released.lock().expect("whole").len(), 2);
    device.close().expect("nothing lingers");
}

/// An export user that waits for another thread's use of the device before it releases.
struct Dependent {
    asks: Mutex<Sender<()>>,
    answers: Mutex<Receiver<()>>,
    waited: Mutex<Option<bool>>,
}

impl ExportUser for Dependent {
    fn release(&self, _: u64) {
        self.asks.lock().expect("whole").send(()).expect("it listens");
        let answer = self
            .answers
            .lock()
            .expect("whole")
            .recv_timeout(Duration::from_secs(10));
        *self.waited.lock().expect("whole") = Some(answer.is_ok());
    }

    fn describe(&self, _: DeviceId) -> Option<String> {
        None
    }
}

#[test]
fn export_user_may_wait_for_freeing_threads() {
    let device = open("user-waits");
    let (asks, asked) = channel();
    let (answer, answers) = channel();
    let user = Arc::new(Dependent {
        asks: Mutex::new(asks),
        answers: Mutex::new(answers),
        waited: Mutex::default(),
    });
    let (buffer, other) = (
        device.alloc_exclusive(4096).expect("a buffer"),
        device.alloc_exclusive(4096).expect("another"),
    );
    buffer.add_export_user(&(Arc::clone(&user) as Arc<dyn ExportUser>));
    drop(buffer.window(..).expect("exported"));
    let from = device.alloc(4096).expect("a source");
    let mut queue = device.queue(PDMA_0_1).expect("a queue");
    let completion = queue
        .copy(&buffer, &from)
        .and_then(|queue| queue.submit())
        .expect("submitted");
    // The submission has the last handle: it is freed by the thread that finds it done.
    drop(buffer);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            asked.recv().expect("the buffer is freed");
            other.close().expect("a buffer of its own");
            // The export user's wait may have timed out.
            let _ = answer.send(());
        });
        completion.wait(Duration::from_secs(60)).expect("done");
        drop(completion);
    });
    drop((queue, from));
    let waited = *user.waited.lock().expect("whole");
    assert_eq!(waited, Some(true), "the other thread waited for the export user");
    device.close().expect("nothing lingers");
}

#[test]
fn failed_close_reports_export_users() {
    let device = open("user-names");
    let user = Arc::new(Windows::default());
    let buffer = device.alloc_exclusive(1).expect("a buffer");
    user.hold(&buffer);
    let second = buffer.clone();
    let (buffer, error) = buffer.close().expect_err("there is another handle").into_parts();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("1 windows of"), "{error}");
    let (device, error) = device.close().expect_err("the buffer lives").into_parts();
    assert!(error.to_string().contains("1 windows of"), "{error}");
    // The device holds it weakly: a dropped user is not called.
    let export: DmaBuf = buffer.export(..).expect("exported");
    drop((second, user));
    let (buffer, error) = buffer.close().expect_err("a dma-buf lives").into_parts();
    assert!(!error.to_string().contains("windows of"), "{error}");
    drop(export);
    buffer.close().expect("free");
    device.close().expect("closed");
}

#[test]
fn generations_are_unique() {
    let (a, b) = (open("generation-a"), open("generation-b"));
    let mut seen = Vec::new();
    for device in [&a, &b, &a] {
        let buffer = device.alloc_exclusive(1).expect("a buffer");
        assert_eq!(buffer.clone().generation(), buffer.generation());
        seen.push(buffer.generation());
    }
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted, seen, "they grow");
}

#[test]
fn status_handle_answers_until_close() {
    let device = open("status+fault=submit:when=1:reset");
    let buffer = device.alloc(1).expect("a buffer");
    let status = buffer.status_handle();
    assert_eq!(status.query().expect("asked"), Some(DeviceStatus::OPERATIONAL));
    device.fill(&buffer, 1).expect_err("the fault resets");
    assert_eq!(
        status.query().expect("asked in a reset"),
        Some(DeviceStatus::IN_RESET)
    );
    drop((buffer, device));
    assert_eq!(
        status.query().expect("asked"),
        None,
        "it was closed: nothing held it"
    );
}
