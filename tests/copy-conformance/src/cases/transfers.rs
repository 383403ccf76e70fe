//! Puts and gets, completions, order and back-pressure.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gaudi_copy::{
    AllocOptions, Attached, Completion, Deadline, ErrorKind, Local, Memory, MemoryDomain, Posted, Transport,
};

use super::register::{mapping, register};
use crate::suite::{Fixture, cases, kind, pattern, read_back, write};

const NEVER: Deadline = Deadline::NEVER;

struct Bench {
    domain: MemoryDomain,
    device: Memory,
    host: Memory,
    target: Attached,
    transport: Transport,
}

/// A card with `len` bytes of device and of host memory.
fn bench(fixture: &Fixture, len: u64) -> Bench {
    let domain = fixture.domain();
    let device = domain.alloc(len, AllocOptions::PRIVATE).expect("allocated");
    let host = domain.alloc_host(len as usize).expect("allocated");
    Bench {
        target: Attached::to(&device),
        transport: Transport::new(&domain).expect("a transport"),
        domain,
        device,
        host,
    }
}

impl Bench {
    fn at(&self, offset: u64) -> u64 {
        self.device.address() + offset
    }

    fn seen(&self, offset: u64, len: usize) -> Vec<u8> {
        read_back(&self.domain, &self.device, offset, len)
    }

    fn host_bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.host.read(offset, &mut bytes).expect("read");
        bytes
    }
}

