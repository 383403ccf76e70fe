//! Results of submissions and waits.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use gaudi_sys::Errno;

use super::{FD, errno, on_today};
use crate::*;

fn cs_in(flags: u32) -> HlthunkCsIn {
    HlthunkCsIn {
        chunks_restore: 0x1000 as *mut _,
        chunks_execute: 0x2000 as *mut _,
        num_chunks_restore: 3,
        num_chunks_execute: 4,
        flags,
    }
}

/// Writes the driver's answer to a submission.
fn submitted(argument: &mut [u64]) -> Result<(), Errno> {
    argument.copy_from_slice(&[0x77, 5 << 32, 9, 0, 0, 0]);
    Ok(())
}

fn empty() -> HlthunkCsOut {
    HlthunkCsOut {
        seq: 0,
        status: 99,
        sob_count_before_submission: 0,
    }
}

#[test]
fn submission_passes_chunks_and_timeout() {
    let mut input = cs_in(0x400);
    let mut out = empty();
    let (value, seen) = on_today(
        |_, argument| submitted(argument),
        || unsafe { hlthunk_command_submission(FD, &raw mut input, &raw mut out) },
    );
    assert_eq!(value, 0);
    assert_eq!(seen[0].words, [0x1000, 0x2000, 0, 4 << 32 | 3, 0x400 << 32, 0]);
    assert_eq!(
        (out.seq, out.status, out.sob_count_before_submission),
        (0x77, 0, 9)
    );
    let (value, seen) = on_today(
        |_, argument| submitted(argument),
        || unsafe { hlthunk_command_submission_timeout(FD, &raw mut input, &raw mut out, 30) },
    );
    assert_eq!(value, 0);
    assert_eq!(seen[0].words[4], 0x600 << 32 | 30, "custom timeout");
}

#[test]
fn stages_need_their_flag() {
    let mut out = empty();
    let mut plain = cs_in(0);
    let mut staged = cs_in(0x40);
    let (value, seen) = on_today(
        |_, _| Ok(()),
        || unsafe { hlthunk_staged_command_submission(FD, 5, &raw mut plain, &raw mut out) },
    );
    assert_eq!((value, seen.len()), (-(Errno::EINVAL as c_int), 0));
    let (value, seen) = on_today(
        |_, argument| submitted(argument),
        || unsafe {
            hlthunk_staged_command_submission_timeout(FD, 5, &raw mut staged, &raw mut out, 3);
            hlthunk_staged_command_submission_encaps_signals(FD, 0xf_0000_0006, &raw mut staged, &raw mut out)
        },
    );
    assert_eq!(value, 0);
    assert_eq!((seen[0].words[2], seen[0].words[4]), (5, 0x240 << 32 | 3));
    assert_eq!((seen[1].words[2], seen[1].words[4]), (6, 0x840 << 32));
}

/// Returns the 64 bytes of the chunk that a request refers to.
fn chunk(words: &[u64]) -> Vec<u64> {
    let address = words[1] as *const u64;
    unsafe { std::slice::from_raw_parts(address, 8) }.to_vec()
}

#[test]
fn signals_are_chunks_of_the_driver() {
    let mut input = HlthunkSignalIn {
        chunks_restore: std::ptr::null_mut(),
        num_chunks_restore: 0,
        queue_index: 7,
        flags: 0x1,
    };
    let mut out = unsafe { std::mem::zeroed::<HlthunkSignalOut>() };
    let driver = |_, argument: &mut [u64]| {
        assert_eq!(chunk(argument), [0, 7, 0, 0, 0, 0, 0, 0]);
        submitted(argument)
    };
    let (value, seen) = on_today(driver, || unsafe {
        hlthunk_signal_submission_timeout(FD, &raw mut input, &raw mut out, 2)
    });
    assert_eq!(value, 0);
    assert_eq!(seen[0].words[3..], [1 << 32, 0x203 << 32 | 2, 0]);
    assert_eq!(
        (out.seq, out.sob_base_addr_offset, out.sob_count_before_submission),
        (0x77, 5, 9)
    );
    let refused = |_, argument: &mut [u64]| {
        argument.fill(0);
        argument[1] = 1;
        Ok(())
    };
    let (value, _) = on_today(refused, || unsafe {
        hlthunk_signal_submission(FD, &raw mut input, &raw mut out)
    });
    assert_eq!(
        (value, errno()),
        (-(Errno::EINVAL as c_int), Errno::EINVAL),
        "a failed status"
    );
}

