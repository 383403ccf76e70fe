//! What a fault plan does to operations, in virtual time.

mod recorder;

use std::sync::Arc;
use std::time::Duration;

use gaudi_layers::Stack;
use gaudi_layers::fault::{FaultLayer, Plan, Rule, Schedule, Target, Verdict};
use gaudi_layers::time::{Time, VirtualClock};
use gaudi_seam::Operation;
use gaudi_seam::*;
use gaudi_uapi::cs::CsFlags;
use gaudi_uapi::info::{DeviceStatus, HlInfoClkRate, HlInfoDeviceStatus, InfoOp};
use gaudi_uapi::memory::MemFlags;
use recorder::Recorder;

struct Bench {
    below: Arc<Recorder>,
    time: Arc<VirtualClock>,
    io: FaultLayer<Recorder>,
}

fn bench(plan: &str) -> Bench {
    let plan: Plan = plan
        .parse()
        .unwrap_or_else(|error| panic!("{plan:?} must parse: {error}"));
    let below = Recorder::new();
    let time = Arc::new(VirtualClock::default());
    let io = FaultLayer::new(below.clone(), &plan, time.clone());
    Bench { below, time, io }
}

#[test]
fn every_operation_can_be_refused() {
    for &operation in Operation::ALL {
        let bench = bench(&format!("{operation}:error=EINVAL"));
        for (called, error) in recorder::call_all(&bench.io) {
            let expected = (called == operation).then_some(Errno::EINVAL);
            assert_eq!(
                error.as_ref().and_then(Error::errno),
                expected,
                "{called} under a rule for {operation}: {error:?}"
            );
        }
        let performed: Vec<_> = Operation::ALL
            .iter()
            .copied()
            .filter(|other| *other != operation)
            .collect();
        assert_eq!(bench.below.seen(), performed, "all but {operation} are performed");
        let log = bench.io.handle().log();
        assert_eq!(log.events.len(), 1, "the one fault is in the log: {log:?}");
    }
}

#[test]
fn with_no_rule_everything_passes() {
    let bench = bench("");
    assert!(
        recorder::call_all(&bench.io)
            .iter()
            .all(|(_, error)| error.is_none())
    );
    assert_eq!(bench.below.seen(), Operation::ALL);
}

#[test]
fn injected_error_names_kind_and_rule() {
    for (rule, kind) in [
        ("submit:error=EAGAIN", ErrorKind::WouldBlock),
        ("submit:error=EPERM", ErrorKind::Unsupported),
        ("mem_alloc:error=ENOMEM", ErrorKind::OutOfDeviceMemory),
        ("mem_map_host:error=ENOMEM", ErrorKind::OutOfMemory),
        ("wait_cs:error=ETIMEDOUT", ErrorKind::Hung),
        ("wait_cs:error=EIO", ErrorKind::DeviceLost),
        ("mem_free:error=EBUSY", ErrorKind::DeviceLost),
    ] {
        let errors = recorder::call_all(&bench(rule).io);
        let error = errors
            .into_iter()
            .find_map(|(_, error)| error)
            .expect("one is refused");
        assert_eq!(error.kind(), kind, "{rule}: {error}");
        if kind != ErrorKind::WouldBlock {
            assert!(error.to_string().contains(rule), "the rule is named: {error}");
        }
    }
    let error = recorder::alloc(&bench("mem_alloc:error=ENOMEM").io, 1).expect_err("refused");
    assert_eq!(
        error.to_string(),
        "HL_MEM_OP_ALLOC on device mock0: injected by the fault rule mem_alloc:error=ENOMEM, as if no run of free pages is long \
         enough; or the device has too little free memory; or the kernel has no memory [ENOMEM]"
    );
}

#[test]
fn a_schedule_counts_the_operations_that_match() {
    let bench = bench("mem_alloc:when=2..6+2:error=ENOMEM");
    let failed: Vec<_> = (1..=8).map(|_| recorder::alloc(&bench.io, 1).is_err()).collect();
    assert_eq!(failed, [false, true, false, true, false, true, false, false]);
}

