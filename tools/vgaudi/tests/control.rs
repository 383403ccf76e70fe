//! Clients of the control socket, idle ones and rude ones.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gaudi_model::pci::ModelDevice;
use gaudi_model::pci::PciConfig;
use vgaudi::control;

/// Longer than any answer takes, and shorter than a client may be silent.
const SOON: Duration = Duration::from_secs(20);

/// What comes back for these bytes until the server hangs up.
fn answers(bytes: &[u8]) -> Vec<String> {
    let card = ModelDevice::new(PciConfig::default()).expect("a card");
    let (here, there) = UnixStream::pair().expect("sockets");
    here.set_read_timeout(Some(SOON)).expect("set");
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = control::talk(&card, &there);
            let _ = there.shutdown(Shutdown::Both);
        });
        (&here).write_all(bytes).expect("sent");
        here.shutdown(Shutdown::Write).expect("that was all");
        let mut answers = String::new();
        let _ = (&here).read_to_string(&mut answers);
        answers.lines().map(str::to_owned).collect()
    })
}

#[test]
fn requests_are_split_at_line_ends() {
    let answers = answers(b"counters\nburn\n\xff\xfe\nunknown\nhang");
    assert_eq!(
        answers.len(),
        4,
        "one each; what was cut off is none: {answers:?}"
    );
    assert!(answers[0].contains("register_reads") && answers[3].contains("unknown"));
    assert!(answers[1].contains("error") && answers[2].contains("error"));
}

#[test]
fn overlong_line_gets_one_error() {
    let mut long = vec![b'x'; 4096];
    long.extend(b" hang\nhang\n");
    let answers = answers(&long);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert!(answers[0].contains("end of line"));
    // The longest that has one is answered.
    let mut long = vec![b'x'; 4095];
    long.push(b'\n');
    long.extend(b"counters\n");
    assert_eq!(answers_of(&long), 2);
}

fn answers_of(bytes: &[u8]) -> usize {
    answers(bytes).len()
}

/// A listener with a card behind it, for as long as the test runs.
fn served(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("control");
    let listener = UnixListener::bind(&path).expect("a socket");
    let card = Arc::new(ModelDevice::new(PciConfig::default()).expect("a card"));
    thread::spawn(move || control::serve(&card, &listener));
    path
}

fn ask(stream: &UnixStream) -> String {
    stream.set_read_timeout(Some(SOON)).expect("set");
    // One that is full hangs up without reading.
    let _ = (&mut &*stream).write_all(b"counters\n");
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .expect("an answer soon");
    answer
}

#[test]
fn idle_clients_do_not_block_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = served(&folder);
    let connect = || UnixStream::connect(&path).expect("it listens");
    let mut idle: Vec<_> = (0..15).map(|_| connect()).collect();
    assert!(ask(&connect()).contains("register_reads"), "the 16th is answered");
    // Its place is freed once its thread has seen the disconnect.
    let begin = Instant::now();
    idle.push(loop {
        let next = connect();
        if ask(&next).contains("register_reads") {
            break next;
        }
        assert!(begin.elapsed() < SOON, "the place is freed");
        thread::sleep(Duration::from_millis(5));
    });
    assert!(ask(&connect()).contains("16 clients"), "the 17th gets the reason");
    for client in &idle {
        assert!(ask(client).contains("register_reads"), "all have their place");
    }
}

#[test]
fn faults_are_armed_counted_and_disarmed() {
    let requests = "fault chip.firmware:hang;chip.packet:when=9:lose\nfaults\nheal\nfaults\n\
                    fault submit:lose\nfault chip.dma:eror\n";
    let answers = answers(requests.as_bytes());
    assert_eq!(answers[0], r#"{"armed":2}"#);
    let rule = r#"{"fired":0,"rule":"chip.firmware:hang","seen":0}"#;
    let sorted: serde_json::Value = serde_json::from_str(&answers[1]).expect("JSON");
    let wanted: serde_json::Value = serde_json::from_str(rule).expect("JSON");
    assert_eq!(sorted["rules"][0], wanted);
    assert!(answers[3].contains("[]"), "no rule is left: {}", answers[3]);
    for (answer, cause) in [
        (&answers[4], "not for an event of the chip"),
        (&answers[5], "column 10"),
    ] {
        assert!(answer.contains("error") && answer.contains(cause), "{answer}");
    }
}