#[test]
fn waits_for_signals_name_one_signal() {
    let mut signal = HlthunkWaitForSignalData {
        signal_seq_arr: 0x5000 as *mut u64,
        signal_seq_nr: 1,
        queue_index: 7,
        flags: 0,
        collective_engine_id: 3,
        encaps_signal_offset: 11,
    };
    let mut input = HlthunkWaitIn {
        chunks_restore: std::ptr::null_mut(),
        num_chunks_restore: 0,
        hlthunk_wait_for_signal: (&raw mut signal).cast(),
        num_wait_for_signal: 1,
        flags: 0,
    };
    let mut out = HlthunkWaitOut { seq: 0, status: 9 };
    let (input, out) = (&raw mut input, &raw mut out);
    type Wait = unsafe extern "C" fn(c_int, *mut HlthunkWaitIn, *mut HlthunkWaitOut) -> c_int;
    let cases: [(Wait, [u64; 3], u64); 4] = [
        (hlthunk_wait_for_signal, [0x5000, 1 << 32 | 7, 0], 0x4),
        (
            hlthunk_wait_for_collective_signal,
            [0x5000, 1 << 32 | 7, 3 << 32],
            0x8,
        ),
        (
            hlthunk_wait_for_reserved_encaps_signals,
            [0x5000, 11 << 32 | 7, 0],
            0x804,
        ),
        (
            hlthunk_wait_for_reserved_encaps_collective_signals,
            [0x5000, 11 << 32 | 7, 3 << 32],
            0x808,
        ),
    ];
    for (wait, wanted, flags) in cases {
        let driver = move |_, argument: &mut [u64]| {
            assert_eq!(chunk(argument)[..3], wanted);
            submitted(argument)
        };
        let (value, seen) = on_today(driver, || unsafe { wait(FD, input, out) });
        assert_eq!(value, 0);
        assert_eq!(seen[0].words[4], flags << 32);
        assert_eq!(unsafe { (*out).seq }, 0x77);
        for (signals, numbers) in [(0, 1), (2, 1), (1, 0)] {
            unsafe {
                (*input).num_wait_for_signal = signals;
                (*(*input)
                    .hlthunk_wait_for_signal
                    .cast::<HlthunkWaitForSignalData>())
                .signal_seq_nr = numbers;
            }
            let (value, seen) = on_today(|_, _| Ok(()), || unsafe { wait(FD, input, out) });
            assert_eq!(
                (value, seen.len()),
                (-(Errno::EINVAL as c_int), 0),
                "{signals} signals of {numbers}"
            );
        }
        unsafe {
            (*input).num_wait_for_signal = 1;
            (*(*input)
                .hlthunk_wait_for_signal
                .cast::<HlthunkWaitForSignalData>())
            .signal_seq_nr = 1;
            (*input).hlthunk_wait_for_signal = std::ptr::null_mut();
        }
        let (value, _) = on_today(|_, _| Ok(()), || unsafe { wait(FD, input, out) });
        assert_eq!(value, -(Errno::EINVAL as c_int), "the signal is missing");
        unsafe { (*input).hlthunk_wait_for_signal = (&raw mut signal).cast() };
    }
}

#[test]
fn reserved_signals_have_a_handle() {
    let mut input = HlthunkSigResIn {
        queue_index: 7,
        count: 20,
    };
    let mut out = unsafe { std::mem::zeroed::<HlthunkSigResOut>() };
    let driver = |_, argument: &mut [u64]| {
        argument.copy_from_slice(&[20 << 32 | 3, 0x40 << 32, 0, 0, 0, 0]);
        Ok(())
    };
    let (value, seen) = on_today(driver, || unsafe {
        hlthunk_reserve_encaps_signals(FD, &raw mut input, &raw mut out)
    });
    assert_eq!(value, 0);
    assert_eq!(seen[0].words, [0, 0, 7 << 32 | 20, 1 << 32, 0x1000 << 32, 0]);
    assert_eq!(
        (out.handle.id, out.handle.count, out.handle.sob_base_addr_offset),
        (3, 20, 0x40)
    );
    let mut status = 9;
    let (value, seen) = on_today(driver, || unsafe {
        hlthunk_unreserve_encaps_signals(FD, &raw mut out.handle, &raw mut status)
    });
    assert_eq!((value, status), (0, 0));
    assert_eq!(seen[0].words, [0, 0, 3, 1 << 32, 0x2000 << 32, 0]);
}

#[test]
fn failed_wait_writes_no_garbage() {
    let seq = 0x1122_3344_5566_7788;
    let wait = |errno, fill: fn(&mut [u64])| {
        let mut status = 99;
        let mut timestamp = 98;
        let driver = move |_, argument: &mut [u64]| {
            fill(argument);
            Err(errno)
        };
        let (value, _) = on_today(driver, || unsafe {
            hlthunk_wait_for_cs_with_timestamp(FD, seq, 10, &raw mut status, &raw mut timestamp)
        });
        assert_eq!(value, -(errno as c_int));
        (status, timestamp)
    };
    let untouched: fn(&mut [u64]) = |_| {};
    assert_eq!(
        wait(Errno::EINVAL, untouched),
        (99, 98),
        "the status is unchanged"
    );
    assert_eq!(
        wait(Errno::ETIMEDOUT, untouched),
        (2, 98),
        "HL_WAIT_CS_STATUS_TIMEDOUT"
    );
    assert_eq!(wait(Errno::EIO, untouched), (3, 98), "HL_WAIT_CS_STATUS_ABORTED");
    let reported: fn(&mut [u64]) = |argument| argument.copy_from_slice(&[2 << 32 | 3, 55, 0, 0, 0, 0, 0]);
    assert_eq!(
        wait(Errno::ENODEV, reported),
        (3, 55),
        "the driver's status is reported"
    );
}