#[test]
fn chance_depends_only_on_seed() {
    let run = |plan: &str| -> Vec<bool> {
        let bench = bench(plan);
        (0..200).map(|_| recorder::alloc(&bench.io, 1).is_err()).collect()
    };
    let first = run("mem_alloc:error=ENOMEM:p=30:seed=1");
    assert_eq!(
        first,
        run("mem_alloc:error=ENOMEM:p=30:seed=1"),
        "the same seed, the same faults"
    );
    assert_ne!(
        first,
        run("mem_alloc:error=ENOMEM:p=30:seed=2"),
        "another seed, other faults"
    );
    let count = first.iter().filter(|failed| **failed).count();
    assert!(
        (30..=90).contains(&count),
        "about 30 of a hundred of 200, saw {count}"
    );
    assert!(
        run("mem_alloc:error=ENOMEM:p=0").iter().all(|failed| !failed),
        "0 % is never"
    );
}

#[test]
fn delays_add_up_before_the_operation() {
    let bench = bench("mem_alloc:delay=10ms;*:delay=5us;mem_alloc:when=2:error=ENOMEM");
    recorder::alloc(&bench.io, 1).expect("late, but done");
    assert_eq!(bench.time.now_ns(), 10_005_000);
    recorder::alloc(&bench.io, 1).expect_err("late and refused");
    assert_eq!(bench.time.now_ns(), 20_010_000);
    assert_eq!(bench.below.seen(), [Operation::MemAlloc]);
}

fn submit(io: &dyn KernelIo, flags: CsFlags, timeout_s: u32) -> CsSeq {
    let request = CsRequest {
        flags,
        timeout_s,
        ..CsRequest::default()
    };
    io.submit(&request).expect("a lost submission is taken").seq
}

#[test]
fn lost_submission_runs_but_never_completes() {
    let bench = bench("submit:when=2:lose");
    let (first, second) = (
        submit(&bench.io, CsFlags::NONE, 0),
        submit(&bench.io, CsFlags::NONE, 0),
    );
    assert_eq!(bench.below.seen(), [Operation::Submit; 2], "both are performed");
    let wait = |seq, ms| bench.io.wait_cs(seq, Duration::from_millis(ms));
    assert_eq!(
        wait(first, 0).map(|answer| answer.status),
        Ok(WaitStatus::Completed)
    );
    assert_eq!(
        wait(second, 0).map(|answer| answer.status),
        Ok(WaitStatus::Busy),
        "a poll"
    );
    assert_eq!(bench.time.now_ns(), 0, "a poll takes no time");
    assert_eq!(
        wait(second, 250).map(|answer| answer.status),
        Ok(WaitStatus::Busy)
    );
    assert_eq!(bench.time.now_ns(), 250_000_000, "a wait takes its time");
    let many = bench
        .io
        .wait_multi_cs(&[second, first], Duration::ZERO)
        .expect("one is done");
    assert_eq!(
        many.completion_map, 0b10,
        "only the first is seen, at its place in the list"
    );
    let log = bench.io.handle().log();
    assert_eq!(
        log.events[0].to_string(),
        "submit number 2: lose by rule submit:when=2:lose (submission 2)"
    );
}

#[test]
fn lost_submission_times_out_and_resets() {
    let bench = bench("submit:lose");
    let seq = submit(&bench.io, CsFlags::CUSTOM_TIMEOUT, 2);
    let error = bench.io.wait_cs(seq, Duration::MAX).expect_err("aborted");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Hung, Some(Errno::ETIMEDOUT))
    );
    assert_eq!(bench.time.now_ns(), 2_000_000_000, "after its own timeout");
    let error = recorder::alloc(&bench.io, 1).expect_err("in reset");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::DeviceLost, Some(Errno::EBUSY))
    );
    assert!(bench.io.handle().is_in_reset());

    let patient = self::bench("submit:lose");
    let seq = submit(&patient.io, CsFlags::SKIP_RESET_ON_TIMEOUT, 0);
    let day = Duration::from_secs(86_400);
    assert_eq!(
        patient.io.wait_cs(seq, day).map(|answer| answer.status),
        Ok(WaitStatus::Busy),
        "the driver never gives this one up"
    );
}

