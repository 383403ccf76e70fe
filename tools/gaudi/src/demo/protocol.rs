//! Messages between the two nodes of the demo.

use serde::{Deserialize, Serialize};

use crate::args::Stage;
use crate::control::{self, Failure};
use crate::demo::report::NodeReport;

/// Incremented when a message changes: the two ends may be different versions of this program.
pub(crate) const VERSION: u32 = 1;

/// The first message, from A.
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
    /// Everything was sent, or a chunk arrived wrong. B answers with its report.
    Finish {
        /// Whether all of it arrived as it was sent: only then the saved file is kept.
        whole: bool,
    },
    /// A chunk arrived wrong. B answers with the digests of its places.
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
    /// SHA-256 of a chunk at B's places.
    Places(Places),
    /// The end.
    Report(Box<NodeReport>),
    /// B cannot continue.
    Failed(Failure),
}

impl control::Reply for Reply {
    const PEER: &'static str = "node B";

    fn settle(self) -> anyhow::Result<Option<Self>> {
        match self {
            Self::Failed(failure) => Err(failure.into_error(Self::PEER).into()),
            reply => Ok(Some(reply)),
        }
    }
}

/// Digests of one chunk at a node's three places; `delivered` is the memory of the program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Places {
    pub(crate) device: String,
    pub(crate) pinned: String,
    pub(crate) delivered: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;
    use gaudi::ErrorKind;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    /// Returns the head of a frame with a JSON body of this length.
    fn head(len: u32) -> Vec<u8> {
        let mut head = b"gvr\0\x01\0\x20\0".to_vec();
        head.extend(len.to_le_bytes());
        head
    }

    fn pair() -> (Control, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Control::new(a), b)
    }

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        let (mut a, b) = pair();
        let mut b = Control::new(b);
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
    fn documents_parse_or_fail() {
        any_document_is_understood_or_refused();
        let understood = UNDERSTOOD.load(std::sync::atomic::Ordering::Relaxed);
        // Some 85 of 512 in the mean.
        assert!(understood > 20, "{understood} documents were messages");
    }

    proptest::proptest! {
        #![proptest_config(gaudi_random::config(512))]

        /// Messages of a peer of another version, or of a hostile one: valid JSON with known or
        /// similar names and values of every kind, cut or changed at a byte.
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
                b.write_all(&head(u32::try_from(text.len()).unwrap())).unwrap();
                b.write_all(&text).unwrap();
                drop(b);
                // An accepted message is the same after it is encoded and decoded again.
                let again = match kind {
                    0 => a.receive::<Hello>().map(|message| serde_json::to_vec(&message).unwrap()),
                    1 => a.receive::<Request>().map(|message| serde_json::to_vec(&message).unwrap()),
                    _ => a.receive::<Reply>().map(|message| serde_json::to_vec(&message).unwrap()),
                };
                match again {
                    Ok(again) => {
                        let decoded = match kind {
                            0 => serde_json::from_slice::<Hello>(&again).map(|message| serde_json::to_vec(&message).unwrap()),
                            1 => serde_json::from_slice::<Request>(&again).map(|message| serde_json::to_vec(&message).unwrap()),
                            _ => serde_json::from_slice::<Reply>(&again).map(|message| serde_json::to_vec(&message).unwrap()),
                        };
                        proptest::prop_assert_eq!(decoded.unwrap(), again);
                        UNDERSTOOD.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    Err(error) => proptest::prop_assert_eq!(error.kind(), ErrorKind::Protocol),
                }
                proptest::prop_assert!(a.receive::<Reply>().is_err(), "nothing is left");
            }
        }

        /// Bytes of a peer are accepted or refused. No receive waits for more bytes than the head
        /// has announced.
        #[test]
        fn any_bytes_are_understood_or_refused(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            for whole_length in [true, false] {
                let (mut a, mut b) = pair();
                if whole_length {
                    b.write_all(&head(u32::try_from(bytes.len()).unwrap())).unwrap();
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
        a.set_timeout(Duration::from_secs(1));
        let trickle = std::thread::spawn(move || {
            let mut sent = 0;
            // 60 000 bytes at this rate take ten minutes.
            let frame = [head(60_000).as_slice(), &[b' '; 1000]].concat();
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
        assert!(taken < Duration::from_secs(10), "{taken:?} for a deadline of 1 s");
    }

    #[test]
    fn hostile_lengths_are_rejected() {
        let (mut a, mut b) = pair();
        b.write_all(&head(u32::MAX)).unwrap();
        assert_eq!(a.receive::<Request>().unwrap_err().kind(), ErrorKind::Protocol);
        let (mut a, mut b) = pair();
        b.write_all(&[head(3).as_slice(), &[0xff; 3]].concat()).unwrap();
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