#[test]
fn timestamp_is_written_if_valid() {
    for (flags, wanted) in [(0, 98), (2, 55), (3, 55)] {
        let mut status = 99;
        let mut timestamp = 98;
        let driver = move |_, argument: &mut [u64]| {
            argument.fill(0);
            argument[0] = flags << 32;
            argument[1] = 55;
            Ok(())
        };
        let (value, _) = on_today(driver, || unsafe {
            hlthunk_wait_for_cs_with_timestamp(FD, 1, 10, &raw mut status, &raw mut timestamp)
        });
        assert_eq!((value, status, timestamp), (0, 0, wanted));
    }
}

#[test]
fn many_waits_count_completions() {
    let mut seqs = [1_u64, 2, 3];
    let mut input = HlthunkWaitMultiCsIn {
        seq: seqs.as_mut_ptr(),
        timeout_us: 100,
        seq_len: 3,
    };
    let list = seqs.as_ptr() as u64;
    let mut out = HlthunkWaitMultiCsOut {
        status: 99,
        seq_set: 98,
        completed: 97,
    };
    let mut timestamp = 96;
    let driver = |_, argument: &mut [u64]| {
        argument.copy_from_slice(&[0, 0, 0b101, 0, 0, 0, 0]);
        Ok(())
    };
    let (value, seen) = on_today(driver, || unsafe {
        hlthunk_wait_for_multi_cs_with_timestamp(FD, &raw mut input, &raw mut out, &raw mut timestamp)
    });
    assert_eq!(value, 0);
    assert_eq!(seen[0].words, [list, 100, 0x4 << 32, 3, 0, 0, 0]);
    assert_eq!(
        (out.status, out.seq_set, out.completed, timestamp),
        (0, 0b101, 2, 0)
    );
}

#[test]
fn signals_shorten_a_wait() {
    for (call, word) in [(0, 1), (1, 3)] {
        let mut left = 3;
        let driver = move |_, argument: &mut [u64]| {
            std::thread::sleep(Duration::from_millis(2));
            left -= 1;
            if left == 0 {
                argument.fill(0);
                return Ok(());
            }
            Err(Errno::EINTR)
        };
        let mut status = 9;
        let mut value = 0_u64;
        let began = Instant::now();
        let (result, seen) = on_today(driver, || unsafe {
            match call {
                0 => hlthunk_wait_for_cs(FD, 1, 1_000_000, &raw mut status),
                _ => {
                    hlthunk_wait_for_interrupt(FD, (&raw mut value).cast(), 1, 1, 1_000_000, &raw mut status)
                }
            }
        });
        let passed = began.elapsed().as_micros() as u64;
        assert_eq!((result, status, seen.len()), (0, 0, 3));
        let timeouts: Vec<u64> = seen.iter().map(|call| call.words[word]).collect();
        assert_eq!(timeouts[0], 1_000_000);
        let last = timeouts[2];
        assert!(
            last <= 998_000 && last >= 1_000_000 - passed,
            "between 2 ms and {passed} us passed: {timeouts:?}"
        );
    }
    // An infinite timeout stays infinite.
    let mut tries = 0;
    let driver = move |_, argument: &mut [u64]| {
        tries += 1;
        assert_eq!(argument[1], u64::MAX);
        if tries < 3 { Err(Errno::EINTR) } else { Ok(()) }
    };
    let mut status = 0;
    let (value, _) = on_today(driver, || unsafe {
        hlthunk_wait_for_cs(FD, 1, u64::MAX, &raw mut status)
    });
    assert_eq!(value, 0);
}

/// 60 submissions find the queue full: the caller sleeps between most of them.
#[test]
fn full_queue_does_not_spin() {
    let mut left = 60;
    let driver = move |_, argument: &mut [u64]| {
        left -= 1;
        if left == 0 {
            submitted(argument)
        } else {
            Err(Errno::EAGAIN)
        }
    };
    let mut input = cs_in(0);
    let mut out = empty();
    let began = Instant::now();
    let (value, seen) = on_today(driver, || unsafe {
        hlthunk_command_submission(FD, &raw mut input, &raw mut out)
    });
    assert_eq!((value, out.seq, seen.len()), (0, 0x77, 60));
    assert!(
        began.elapsed() > Duration::from_millis(40),
        "{:?}",
        began.elapsed()
    );
}