#[test]
fn after_a_reset_only_information_is_answered() {
    let bench = bench("mem_alloc:when=2:reset");
    recorder::alloc(&bench.io, 1).expect("before");
    recorder::alloc(&bench.io, 1).expect_err("the reset");
    for (operation, error) in recorder::call_all(&bench.io) {
        let expected = match operation {
            Operation::Info | Operation::UnregisterEvents => None,
            _ => Some((ErrorKind::DeviceLost, Some(Errno::EBUSY))),
        };
        assert_eq!(
            error.map(|error| (error.kind(), error.errno())),
            expected,
            "{operation} in reset"
        );
    }
    let status: HlInfoDeviceStatus = bench.io.query().expect("given in reset");
    assert_eq!(status.status, DeviceStatus::IN_RESET);
    let error = bench
        .io
        .query::<HlInfoClkRate>()
        .expect_err("needs a device in operation");
    assert_eq!(error.errno(), Some(Errno::EBUSY));
}

#[test]
fn guard_disarms_its_rule() {
    let bench = bench("");
    let handle = bench.io.handle();
    let rule = Rule {
        schedule: Schedule::nth(2),
        ..Rule::new(Target::Only(Operation::MemAlloc), Verdict::Error(Errno::ENOMEM))
    };
    let armed = handle.arm(rule);
    assert!(recorder::alloc(&bench.io, 1).is_ok());
    assert!(
        recorder::alloc(&bench.io, 1).is_err(),
        "the second from arming on"
    );
    assert_eq!(armed.seen(), 2);
    drop(armed);
    let again = handle.arm(Rule::new(Target::Any, Verdict::Error(Errno::EIO)));
    assert!(recorder::alloc(&bench.io, 1).is_err());
    drop(again);
    assert!(recorder::alloc(&bench.io, 1).is_ok(), "nothing is armed any more");
    assert_eq!(handle.log().events.len(), 2);
}

/// The opener knows the type of the node and puts the innermost layer over that; the stack is the
/// same.
#[test]
fn typed_stack_equals_dynamic_stack() {
    let layer = |plan: &str| LayerSpec {
        name: "fault".into(),
        argument: Some(plan.into()),
    };
    let specs = [
        layer("submit:when=1:error=EIO"),
        layer("submit:when=1:error=EAGAIN"),
    ];
    let time: Arc<dyn Time> = Arc::new(VirtualClock::default());
    let seen = |io: SharedIo, below: &Recorder| {
        let errno = || {
            io.submit(&CsRequest::default())
                .err()
                .and_then(|error| error.errno())
        };
        ([errno(), errno(), errno()], below.seen())
    };
    let prepared = || Stack::prepare(&specs).expect("good plans");
    let (any, known) = (Recorder::new(), Recorder::new());
    let typed = seen(prepared().over(any.clone(), &time), &any);
    assert_eq!(
        typed.0,
        [Some(Errno::EAGAIN), Some(Errno::EIO), None],
        "the rightmost is asked first"
    );
    assert_eq!(typed.1, [Operation::Submit], "two were refused");
    assert_eq!(seen(prepared().over_known(known.clone(), &time), &known), typed);
    let bare = Recorder::new();
    let io = Stack::default().over_known(bare.clone(), &time);
    assert_eq!(seen(io, &bare).1.len(), 3, "without layers it is the node");
}

fn info(io: &dyn KernelIo, answer: &mut [u8]) -> Result<u32> {
    io.info(InfoRequest::new(InfoOp::DRAM_USAGE), answer)
}

#[test]
fn answer_is_short_or_has_a_wrong_bit() {
    let mut bytes = [0; 16];
    info(&bench("").io, &mut bytes).expect("answered");
    assert_eq!(
        u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes")),
        4096,
        "as the driver"
    );

    let short = bench("info:short=1");
    info(&short.io, &mut bytes).expect("answered");
    assert_eq!(bytes, [0; 16], "4096 has its bit in the second byte");
    let flipped = bench("info:flip=127");
    info(&flipped.io, &mut bytes).expect("answered");
    assert_eq!(bytes[15], 0x80);

    let outside = bench("info:flip=128;info:short=16");
    info(&outside.io, &mut bytes).expect("answered");
    let unfired = outside.io.handle().unfired();
    assert_eq!(unfired.len(), 2, "neither changes 16 bytes: {unfired:?}");
}

