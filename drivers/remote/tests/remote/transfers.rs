//! Bytes arrive, by every way, at any place and length, and nothing is copied that need not be.

use std::sync::Arc;

use gaudi_device::HostBuffer;
use gaudi_remote::{Local, MemoryPath, Rights};
use proptest::prelude::*;

use crate::nodes::{MAX_WAIT, Setup, noise, pair};

const LEN: u64 = 1 << 20;

fn ways() -> [(&'static str, Setup, Setup); 4] {
    let small = Setup::staged().chunks(64 << 10, 4);
    [
        ("dd", Setup::direct(), Setup::direct()),
        ("ds", Setup::direct(), small.clone()),
        ("sd", small.clone(), Setup::direct()),
        ("ss", small.clone(), small.chunks(32 << 10, 3)),
    ]
}

#[test]
fn put_and_get_use_every_path_pair() {
    for (name, a, b) in ways() {
        let (mut a, mut b) = pair(&format!("every-{name}"), &a, &b);
        let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        let put = a.endpoint.put(&from, &remote).expect("begun");
        let done = a.endpoint.wait(put, MAX_WAIT).expect("put");
        assert_eq!(done.bytes, LEN);
        assert_eq!(
            (done.local.is_staged(), done.remote.is_staged()),
            (name.starts_with('s'), name.ends_with('s')),
            "{name}: the way that was meant"
        );
        a.endpoint.flush_remote(&remote, MAX_WAIT).expect("flushed");
        assert_eq!(b.bytes(&to), noise(1, LEN as usize), "{name}: put");

        b.device
            .write(&to, 0, &noise(3, LEN as usize))
            .expect("new bytes");
        let get = a.endpoint.get(&from, &remote).expect("begun");
        a.endpoint.wait(get, MAX_WAIT).expect("got");
        assert_eq!(a.bytes(&from), noise(3, LEN as usize), "{name}: get");
    }
}

/// A NIC may report a completion twice. The second one is not that of the slot's next chunk.
#[test]
fn doubled_completions_end_no_other_chunk() {
    for (name, mut a, b) in ways() {
        a.faults = "nic.completion:duplicate".parse().expect("a plan");
        let (mut a, mut b) = pair(&format!("twice-{name}"), &a, &b);
        let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        for seed in 3..9 {
            a.device
                .write(&from, 0, &noise(seed, LEN as usize))
                .expect("new bytes");
            let put = a.endpoint.put(&from, &remote).expect("begun");
            a.endpoint.wait(put, MAX_WAIT).expect("put");
            a.endpoint.flush_remote(&remote, MAX_WAIT).expect("flushed");
            assert!(b.bytes(&to) == noise(seed, LEN as usize), "{name}: put");
            b.device
                .write(&to, 0, &noise(!seed, LEN as usize))
                .expect("new bytes");
            let get = a.endpoint.get(&from, &remote).expect("begun");
            a.endpoint.wait(get, MAX_WAIT).expect("got");
            assert!(a.bytes(&from) == noise(!seed, LEN as usize), "{name}: get");
        }
    }
}

/// Lengths around a chunk: the last byte may be a chunk of its own.
#[test]
fn last_chunk_of_one_byte_is_copied() {
    for (name, a, b) in ways() {
        let (mut a, mut b) = pair(&format!("tail-{name}"), &a, &b);
        let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        // Chunks have 64 KiB, and 32 KiB where both ends stage.
        for (round, len) in [1, (32 << 10) + 1, (64 << 10) + 1, (128 << 10) + 1]
            .into_iter()
            .enumerate()
        {
            let (here, there) = (from.at(..len).expect("in it"), remote.at(0..len).expect("in it"));
            for put in [true, false] {
                let seed = 10 + 2 * round as u64 + u64::from(put);
                let (source, target) = if put { (&a, &b) } else { (&b, &a) };
                let (full, empty) = if put { (&from, &to) } else { (&to, &from) };
                let bytes = noise(seed, len as usize);
                source.device.write(full, 0, &bytes).expect("filled");
                let old: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
                target.device.write(empty, 0, &old).expect("filled");
                let end = &mut a.endpoint;
                let begun = if put {
                    end.put(&here, there.clone())
                } else {
                    end.get(&here, there.clone())
                };
                let done = end.wait(begun.expect("begun"), MAX_WAIT).expect("copied");
                assert_eq!(done.bytes, len, "{name}");
                let target = if put { &b } else { &a };
                assert!(
                    target.bytes(empty)[..len as usize] == bytes,
                    "{name}: {len} bytes, put {put}"
                );
            }
        }
    }
}

#[test]
fn chunks_fit_max_msg_sz() {
    let small = Setup {
        max_msg_sz: Some(64 << 10),
        ..Setup::direct()
    };
    let (mut a, mut b) = pair("max-msg", &small, &Setup::direct());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    let done = a.endpoint.wait(put, MAX_WAIT).expect("put");
    assert_eq!(done.chunks, LEN >> 16);
    assert!(b.bytes(&to) == noise(1, LEN as usize));
}

#[test]
fn processor_copies_no_bytes() {
    for (name, a, b) in ways() {
        let (mut a, mut b) = pair(&format!("cpu-{name}"), &a, &b);
        let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let before = (a.device.stats(), b.device.stats());
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        let put = a.endpoint.put(&from, &remote).expect("begun");
        a.endpoint.wait(put, MAX_WAIT).expect("put");
        let after = (a.device.stats(), b.device.stats());
        let (nic_a, nic_b) = (a.nic.stats(), b.nic.stats());
        assert_eq!((nic_a.cpu_copied_bytes, nic_b.cpu_copied_bytes), (0, 0), "{name}");
        assert_eq!(
            (before.0.cpu_copied_bytes, before.1.cpu_copied_bytes),
            (after.0.cpu_copied_bytes, after.1.cpu_copied_bytes),
            "{name}: by no other hand either"
        );
        assert_eq!(nic_a.nic_put_bytes, LEN, "{name}: once over the wire");
        let engines = |letter: u8, at: usize| if name.as_bytes()[at] == letter { LEN } else { 0 };
        assert_eq!(
            (nic_a.engine_bytes, nic_b.engine_bytes),
            (engines(b's', 0), engines(b's', 1)),
            "{name}: engines work on the staged side only"
        );
        assert_eq!(
            (
                after.0.bytes_to_host - before.0.bytes_to_host,
                after.1.bytes_to_device - before.1.bytes_to_device
            ),
            (nic_a.engine_bytes, nic_b.engine_bytes),
            "{name}: as the devices count"
        );
        // What the processor does copy is counted.
        a.endpoint
            .put_bytes(&[7; 1000], remote.at(0..1000).expect("in it"), MAX_WAIT)
            .expect("put");
        assert_eq!(a.nic.stats().cpu_copied_bytes, 1000, "{name}");
    }
}

#[test]
fn buffer_is_registered_once() {
    let (mut a, mut b) = pair("again", &Setup::direct(), &Setup::direct());
    let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let put = a.endpoint.put(&from, &remote).expect("begun");
    a.endpoint.wait(put, MAX_WAIT).expect("put");
    let before = a.nic.stats().registrations;
    let asked = || a.provider.port_queries.load(std::sync::atomic::Ordering::Relaxed);
    let asked_before = asked();
    for part in 0..16 {
        let range = part * 1000..part * 1000 + 500;
        let put = a
            .endpoint
            .put(
                from.at(range.clone()).expect("in it"),
                remote.at(range).expect("in it"),
            )
            .expect("begun");
        a.endpoint.wait(put, MAX_WAIT).expect("put");
    }
    assert_eq!(
        a.nic.stats().registrations,
        before,
        "parts of a buffer use its region"
    );
    assert_eq!(asked(), asked_before, "and the port is asked for nothing");
}

#[test]
fn several_transfers_are_under_way_at_once() {
    for (name, a, b) in ways() {
        let (mut a, mut b) = pair(&format!("several-{name}"), &a, &b);
        let (from, to) = (a.buffer(LEN, 1), b.buffer(LEN, 2));
        let remote = b.offer_to(&mut a, &to, Rights::BOTH);
        let quarter = LEN / 4;
        let puts: Vec<_> = (0..4)
            .map(|part| {
                let range = part * quarter..(part + 1) * quarter;
                a.endpoint
                    .put(
                        from.at(range.clone()).expect("in it"),
                        remote.at(range).expect("in it"),
                    )
                    .expect("begun")
            })
            .collect();
        for put in puts.into_iter().rev() {
            a.endpoint.wait(put, MAX_WAIT).expect("put");
        }
        assert_eq!(b.bytes(&to), noise(1, LEN as usize), "{name}");
    }
}

#[test]
fn both_ends_ask_at_the_same_time() {
    for (name, a, b) in ways() {
        let (mut a, mut b) = pair(&format!("both-{name}"), &a, &b);
        let (from_a, to_a) = (a.buffer(LEN, 1), a.buffer(LEN, 9));
        let (from_b, to_b) = (b.buffer(LEN, 2), b.buffer(LEN, 9));
        let at_b = b.offer_to(&mut a, &to_b, Rights::PUT);
        let at_a = a.offer_to(&mut b, &to_a, Rights::PUT);
        std::thread::scope(|scope| {
            let (end_a, end_b) = (&mut a.endpoint, &mut b.endpoint);
            let (from_a, from_b) = (&from_a, &from_b);
            let one = scope.spawn(move || {
                for _ in 0..4 {
                    let put = end_a.put(from_a, &at_b).expect("begun");
                    end_a.wait(put, MAX_WAIT).expect("put");
                }
            });
            for _ in 0..4 {
                let put = end_b.put(from_b, &at_a).expect("begun");
                end_b.wait(put, MAX_WAIT).expect("put");
            }
            one.join().expect("no panic");
        });
        assert_eq!(b.bytes(&to_b), noise(1, LEN as usize), "{name}: A → B");
        assert_eq!(a.bytes(&to_a), noise(2, LEN as usize), "{name}: B → A");
    }
}

#[test]
fn host_memory_is_put_and_got() {
    let (mut a, mut b) = pair("host", &Setup::direct(), &Setup::staged());
    let to = b.buffer(100_000, 2);
    let remote = b.offer_to(&mut a, &to, Rights::BOTH);
    let host = Arc::new(HostBuffer::new(100_000).expect("host memory"));
    host.write(0, &noise(5, 100_000)).expect("filled");
    let put = a.endpoint.put(&host, &remote).expect("begun");
    let done = a.endpoint.wait(put, MAX_WAIT).expect("put");
    assert_eq!(done.local, MemoryPath::Host);
    assert_eq!(b.bytes(&to), noise(5, 100_000));
    let part = Local::host(&host, 1..70_001).expect("in it");
    let get = a
        .endpoint
        .get(part, remote.at(30_000..100_000).expect("in it"))
        .expect("begun");
    a.endpoint.wait(get, MAX_WAIT).expect("got");
    let mut got = vec![0; 70_000];
    host.read(1, &mut got).expect("read");
    assert_eq!(got, noise(5, 100_000)[30_000..]);
    let mut small = [0; 3];
    a.endpoint
        .get_bytes(&mut small, remote.at(11..14).expect("in it"), MAX_WAIT)
        .expect("got");
    assert_eq!(small[..], noise(5, 14)[11..]);
}

#[test]
fn a_transfer_of_no_bytes_is_done() {
    let (mut a, mut b) = pair("none", &Setup::direct(), &Setup::direct());
    let (from, to) = (a.buffer(4096, 1), b.buffer(4096, 2));
    let remote = b.offer_to(&mut a, &to, Rights::PUT);
    let put = a
        .endpoint
        .put(from.at(5..5).expect("empty"), remote.at(9..9).expect("empty"))
        .expect("begun");
    assert_eq!(a.endpoint.wait(put, MAX_WAIT).expect("done").chunks, 0);
    assert_eq!(b.bytes(&to), noise(2, 4096));
}

fn any_range() -> impl Strategy<Value = (u64, u64, u64)> {
    (0..40_000_u64, 0..40_000_u64, 0..60_000_u64)
}

proptest! {
    #![proptest_config(gaudi_random::config(8))]

    /// Any places, lengths and chunks, by every pair of ways: what is in the range arrives, what is
    /// not stays.
    #[test]
    fn odd_ranges_arrive_and_their_neighbours_stay(
        (from_at, to_at, len) in any_range(), chunk in 1_u32..5, depth in 1_u32..17, way in 0_usize..4, get: bool,
    ) {
        const ALL: usize = 100_000;
        let staged = Setup::staged().chunks(chunk * 4096, depth);
        let choose = |staged_here| if staged_here { staged.clone() } else { Setup::direct() };
        let (mut a, mut b) = pair("odd", &choose(way & 1 != 0), &choose(way & 2 != 0));
        let (ours, theirs) = (a.buffer(ALL as u64, 1), b.buffer(ALL as u64, 2));
        let remote = b.offer_to(&mut a, &theirs, Rights::BOTH);
        let local = ours.at(from_at..from_at + len).unwrap();
        let range = remote.at(to_at..to_at + len).unwrap();
        let transfer = if get { a.endpoint.get(local, range) } else { a.endpoint.put(local, range) }.unwrap();
        a.endpoint.wait(transfer, MAX_WAIT).unwrap();
        let (mut want_a, mut want_b) = (noise(1, ALL), noise(2, ALL));
        let (here, there) = (from_at as usize..(from_at + len) as usize, to_at as usize..(to_at + len) as usize);
        if get {
            want_a[here].copy_from_slice(&noise(2, ALL)[there]);
        } else {
            want_b[there].copy_from_slice(&noise(1, ALL)[here]);
        }
        prop_assert!(a.bytes(&ours) == want_a, "ours");
        prop_assert!(b.bytes(&theirs) == want_b, "theirs");
    }
}
