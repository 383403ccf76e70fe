//! The decoder and the pointer follower terminate on any input, and their output is bounded.

use gaudi_capture::Limits;
use gaudi_capture::decode::Decoder;
use gaudi_capture::follow::follow;
use gaudi_capture::names::Names;
use gaudi_capture::record::{Event, IoctlRecord, Memory, Moment};
use gaudi_uapi::view::{CALLS, CallView, OTHERS};
use gaudi_uapi::{Era, Ioctl};
use proptest::prelude::*;

mod events;

/// Returns a request number from the tables, or a random one.
fn request() -> impl Strategy<Value = u32> {
    let mut known: Vec<u32> = OTHERS.iter().map(|other| other.request).collect();
    // RDMA_VERBS_IOCTL.
    known.push(gaudi_uapi::ioctl::iowr(0x1b, 1, 24));
    for ioctl in Ioctl::ALL {
        known.extend(Era::ALL.into_iter().filter_map(|era| era.request(ioctl)));
    }
    prop_oneof![4 => prop::sample::select(known), 1 => any::<u32>()]
}

/// Returns words that are small, addresses of recorded memory, or random.
fn argument() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        0..8u64,
        0..80u64,
        (0..4u64).prop_map(|page| page << 12),
        any::<u64>()
    ];
    let bytes = proptest::collection::vec(word, 0..9);
    (bytes, 0..8usize).prop_map(|(words, cut)| {
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.truncate(bytes.len().saturating_sub(cut));
        bytes
    })
}

fn memory() -> impl Strategy<Value = Vec<Memory>> {
    let piece = (0..4u64, any::<bool>(), argument(), any::<u64>());
    proptest::collection::vec(piece, 0..4).prop_map(|pieces| {
        let pieces = pieces.into_iter().map(|(page, exit, bytes, whole)| Memory {
            address: page << 12,
            at: if exit { Moment::Exit } else { Moment::Entry },
            bytes,
            whole,
        });
        pieces.collect()
    })
}

fn ioctl() -> impl Strategy<Value = IoctlRecord> {
    let result = prop_oneof![4 => Just(0), 1 => -600..20i64, 1 => any::<i64>()];
    (request(), argument(), argument(), memory(), result, 0..3i32).prop_map(
        |(request, input, output, memory, result, fd)| IoctlRecord {
            request,
            input,
            output,
            memory,
            result,
            fd,
            ..IoctlRecord::default()
        },
    )
}

const SMALL: Limits = Limits {
    items: 4,
    bytes: 8,
    values: 64,
};

proptest! {
    #![proptest_config(gaudi_random::config(512))]

    #[test]
    fn any_ioctls_decode(ioctls in proptest::collection::vec(ioctl(), 0..8)) {
        let mut decoder = Decoder::new(SMALL);
        for ioctl in ioctls {
            let decoded = decoder.decode(&Event::Ioctl(ioctl));
            let line = decoded.to_string();
            prop_assert!(line.len() < 16 << 10, "{} bytes: {}", line.len(), line);
            prop_assert!(line.chars().all(|c| c == '→' || (' '..='~').contains(&c)), "{}", line);
            let json = decoded.to_json().to_string();
            prop_assert!(json.len() < 32 << 10, "{}", json);
        }
    }

    #[test]
    fn any_events_decode(events in events::all()) {
        let mut decoder = Decoder::new(SMALL);
        for event in &events {
            let line = decoder.decode(event).to_string();
            prop_assert!(line.chars().all(|c| c == '→' || (' '..='~').contains(&c)), "{}", line);
        }
    }

    #[test]
    fn any_pointers_are_followed(ioctl in ioctl(), len in 0..9usize) {
        for at in [Moment::Entry, Moment::Exit] {
            let mut read = 0;
            let memory = follow(&Names::default(), &ioctl, at, &mut |_, wanted| {
                read += wanted;
                vec![0xff; wanted.min(len)]
            });
            prop_assert!(memory.iter().all(|piece| piece.at == at && piece.address != 0));
        }
    }
}

#[test]
fn followed_memory_is_what_decoding_needs() {
    // The pointers of each row refer to zeros. The decoder needs no other byte and uses every byte
    // read.
    let fill = |row: &CallView| {
        let request = row.era.unwrap_or(Era::AccelDrm).request(row.ioctl).unwrap();
        let mut input = vec![0; row.input.base.size];
        let mut set = |name: &str, value: u64| {
            let field = row
                .input
                .base
                .fields
                .iter()
                .find(|field| field.name == name)
                .unwrap();
            input[field.offset..field.offset + field.size]
                .copy_from_slice(&value.to_le_bytes()[..field.size]);
        };
        if let Some(op) = row.op {
            set("op", op.into());
        }
        if let Some((name, bits)) = row.flags {
            set(name, bits.into());
        }
        if row.ioctl == Ioctl::Cs {
            set("num_chunks_execute", 1);
        }
        // Store the address at the pointer's offset, in every view that starts there.
        input[..8].copy_from_slice(&0x1000u64.to_le_bytes());
        if row.ioctl == Ioctl::Cs {
            input[8..16].copy_from_slice(&0x2000u64.to_le_bytes());
        }
        IoctlRecord {
            request,
            output: input.clone(),
            input,
            ..IoctlRecord::default()
        }
    };
    for row in CALLS {
        let mut ioctl = fill(row);
        for at in [Moment::Entry, Moment::Exit] {
            let more = follow(&Names::default(), &ioctl, at, &mut |_, len| vec![0; len]);
            ioctl.memory.extend(more);
        }
        let decoded = Decoder::new(Limits::ALL).decode(&Event::Ioctl(ioctl));
        assert!(decoded.extra.is_empty(), "{decoded}");
        assert!(!decoded.to_string().contains("not recorded"), "{decoded}");
    }
}