#[test]
fn exhausted_resource_has_the_driver_s_errno() {
    for (operation, resource, errno) in [
        (Operation::Submit, "queue", Errno::EAGAIN),
        (Operation::CbCreate, "memory", Errno::ENOMEM),
        (Operation::MemAlloc, "memory", Errno::ENOMEM),
        (Operation::MemMapHost, "memory", Errno::ENOMEM),
        (Operation::TsAlloc, "memory", Errno::ENOMEM),
        (Operation::MemMapDevice, "space", Errno::ENOMEM),
        (Operation::MemMapHost, "space", Errno::ENOMEM),
        (Operation::RegisterDmabuf, "space", Errno::ENOMEM),
        (Operation::Mmap, "space", Errno::ENOMEM),
        (Operation::ExportDmabuf, "fds", Errno::EMFILE),
    ] {
        let bench = bench(&format!("{operation}:full={resource}"));
        let failed = recorder::call_all(&bench.io);
        let failed = failed
            .into_iter()
            .filter_map(|(operation, error)| Some((operation, error?.errno())));
        assert_eq!(failed.collect::<Vec<_>>(), [(operation, Some(errno))]);
    }
}

#[test]
fn wait_times_out_or_is_interrupted() {
    let bench =
        bench("wait_cs:when=1:timeout;wait_cs:when=2:eintr;wait_multi_cs:timeout;wait_interrupt:timeout");
    let seq = submit(&bench.io, CsFlags::NONE, 0);
    let second = Duration::from_secs(1);
    let answer = bench.io.wait_cs(seq, second).expect("busy");
    assert_eq!(
        (answer.status, bench.time.now_ns()),
        (WaitStatus::Busy, 1_000_000_000)
    );
    let error = bench.io.wait_cs(seq, second).expect_err("interrupted");
    assert_eq!(
        (error.errno(), bench.time.now_ns()),
        (Some(Errno::EINTR), 1_500_000_000)
    );
    let answer = bench.io.wait_cs(seq, second).expect("completed");
    assert_eq!(answer.status, WaitStatus::Completed);
    let many = bench.io.wait_multi_cs(&[seq], second).expect("busy");
    assert_eq!((many.status, many.completion_map), (WaitStatus::Busy, 0));
    let wait = InterruptWait {
        interrupt: InterruptId(48),
        word: InterruptWord::User(HostVa(0)),
        target: 1,
        timeout: Duration::MAX,
    };
    assert_eq!(
        bench.io.wait_interrupt(&wait).expect("busy").status,
        WaitStatus::Busy
    );
    assert_eq!(
        bench.time.now_ns(),
        3_602_500_000_000,
        "no wait is longer than an hour"
    );
    assert_eq!(
        bench.below.seen(),
        [Operation::Submit, Operation::WaitCs],
        "the others are not performed"
    );
}

#[test]
fn removed_device_fails_with_enodev() {
    let bench = bench("mem_alloc:when=2:remove");
    recorder::alloc(&bench.io, 1).expect("before");
    let error = recorder::alloc(&bench.io, 1).expect_err("removed");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::DeviceLost, Some(Errno::ENODEV))
    );
    for (operation, error) in recorder::call_all(&bench.io) {
        assert_eq!(
            error.and_then(|error| error.errno()),
            Some(Errno::ENODEV),
            "{operation}"
        );
    }
}

