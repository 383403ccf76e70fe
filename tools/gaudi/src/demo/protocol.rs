//! Messages between the two nodes beside the data: framed JSON over the socket that joins them.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gaudi_remote::Stream;
use gaudi_seam::{Error, ErrorKind, Result};
use gaudi_sys::{Errno, socket};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::args::Stage;
use crate::demo::report::NodeReport;

/// Raised when a message changes; both ends are one program, but one may be an older copy of it.
pub(crate) const VERSION: u32 = 1;
/// The longest message.
const MOST: usize = 64 << 10;
/// How long a node waits for the other without a sign of life.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// From A, before anything else.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Bytes of a slot; a chunk fills one.
    pub(crate) chunk_bytes: u64,
    /// Slots in flight.
    pub(crate) slots: u32,
    pub(crate) corrupt: Option<Stage>,
}

/// From A, while chunks travel.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Everything was sent, or what was found wrong: report.
    Finish {
        /// Whether all of it arrived as it was sent: only then is it kept.
        whole: bool,
    },
    /// A chunk arrived wrong: what does each of B's places hold?
    Examine {
        /// The chunk.
        index: u64,
    },
}

/// From B.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Device and NIC are open: the NICs' addresses can be exchanged.
    Ready,
    /// A chunk is delivered; the digest is of everything delivered so far.
    Delivered {
        /// The chunk.
        index: u64,
        /// SHA-256, hex.
        digest: String,
    },
    /// What B's places hold of a chunk, SHA-256 each.
    Places(Places),
    /// The end.
    Report(Box<NodeReport>),
    /// B cannot go on.
    Failed(Failure),
}

/// Text of a peer without control characters: they are commands to a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

/// An error on its way to the other process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// The error's kind, by name.
    kind: Option<String>,
    errno: Option<i32>,
    message: String,
    help: Option<String>,
}

impl Failure {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let ours = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
        Self {
            kind: ours.map(|error| error.kind().name().to_owned()),
            errno: ours.and_then(Error::errno).map(|errno| errno as i32),
            message: format!("{error:#}"),
            help: ours
                .and_then(Error::help)
                .or_else(|| crate::exit::io_help(error))
                .map(str::to_owned),
        }
    }

    /// The same error here, as one of `operation`.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        let kind = self.kind.and_then(|name| ErrorKind::of_name(&name));
        let mut error =
            Error::new(kind.unwrap_or(ErrorKind::Io), operation).because(printable(&self.message));
        if let Some(errno) = self.errno {
            error = error.with_errno(Errno::from_raw(errno));
        }
        if let Some(help) = self.help {
            error = error.helped_by(printable(&help));
        }
        error
    }
}

/// Digests of one chunk at B's three places.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Places {
    pub(crate) device: String,
    pub(crate) pinned: String,
    pub(crate) delivered: String,
}

/// One end of the control socket.
///
/// A message has one deadline: a peer that sends it in small pieces cannot extend it.
pub(crate) struct Control {
    stream: Box<dyn Stream>,
    patience: Duration,
}

/// The stream until a deadline, which is checked before every call.
pub(crate) struct Timed<'a> {
    stream: &'a mut Box<dyn Stream>,
    /// `None` where the deadline is beyond the clock.
    end: Option<Instant>,
}