cases! { "transfers";
    fn put_short_of_every_size(fixture) {
        let mut bench = bench(fixture, 8192);
        for len in [1, 2, 7, 8, 9, 63, 64, 127, 128, 129, 1000, 2047, 2048] {
            let at = bench.at(len as u64 % 13);
            bench.transport.put_short(&pattern(len, len as u8), &bench.target, at).expect("posted");
            bench.transport.flush_wait(NEVER).expect("flushed");
            assert_eq!(bench.seen(len as u64 % 13, len), pattern(len, len as u8), "{len}");
        }
    }
    fn put_short_of_nothing_is_done(fixture) {
        let mut bench = bench(fixture, 64);
        let at = bench.at(64);
        bench.transport.put_short(&[], &bench.target, at).expect("done");
        assert_eq!(bench.transport.flush(None).expect("flushed"), Posted::Done);
    }
    fn put_short_past_limit_is_refused(fixture) {
        let mut bench = bench(fixture, 8192);
        let at = bench.at(0);
        let seen = kind(bench.transport.put_short(&[0; 2049], &bench.target, at));
        assert_eq!(seen, ErrorKind::InvalidInput);
    }
    fn put_short_reuses_its_source(fixture) {
        let mut bench = bench(fixture, 4096);
        let mut bytes = pattern(100, 1);
        for index in 0..20 {
            let at = bench.at(index * 100);
            bytes.fill(index as u8);
            bench.transport.put_short(&bytes, &bench.target, at).expect("posted");
        }
        bench.transport.flush_wait(NEVER).expect("flushed");
        for index in 0..20 {
            assert_eq!(bench.seen(index * 100, 100), vec![index as u8; 100]);
        }
    }
    fn progress_submits_short_puts(fixture) {
        let mut bench = bench(fixture, 4096);
        let at = bench.at(0);
        let submissions = |bench: &Bench| bench.domain.device().expect("open").stats().submissions;
        let before = submissions(&bench);
        bench.transport.put_short(b"batched", &bench.target, at).expect("posted");
        assert_eq!(submissions(&bench), before, "it waits for others");
        bench.transport.progress().expect("progress");
        assert_eq!(submissions(&bench), before + 1);
        bench.transport.flush_wait(NEVER).expect("flushed");
        assert_eq!(bench.seen(0, 7), b"batched");
    }
    fn short_puts_share_submissions(fixture) {
        let mut bench = bench(fixture, 4096);
        let before = bench.domain.device().expect("open").stats().submissions;
        for index in 0..32 {
            let at = bench.at(index * 8);
            bench.transport.put_short(&[index as u8; 8], &bench.target, at).expect("posted");
        }
        bench.transport.flush_wait(NEVER).expect("flushed");
        let after = bench.domain.device().expect("open").stats().submissions;
        assert_eq!(after - before, 1);
        assert_eq!(bench.seen(31 * 8, 8), [31; 8]);
    }
    fn later_short_put_wins(fixture) {
        let mut bench = bench(fixture, 4096);
        let at = bench.at(0);
        for value in 0..100_u8 {
            bench.transport.put_short(&[value; 16], &bench.target, at).expect("posted");
        }
        bench.transport.flush_wait(NEVER).expect("flushed");
        assert_eq!(bench.seen(0, 16), [99; 16]);
    }
    fn get_short_reads_at_any_offset(fixture) {
        let mut bench = bench(fixture, 8192);
        write(&bench.domain, &bench.device, 0, &pattern(8192, 3));
        for (offset, len) in [(0, 1), (1, 7), (127, 2), (4095, 2048), (8191, 1)] {
            let mut bytes = vec![0; len];
            let at = bench.at(offset);
            bench.transport.get_short(&mut bytes, &bench.target, at).expect("read");
            assert_eq!(bytes, pattern(8192, 3)[offset as usize..][..len]);
        }
    }
    fn put_bcopy_packs_what_it_returns(fixture) {
        let mut bench = bench(fixture, 65536);
        write(&bench.domain, &bench.device, 0, &[9; 200]);
        let at = bench.at(0);
        let packed = bench
            .transport
            .put_bcopy(1000, |bytes| { bytes[..100].fill(5); 100 }, &bench.target, at)
            .expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        assert_eq!(packed, 100);
        assert_eq!(bench.seen(0, 200), [[5; 100], [9; 100]].concat());
    }
    fn put_bcopy_of_limit_and_past_it(fixture) {
        let mut bench = bench(fixture, 1 << 20);
        let (at, most) = (bench.at(3), bench.domain.config().bcopy_bytes);
        let bytes = pattern(most, 4);
        let source = bytes.clone();
        bench
            .transport
            .put_bcopy(most, |to| { to.copy_from_slice(&source); most }, &bench.target, at)
            .expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        assert_eq!(bench.seen(3, most), bytes);
        let seen = kind(bench.transport.put_bcopy(most + 1, |_| 0, &bench.target, at));
        assert_eq!(seen, ErrorKind::InvalidInput);
    }
    fn empty_packs_use_no_chunk(fixture) {
        let mut bench = bench(fixture, 65536);
        let (at, most) = (bench.at(0), bench.domain.config().bcopy_bytes);
        // Together more bytes than all chunks have.
        for _ in 0..200 {
            let packed = bench.transport.put_bcopy(most, |_| 0, &bench.target, at);
            assert_eq!(packed.expect("posted"), 0);
        }
    }
    fn pack_that_returns_too_much_is_cut(fixture) {
        let mut bench = bench(fixture, 4096);
        let at = bench.at(0);
        let packed = bench.transport.put_bcopy(10, |to| { to.fill(1); 5000 }, &bench.target, at);
        assert_eq!(packed.expect("posted"), 10);
    }
    fn get_bcopy_unpacks_in_progress(fixture) {
        let mut bench = bench(fixture, 8192);
        write(&bench.domain, &bench.device, 0, &pattern(8192, 6));
        let (sum, completion) = (Arc::new(AtomicUsize::new(0)), Completion::new(1));
        let (into, at) = (Arc::clone(&sum), bench.at(100));
        bench
            .transport
            .get_bcopy(
                5000,
                move |bytes| {
                    let right = bytes == &pattern(8192, 6)[100..5100];
                    into.store(if right { bytes.len() } else { 1 }, Ordering::Relaxed);
                },
                &bench.target,
                at,
                Some(&completion),
            )
            .expect("posted");
        while !completion.is_done() {
            bench.transport.progress().expect("progress");
        }
        assert_eq!((sum.load(Ordering::Relaxed), completion.result()), (5000, Some(Ok(()))));
    }
    fn zcopy_both_ways_of_many_sizes(fixture) {
        let mut bench = bench(fixture, 3 << 20);
        for len in [1_u64, 127, 4096, 65_537, 1 << 20, (3 << 20) - 11] {
            let bytes = pattern(len as usize, len as u8);
            bench.host.write(5, &bytes).expect("written");
            let local = Local::at(&bench.host, 5, len).expect("inside");
            let at = bench.at(11);
            bench.transport.put_zcopy(&[local], &bench.target, at, None).expect("posted");
            bench.transport.flush_wait(NEVER).expect("flushed");
            bench.host.write(5, &vec![0; len as usize]).expect("cleared");
            bench.transport.get_zcopy(&[local], &bench.target, at, None).expect("posted");
            bench.transport.flush_wait(NEVER).expect("flushed");
            assert_eq!(bench.host_bytes(5, len as usize), bytes, "{len}");
        }
    }
    fn zcopy_reports_progress_and_completes(fixture) {
        let mut bench = bench(fixture, 4096);
        let completion = Completion::new(2);
        for offset in [0, 2048] {
            let local = Local::at(&bench.host, offset, 2048).expect("inside");
            let at = bench.at(offset);
            let posted = bench.transport.put_zcopy(&[local], &bench.target, at, Some(&completion));
            assert_eq!(posted.expect("posted"), Posted::InProgress);
        }
        assert_eq!(completion.result(), None, "nothing made progress");
        while !completion.is_done() {
            bench.transport.progress().expect("progress");
        }
        assert_eq!(completion.result(), Some(Ok(())));
    }
    fn zcopy_of_nothing_is_done(fixture) {
        let mut bench = bench(fixture, 64);
        let completion = Completion::new(2);
        let at = bench.at(64);
        let empty = Local::at(&bench.host, 64, 0).expect("inside");
        for iov in [&[][..], &[empty, empty]] {
            let posted = bench.transport.put_zcopy(iov, &bench.target, at, Some(&completion));
            assert_eq!(posted.expect("done"), Posted::Done);
        }
        assert!(completion.is_done());
    }
    fn iov_gathers_and_scatters(fixture) {
        let mut bench = bench(fixture, 1 << 20);
        bench.host.write(0, &pattern(1 << 20, 2)).expect("written");
        let places = [(1000, 10), (0, 4096), (500_000, 1), (500_001, 70_000), (7, 0), (300_000, 4096)];
        let iov: Vec<_> = places
            .iter()
            .map(|&(offset, len)| Local::at(&bench.host, offset, len).expect("inside"))
            .collect();
        let at = bench.at(3);
        bench.transport.put_zcopy(&iov, &bench.target, at, None).expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        let whole = pattern(1 << 20, 2);
        let wanted: Vec<u8> = places
            .iter()
            .flat_map(|&(offset, len)| &whole[offset as usize..][..len as usize])
            .copied()
            .collect();
        assert_eq!(bench.seen(3, wanted.len()), wanted);
        bench.host.write(0, &vec![0; 1 << 20]).expect("cleared");
        bench.transport.get_zcopy(&iov, &bench.target, at, None).expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        for (offset, len) in places {
            assert_eq!(bench.host_bytes(offset, len as usize), whole[offset as usize..][..len as usize]);
        }
    }
    fn iov_of_several_memories(fixture) {
        let mut bench = bench(fixture, 4096);
        let map = mapping(4096);
        let other = register(&bench.domain, &map, 10, 100);
        map.write(10, &[2; 100]).expect("written");
        bench.host.write(0, &[1; 50]).expect("written");
        let one = Local::at(&bench.host, 0, 50).expect("inside");
        let iov = [one, Local::all(&other), one];
        let at = bench.at(0);
        bench.transport.put_zcopy(&iov, &bench.target, at, None).expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        let wanted = [&[1; 50][..], &[2; 100], &[1; 50]].concat();
        assert_eq!(bench.seen(0, 200), wanted);
        bench.domain.deregister(other).expect("deregistered");
    }
    fn iov_fills_several_submissions(fixture) {
        let mut bench = bench(fixture, 1 << 20);
        bench.host.write(0, &pattern(1 << 20, 9)).expect("written");
        // Every second 64 bytes, backwards: no two entries join.
        let iov: Vec<_> = (0..8192_u64)
            .rev()
            .map(|index| Local::at(&bench.host, index * 128, 64).expect("inside"))
            .collect();
        let at = bench.at(0);
        let completion = Completion::new(1);
        bench.transport.put_zcopy(&iov, &bench.target, at, Some(&completion)).expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        assert_eq!(completion.result(), Some(Ok(())));
        let whole = pattern(1 << 20, 9);
        for index in [0_u64, 1, 4000, 8191] {
            let from = (8191 - index) as usize * 128;
            assert_eq!(bench.seen(index * 64, 64), whole[from..from + 64], "{index}");
        }
    }
    fn iov_entry_past_memory_is_refused(fixture) {
        let bench = bench(fixture, 64);
        for (offset, len) in [(0, 65), (64, 1), (u64::MAX, 2)] {
            assert_eq!(kind(Local::at(&bench.host, offset, len)), ErrorKind::BadAddress);
        }
        let before = bench.host.address() - 1;
        assert_eq!(kind(Local::of_address(&bench.host, before, 1)), ErrorKind::BadAddress);
    }
    fn range_past_key_is_refused(fixture) {
        let mut bench = bench(fixture, 4096);
        let (base, transport, target) = (bench.at(0), &mut bench.transport, &bench.target);
        for (address, len) in [(base - 1, 2), (base + 4095, 2), (base + 4096, 1), (u64::MAX, 2)] {
            assert_eq!(kind(transport.put_short(&[0; 2][..len], target, address)), ErrorKind::BadAddress);
            assert_eq!(kind(transport.put_bcopy(len, |_| len, target, address)), ErrorKind::BadAddress);
            assert_eq!(kind(transport.get_short(&mut [0; 2][..len], target, address)), ErrorKind::BadAddress);
            assert_eq!(kind(transport.get_bcopy(len, |_| {}, target, address, None)), ErrorKind::BadAddress);
            let local = Local::at(&bench.host, 0, len as u64).expect("inside");
            assert_eq!(kind(transport.put_zcopy(&[local], target, address, None)), ErrorKind::BadAddress);
            assert_eq!(kind(transport.get_zcopy(&[local], target, address, None)), ErrorKind::BadAddress);
        }
    }
    fn host_to_host_is_refused_by_name(fixture) {
        let mut bench = bench(fixture, 4096);
        let other = bench.domain.alloc_host(4096).expect("allocated");
        let target = Attached::to(&other);
        let (at, transport) = (other.address(), &mut bench.transport);
        let error = transport.put_zcopy(&[Local::all(&bench.host)], &target, at, None).expect_err("host to host");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("host memory to host memory"), "{error}");
        assert_eq!(kind(transport.get_zcopy(&[Local::all(&bench.host)], &target, at, None)), ErrorKind::Unsupported);
        assert_eq!(kind(transport.put_short(b"x", &target, at)), ErrorKind::Unsupported);
        assert_eq!(kind(transport.get_short(&mut [0], &target, at)), ErrorKind::Unsupported);
        assert_eq!(kind(transport.put_bcopy(1, |_| 1, &target, at)), ErrorKind::Unsupported);
        assert_eq!(kind(transport.get_bcopy(1, |_| {}, &target, at, None)), ErrorKind::Unsupported);
    }
    fn device_memory_is_source_for_host_key(fixture) {
        let mut bench = bench(fixture, 4096);
        write(&bench.domain, &bench.device, 0, &pattern(4096, 8));
        let target = Attached::to(&bench.host);
        let at = bench.host.address();
        bench.transport.put_zcopy(&[Local::all(&bench.device)], &target, at, None).expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        assert_eq!(bench.host_bytes(0, 4096), pattern(4096, 8));
    }
    fn copy_within_card(fixture) {
        let mut bench = bench(fixture, 1 << 20);
        let other = bench.domain.alloc(1 << 20, AllocOptions::default()).expect("allocated");
        write(&bench.domain, &other, 0, &pattern(5000, 1));
        let at = bench.at(77);
        let local = Local::at(&other, 0, 5000).expect("inside");
        bench.transport.put_zcopy(&[local], &bench.target, at, None).expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        assert_eq!(bench.seen(77, 5000), pattern(5000, 1));
    }
    fn iov_within_card(fixture) {
        let mut bench = bench(fixture, 8192);
        let other = bench.domain.alloc(8192, AllocOptions::PRIVATE).expect("allocated");
        write(&bench.domain, &other, 0, &pattern(8192, 1));
        let iov = [(4096, 100), (0, 100)].map(|(at, len)| Local::at(&other, at, len).expect("inside"));
        let at = bench.at(0);
        bench.transport.put_zcopy(&iov, &bench.target, at, None).expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        let whole = pattern(8192, 1);
        assert_eq!(bench.seen(0, 200), [&whole[4096..4196], &whole[..100]].concat());
    }
    fn overlapping_ends_are_refused(fixture) {
        let mut bench = bench(fixture, 8192);
        let at = bench.at(50);
        let local = Local::at(&bench.device, 0, 100).expect("inside");
        let seen = kind(bench.transport.put_zcopy(&[local], &bench.target, at, None));
        assert_eq!(seen, ErrorKind::InvalidInput);
        let apart = Local::at(&bench.device, 4096, 10).expect("inside");
        let seen = kind(bench.transport.put_zcopy(&[apart, local], &bench.target, at, None));
        assert_eq!(seen, ErrorKind::InvalidInput, "the second entry of an iov");
        bench.transport.put_zcopy(&[apart], &bench.target, at, None).expect("the transport works");
    }
    fn copy_between_cards_is_staged(fixture) [Second] {
        let mut bench = bench(fixture, 5 << 20);
        let other = fixture.other();
        let far = other.alloc(5 << 20, AllocOptions::PRIVATE).expect("allocated");
        let bytes = pattern(5 << 20, 3);
        bench.host.write(0, &bytes).expect("written");
        let at = bench.at(0);
        bench.transport.put_zcopy(&[Local::all(&bench.host)], &bench.target, at, None).expect("posted");
        let target = Attached::to(&far);
        let completion = Completion::new(1);
        let local = Local::at(&bench.device, 1, (5 << 20) - 1).expect("inside");
        let posted = bench.transport.put_zcopy(&[local], &target, far.address(), Some(&completion));
        assert_eq!(posted.expect("staged"), Posted::Done);
        assert_eq!(completion.result(), Some(Ok(())));
        assert_eq!(bench.transport.stats().staged_bytes, (5 << 20) - 1);
        assert_eq!(read_back(&other, &far, 0, 3000), bytes[1..3001]);
        let end = (5 << 20) - 3001;
        assert_eq!(read_back(&other, &far, end as u64, 3000), bytes[end + 1..end + 3001]);
    }
    fn get_from_other_card_is_staged(fixture) [Second] {
        let mut bench = bench(fixture, 4096);
        let other = fixture.other();
        let far = other.alloc(4096, AllocOptions::PRIVATE).expect("allocated");
        write(&other, &far, 0, &pattern(4096, 4));
        let target = Attached::to(&far);
        bench
            .transport
            .get_zcopy(&[Local::all(&bench.device)], &target, far.address(), None)
            .expect("staged");
        assert_eq!(bench.seen(0, 4096), pattern(4096, 4));
        bench
            .transport
            .get_zcopy(&[Local::all(&bench.host)], &target, far.address(), None)
            .expect("staged");
        assert_eq!(bench.host_bytes(0, 4096), pattern(4096, 4));
    }
    fn short_put_to_other_card_is_refused(fixture) [Second] {
        let mut bench = bench(fixture, 64);
        let far = fixture.other().alloc(64, AllocOptions::PRIVATE).expect("allocated");
        let seen = kind(bench.transport.put_short(b"x", &Attached::to(&far), far.address()));
        assert_eq!(seen, ErrorKind::Unsupported);
    }
    fn fence_orders_directions(fixture) {
        let mut bench = bench(fixture, 1 << 20);
        for round in 0..20_u8 {
            bench.host.write(0, &vec![round; 1 << 20]).expect("written");
            let at = bench.at(0);
            let all = Local::all(&bench.host);
            bench.transport.put_zcopy(&[all], &bench.target, at, None).expect("posted");
            bench.transport.fence();
            let mut last = [0];
            let at = bench.at((1 << 20) - 1);
            bench.transport.get_short(&mut last, &bench.target, at).expect("read");
            assert_eq!(last, [round]);
            bench.transport.flush_wait(NEVER).expect("flushed");
        }
    }
    fn fence_outlives_operations_of_one_direction(fixture) {
        let mut bench = bench(fixture, 4096);
        let (put, at) = (Completion::new(1), bench.at(0));
        let all = Local::all(&bench.host);
        bench.transport.put_zcopy(&[all], &bench.target, at, Some(&put)).expect("posted");
        bench.transport.fence();
        bench.transport.put_short(b"y", &bench.target, at).expect("posted");
        assert!(!put.is_done(), "one direction is in order without a wait");
        bench.transport.get_short(&mut [0], &bench.target, at).expect("read");
        assert_eq!(put.result(), Some(Ok(())), "the get began after the put");
    }
    fn fence_waits_once_for_each_direction(fixture) {
        let mut bench = bench(fixture, 4096);
        let (first, later, at) = (Completion::new(1), Completion::new(1), bench.at(0));
        let all = Local::all(&bench.host);
        bench.transport.put_zcopy(&[all], &bench.target, at, Some(&first)).expect("posted");
        bench.transport.fence();
        bench.transport.get_short(&mut [0], &bench.target, at).expect("read");
        assert!(first.is_done());
        bench.transport.put_zcopy(&[all], &bench.target, at, Some(&later)).expect("posted");
        bench.transport.get_short(&mut [0], &bench.target, at).expect("read");
        assert!(!later.is_done(), "no fence is between them");
        bench.transport.flush_wait(NEVER).expect("flushed");
    }
    fn flush_completes_with_all_before(fixture) {
        let mut bench = bench(fixture, 4096);
        let flushed = Completion::new(1);
        let (one, at) = (Completion::new(1), bench.at(0));
        bench.transport.put_zcopy(&[Local::all(&bench.host)], &bench.target, at, Some(&one)).expect("posted");
        if bench.transport.flush(Some(&flushed)).expect("flushed") == Posted::InProgress {
            while !flushed.is_done() {
                bench.transport.progress().expect("progress");
            }
        }
        assert!(one.is_done() && flushed.is_done());
    }
    fn flush_of_idle_transport_is_done(fixture) {
        let mut bench = bench(fixture, 64);
        let completion = Completion::new(1);
        assert_eq!(bench.transport.flush(Some(&completion)).expect("flushed"), Posted::Done);
        assert!(completion.is_done());
    }
    fn callback_runs_once_at_the_end(fixture) {
        let mut bench = bench(fixture, 4096);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let completion = Completion::with(3, move |result| {
            assert_eq!(result, Ok(()));
            counted.fetch_add(1, Ordering::Relaxed);
        });
        for offset in [0, 100, 200] {
            let local = Local::at(&bench.host, offset, 100).expect("inside");
            let at = bench.at(offset);
            bench.transport.put_zcopy(&[local], &bench.target, at, Some(&completion)).expect("posted");
        }
        bench.transport.flush_wait(NEVER).expect("flushed");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
    fn completion_is_used_again(fixture) {
        let mut bench = bench(fixture, 4096);
        let (completion, at) = (Completion::new(1), bench.at(0));
        for _ in 0..5 {
            bench.transport.put_zcopy(&[Local::all(&bench.host)], &bench.target, at, Some(&completion)).expect("posted");
            bench.transport.flush_wait(NEVER).expect("flushed");
            assert!(completion.is_done());
            completion.reset(1);
        }
    }
    fn full_transport_would_block_or_proceeds(fixture) {
        let mut bench = bench(fixture, 1 << 20);
        let (mut blocked, mut posted) = (0, 0);
        let at = bench.at(0);
        for _ in 0..500 {
            match bench.transport.put_zcopy(&[Local::all(&bench.host)], &bench.target, at, None) {
                Ok(_) => posted += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    blocked += 1;
                    bench.transport.progress().expect("progress");
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(bench.transport.stats().blocked, blocked);
        assert_eq!(bench.transport.stats().operations, posted);
        bench.transport.flush_wait(NEVER).expect("flushed");
    }
    fn pending_operations_run_in_order(fixture) {
        let mut bench = bench(fixture, 4096);
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        for index in 0..3 {
            let order = Arc::clone(&order);
            let mut tries = 0;
            bench.transport.pending_add(move |_| {
                tries += 1;
                if index == 1 && tries < 3 {
                    return Err(gaudi_copy::Error::would_block("test"));
                }
                order.lock().expect("no panic").push(index);
                Ok(())
            });
        }
        assert_eq!(bench.transport.pending(), 3);
        bench.transport.progress().expect("progress");
        assert_eq!(*order.lock().expect("no panic"), [0], "the second blocks the third");
        while bench.transport.pending() > 0 {
            bench.transport.progress().expect("progress");
        }
        assert_eq!(*order.lock().expect("no panic"), [0, 1, 2]);
    }
    fn pending_operation_posts_and_adds(fixture) {
        let mut bench = bench(fixture, 4096);
        let (target, at) = (Attached::to(&bench.device), bench.at(0));
        bench.transport.pending_add(move |transport| {
            transport.pending_add(|_| Ok(()));
            transport.put_short(b"pending", &target, at)
        });
        while bench.transport.pending() > 0 {
            bench.transport.progress().expect("progress");
        }
        bench.transport.flush_wait(NEVER).expect("flushed");
        assert_eq!(bench.seen(0, 7), b"pending");
    }
    fn purge_drops_pending_operations(fixture) {
        let mut bench = bench(fixture, 64);
        for _ in 0..4 {
            bench.transport.pending_add(|_| panic!("it never runs"));
        }
        assert_eq!(bench.transport.pending_purge(), 4);
        bench.transport.progress().expect("progress");
    }
    fn drop_of_transport_completes_operations(fixture) {
        let mut bench = bench(fixture, 4096);
        bench.host.write(0, &pattern(4096, 7)).expect("written");
        let (completion, at) = (Completion::new(1), bench.at(0));
        bench.transport.put_zcopy(&[Local::all(&bench.host)], &bench.target, at, Some(&completion)).expect("posted");
        let Bench { domain, device, host, transport, .. } = bench;
        drop(transport);
        assert_eq!(completion.result(), Some(Ok(())));
        assert_eq!(read_back(&domain, &device, 0, 4096), pattern(4096, 7));
        domain.free(host).expect("nothing holds it");
    }
    fn free_after_flush_succeeds(fixture) {
        let mut bench = bench(fixture, 4096);
        let at = bench.at(0);
        bench.transport.put_zcopy(&[Local::all(&bench.host)], &bench.target, at, None).expect("posted");
        bench.transport.flush_wait(NEVER).expect("flushed");
        bench.domain.free(bench.device).expect("freed while the transport lives");
        bench.domain.free(bench.host).expect("freed");
    }
    fn stats_count_bytes_by_kind(fixture) {
        let mut bench = bench(fixture, 4096);
        let at = bench.at(0);
        bench.transport.put_short(&[1; 10], &bench.target, at).expect("posted");
        bench.transport.put_bcopy(20, |_| 20, &bench.target, at).expect("posted");
        bench.transport.put_zcopy(&[Local::all(&bench.host)], &bench.target, at, None).expect("posted");
        let stats = bench.transport.stats();
        assert_eq!((stats.operations, stats.bytes), (3, 10 + 20 + 4096));
        assert_eq!((stats.buffered_bytes, stats.staged_bytes), (30, 0));
    }
}