#[test]
fn compute_reset_aborts_work_in_flight() {
    let bench = bench("cb_create:when=1:reset=compute;mem_alloc:after=reset:when=2:error=ENOMEM");
    recorder::alloc(&bench.io, 1).expect("before the reset");
    let done = submit(&bench.io, CsFlags::NONE, 0);
    bench.io.wait_cs(done, Duration::ZERO).expect("completed");
    let aborted = submit(&bench.io, CsFlags::NONE, 0);
    let create = CbCreate {
        size: 4096,
        map_to_device: false,
    };
    let error = bench.io.cb_create(create).expect_err("in reset");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::InReset, Some(Errno::EBUSY))
    );
    bench.io.cb_create(create).expect("the device continues");
    let later = submit(&bench.io, CsFlags::NONE, 0);
    for (seq, errno) in [(done, None), (aborted, Some(Errno::EIO)), (later, None)] {
        let end = bench.io.wait_cs(seq, Duration::ZERO);
        assert_eq!(end.err().and_then(|error| error.errno()), errno, "{seq:?}");
        let end = bench.io.wait_multi_cs(&[seq], Duration::ZERO);
        assert_eq!(end.err().and_then(|error| error.errno()), errno, "{seq:?}");
    }
    recorder::alloc(&bench.io, 1).expect("the first after the reset");
    recorder::alloc(&bench.io, 1).expect_err("the second after the reset");
}

#[test]
fn states_follow_what_succeeded() {
    let bench =
        bench("info:while=mapped:error=EPERM;info:while=busy:error=EIO;mem_free:while=exported:error=ENOENT");
    let asked = || info(&bench.io, &mut [0; 8]).err().and_then(|error| error.errno());
    let freed = || {
        bench
            .io
            .mem_free(MemHandle(1))
            .err()
            .and_then(|error| error.errno())
    };
    assert_eq!(
        (asked(), freed()),
        (None, None),
        "nothing is mapped, busy or exported"
    );
    let map = MapDevice {
        handle: MemHandle(1),
        hint: None,
        flags: MemFlags::NONE,
    };
    bench.below.refuse(Operation::MemMapDevice, Errno::ENOMEM);
    bench.io.mem_map_device(map).expect_err("refused below");
    assert_eq!(asked(), None, "a failed map maps nothing");
    let bench = self::bench(
        "info:while=mapped:error=EPERM;info:while=busy:error=EIO;mem_free:while=exported:error=ENOENT",
    );
    let asked = || info(&bench.io, &mut [0; 8]).err().and_then(|error| error.errno());
    let freed = || {
        bench
            .io
            .mem_free(MemHandle(1))
            .err()
            .and_then(|error| error.errno())
    };
    let address = bench.io.mem_map_device(map).expect("mapped");
    assert_eq!(asked(), Some(Errno::EPERM));
    let export = ExportRequest {
        address,
        size: 4096,
        offset: 0,
        flags: 0,
    };
    bench.io.export_dmabuf(export).expect("exported");
    assert_eq!(freed(), Some(Errno::ENOENT));
    bench.io.mem_unmap(address).expect("unmapped");
    assert_eq!((asked(), freed()), (None, None));
    let seq = submit(&bench.io, CsFlags::NONE, 0);
    assert_eq!(asked(), Some(Errno::EIO));
    bench.io.wait_cs(seq, Duration::ZERO).expect("completed");
    assert_eq!(asked(), None);
}

#[test]
fn chip_reports_injected_error_first() {
    let bench = bench("mem_alloc:when=1:razwi;mem_alloc:when=2:heartbeat");
    recorder::alloc(&bench.io, 1).expect("performed");
    assert_eq!(bench.below.seen(), [Operation::Info, Operation::MemAlloc]);
    assert_eq!(bench.io.handle().unfired().len(), 1);
    bench.below.refuse(Operation::Info, Errno::EINVAL);
    recorder::alloc(&bench.io, 1).expect("performed");
    assert_eq!(
        bench.io.handle().unfired().len(),
        1,
        "a driver rejects it, so the second has not fired"
    );
}

#[test]
fn stack_rejects_rules_of_other_places() {
    let prepare = |plan: &str| {
        let layer = LayerSpec {
            name: "fault".into(),
            argument: Some(plan.into()),
        };
        Stack::prepare(&[layer])
    };
    prepare("submit:lose;chip.dma:flip=1").expect("rules for a device");
    for (plan, cause) in [
        ("submit:lose;nic.packet:lose", "nic.packet:lose is for a NIC"),
        ("chip.firmware:hang", "needs a firmware, which no mock has"),
    ] {
        let error = prepare(plan).expect_err(plan);
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(cause), "{error}");
    }
}