impl Timed<'_> {
    fn arm(&self) -> io::Result<()> {
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_timeout(left)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        self.stream.read(into)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.arm()?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl Control {
    pub(crate) fn new(stream: impl Stream) -> anyhow::Result<Self> {
        stream
            .set_timeout(Some(PATIENCE))
            .context("setting the control socket's timeout")?;
        Ok(Self {
            stream: Box::new(stream),
            patience: PATIENCE,
        })
    }

    /// The stream for one message that another crate defines; the deadline starts now.
    pub(crate) fn stream(&mut self) -> Timed<'_> {
        Timed {
            end: Instant::now().checked_add(self.patience),
            stream: &mut self.stream,
        }
    }

    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<()> {
        const OP: &str = "send to the other node";
        let body = serde_json::to_vec(message)
            .map_err(|error| Error::new(ErrorKind::Protocol, OP).because(error.to_string()))?;
        let len = u32::try_from(body.len()).ok().filter(|&len| len as usize <= MOST);
        let len =
            len.ok_or_else(|| Error::new(ErrorKind::Protocol, OP).because("the message is too long"))?;
        tracing::debug!("to the other node: {}", String::from_utf8_lossy(&body));
        let mut frame = len.to_le_bytes().to_vec();
        frame.extend_from_slice(&body);
        self.stream().write_all(&frame).map_err(|error| lost(OP, &error))
    }

    /// Receives one message.
    ///
    /// # Errors
    /// - `TimedOut`: the whole message did not arrive in time.
    /// - `Disconnected`: the peer closed the stream.
    /// - `Protocol`: the bytes are not such a message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        const OP: &str = "receive from the other node";
        let mut stream = self.stream();
        let mut len = [0; 4];
        stream.read_exact(&mut len).map_err(|error| lost(OP, &error))?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MOST {
            return Err(Error::new(ErrorKind::Protocol, OP)
                .because("a message is too long")
                .saw(len, format!("at most {MOST}")));
        }
        let mut body = vec![0; len];
        stream.read_exact(&mut body).map_err(|error| lost(OP, &error))?;
        let text = String::from_utf8_lossy(&body);
        tracing::debug!("from the other node: {}", printable(&text));
        serde_json::from_slice(&body)
            .map_err(|error| Error::new(ErrorKind::Protocol, OP).because(error.to_string()))
    }

    /// Sets how long each message may take from now on.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Hands the other node one end of the NICs' cable.
    pub(crate) fn send_cable(&self, cable: impl AsFd) -> Result<()> {
        const OP: &str = "hand over the cable";
        match socket::send_with_fds(&self.stream, b"C", &[cable.as_fd()]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(Error::new(ErrorKind::Disconnected, OP)),
            Err(errno) => Err(Error::from_errno(OP, errno)),
        }
    }

    pub(crate) fn receive_cable(&self) -> Result<OwnedFd> {
        const OP: &str = "take the cable";
        self.stream
            .set_timeout(Some(self.patience))
            .map_err(|error| lost(OP, &error))?;
        let mut byte = [0; 1];
        let (count, mut fds) = socket::receive_with_fds(&self.stream, &mut byte)
            .map_err(|errno| Error::from_errno(OP, errno))?;
        match (count, byte, fds.pop(), fds.is_empty()) {
            (1, [b'C'], Some(fd), true) => Ok(fd),
            (0, ..) => {
                Err(Error::new(ErrorKind::Disconnected, OP).because("the other node closed the connection"))
            }
            _ => Err(Error::new(ErrorKind::Protocol, OP).because("the other node sent something else")),
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn lost(operation: &'static str, error: &io::Error) -> Error {
    let errno = error.raw_os_error().map(Errno::from_raw);
    let found = match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Disconnected, operation).because("the other node closed the connection")
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            return Error::timed_out(operation);
        }
        _ => Error::new(ErrorKind::Disconnected, operation).because(error.to_string()),
    };
    match errno {
        Some(errno) => found.with_errno(errno),
        None => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Control, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Control::new(a).unwrap(), b)
    }

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        let (mut a, b) = pair();
        let mut b = Control::new(b).unwrap();
        a.send(&Request::Examine { index: 7 }).unwrap();
        assert!(matches!(b.receive().unwrap(), Request::Examine { index: 7 }));
    }

    /// Documents of the generator that were messages: it would prove little if there were none.
    static UNDERSTOOD: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

    fn document() -> impl proptest::strategy::Strategy<Value = serde_json::Value> {
        use proptest::prelude::*;
        use serde_json::{Value, json};
        let number = || {
            prop_oneof![
                any::<u64>().prop_map(Value::from),
                any::<u32>().prop_map(Value::from),
                any::<i64>().prop_map(Value::from),
                any::<f64>().prop_map(Value::from),
            ]
        };
        let text = || {
            prop_oneof![
                "[a-z_-]{0,12}",
                Just("nic".to_owned()),
                Just("io".to_owned()),
                any::<String>()
            ]
            .prop_map(Value::from)
        };
        let value = prop_oneof![
            4 => number(),
            4 => text(),
            1 => any::<bool>().prop_map(Value::from),
            1 => Just(Value::Null),
            1 => prop::collection::vec(number(), 0..4).prop_map(Value::from),
        ];
        let pair = || (number(), value.clone());
        prop_oneof![
            (pair(), pair(), prop::option::of(text())).prop_map(|((a, b), (c, d), e)| {
                json!({"version": a, "bytes": c, "chunk_bytes": b, "slots": d, "corrupt": e})
            }),
            (0_u32..9, 0_u64..1 << 40, 1_u64..1 << 30, 1_u32..9).prop_map(|(version, bytes, chunk, slots)| {
                json!({"version": version, "bytes": bytes, "chunk_bytes": chunk, "slots": slots, "corrupt": null})
            }),
            any::<bool>().prop_map(|whole| json!({"Finish": {"whole": whole}})),
            value.clone().prop_map(|index| json!({"Examine": {"index": index}})),
            Just(json!("Ready")),
            (value.clone(), text()).prop_map(|(index, digest)| json!({"Delivered": {"index": index, "digest": digest}})),
            (text(), text(), value.clone())
                .prop_map(|(a, b, c)| json!({"Places": {"device": a, "pinned": b, "delivered": c}})),
            (prop::option::of(text()), prop::option::of(number()), text(), value.clone()).prop_map(|(kind, errno, message, help)| {
                json!({"Failed": {"kind": kind, "errno": errno, "message": message, "help": help}})
            }),
            (text(), value).prop_map(|(name, value)| match name {
                Value::String(name) => json!({name: value}),
                _ => value,
            }),
        ]
    }

    #[test]
    fn documents_are_understood_or_refused_and_many_are_messages() {
        any_document_is_understood_or_refused();
        let understood = UNDERSTOOD.load(std::sync::atomic::Ordering::Relaxed);
        // Some 85 of 512 in the mean.
        assert!(understood > 20, "{understood} documents were messages");
    }

    proptest::proptest! {
        #![proptest_config(gaudi_random::config(512))]

        /// Messages as a peer of another version, or a hostile one, would write them: right JSON,
        /// of the right names or nearly so, with values of every kind, or cut and changed at a
        /// byte.
        fn any_document_is_understood_or_refused(document in document(), cut in proptest::option::of(proptest::prelude::any::<proptest::sample::Index>()), change in proptest::option::of((proptest::prelude::any::<proptest::sample::Index>(), 0x20_u8..0x7f))) {
            let mut text = document.to_string().into_bytes();
            if let Some((at, byte)) = change {
                let at = at.index(text.len());
                text[at] = byte;
            }
            if let Some(cut) = cut {
                text.truncate(cut.index(text.len()) + 1);
            }
            for kind in 0..3 {
                let (mut a, mut b) = pair();
                b.write_all(&u32::try_from(text.len()).unwrap().to_le_bytes()).unwrap();
                b.write_all(&text).unwrap();
                drop(b);
                // What is understood says the same when it is said again.
                let again = match kind {
                    0 => a.receive::<Hello>().map(|message| serde_json::to_vec(&message).unwrap()),
                    1 => a.receive::<Request>().map(|message| serde_json::to_vec(&message).unwrap()),
                    _ => a.receive::<Reply>().map(|message| serde_json::to_vec(&message).unwrap()),
                };
                match again {
                    Ok(again) => {
                        let said = match kind {
                            0 => serde_json::from_slice::<Hello>(&again).map(|message| serde_json::to_vec(&message).unwrap()),
                            1 => serde_json::from_slice::<Request>(&again).map(|message| serde_json::to_vec(&message).unwrap()),
                            _ => serde_json::from_slice::<Reply>(&again).map(|message| serde_json::to_vec(&message).unwrap()),
                        };
                        proptest::prop_assert_eq!(said.unwrap(), again);
                        UNDERSTOOD.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    Err(error) => proptest::prop_assert_eq!(error.kind(), ErrorKind::Protocol),
                }
                proptest::prop_assert!(a.receive::<Reply>().is_err(), "nothing is left");
            }
        }

        /// What a peer sends is understood or refused; nothing waits for more than it said, and
        /// nothing is left open.
        #[test]
        fn any_bytes_are_understood_or_refused(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            for whole_length in [true, false] {
                let (mut a, mut b) = pair();
                if whole_length {
                    b.write_all(&u32::try_from(bytes.len()).unwrap().to_le_bytes()).unwrap();
                }
                b.write_all(&bytes).unwrap();
                drop(b);
                while a.receive::<Reply>().is_ok() {}
            }
            let (a, mut b) = pair();
            b.write_all(&bytes).unwrap();
            drop(b);
            proptest::prop_assert!(a.receive_cable().is_err(), "bytes alone are no cable");
        }
    }

    #[test]
    fn receive_times_out_while_bytes_trickle() {
        let (mut a, mut b) = pair();
        a.set_patience(Duration::from_millis(300));
        let trickle = std::thread::spawn(move || {
            let mut sent = 0;
            // 60 000 bytes at this rate take ten minutes.
            let frame = [60_000_u32.to_le_bytes().as_slice(), &[b' '; 1000]].concat();
            for byte in frame {
                if b.write_all(&[byte]).is_err() {
                    break;
                }
                sent += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            sent
        });
        let start = Instant::now();
        assert_eq!(a.receive::<Request>().unwrap_err().kind(), ErrorKind::TimedOut);
        let taken = start.elapsed();
        drop(a);
        assert!(trickle.join().unwrap() > 5, "bytes came all the time");
        assert!(
            taken < Duration::from_secs(3),
            "{taken:?} for a deadline of 300 ms"
        );
    }

    #[test]
    fn lengths_and_bytes_of_a_hostile_peer_are_refused() {
        let (mut a, mut b) = pair();
        b.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert_eq!(a.receive::<Request>().unwrap_err().kind(), ErrorKind::Protocol);
        let (mut a, mut b) = pair();
        b.write_all(&[3, 0, 0, 0, 0xff, 0xff, 0xff]).unwrap();
        assert_eq!(a.receive::<Request>().unwrap_err().kind(), ErrorKind::Protocol);
        let (mut a, b) = pair();
        drop(b);
        assert_eq!(
            a.receive::<Request>().unwrap_err().kind(),
            ErrorKind::Disconnected
        );
        let (a, mut b) = pair();
        b.write_all(b"X").unwrap();
        assert_eq!(
            a.receive_cable().unwrap_err().kind(),
            ErrorKind::Protocol,
            "a byte without a descriptor is no cable"
        );
    }
}
