//! What a fault plan does to operations, in virtual time.

mod recorder;

use std::sync::Arc;
use std::time::Duration;

use gaudi_layers::Stack;
use gaudi_layers::fault::{FaultLayer, Plan, Rule, Schedule, Target, Verdict};
use gaudi_layers::time::{Time, VirtualTime};
use gaudi_seam::Operation;
use gaudi_seam::*;
use gaudi_uapi::cs::CsFlags;
use gaudi_uapi::info::{DeviceStatus, HlInfoClkRate, HlInfoDeviceStatus};
use proptest::prelude::*;
use recorder::Recorder;

struct Bench {
    below: Arc<Recorder>,
    time: Arc<VirtualTime>,
    io: FaultLayer<Recorder>,
}

fn bench(plan: &str) -> Bench {
    let plan: Plan = plan
        .parse()
        .unwrap_or_else(|error| panic!("{plan:?} must parse: {error}"));
    let below = Recorder::new();
    let time = Arc::new(VirtualTime::new());
    let io = FaultLayer::new(below.clone(), &plan, time.clone());
    Bench { below, time, io }
}

fn refusal(plan: &str) -> String {
    plan.parse::<Plan>().expect_err(plan).to_string()
}

#[test]
fn plan_round_trips_through_text() {
    for line in [
        "mem_alloc:error=ENOMEM",
        "*:when=3:reset",
        "submit:when=3..5:lose",
        "wait_cs:when=3+:delay=10ms",
        "wait_cs:when=3+2:delay=1500us",
        "mem_unmap:when=2..9+3:error=EINVAL:p=50:seed=7",
        "submit:error=EAGAIN;wait_cs:delay=2s",
    ] {
        let plan: Plan = line.parse().unwrap_or_else(|error| panic!("{line:?}: {error}"));
        assert_eq!(plan.to_string(), line);
    }
    let file: Plan = "# the third submission\n  submit:lose:when=3 # is lost\n\n"
        .parse()
        .expect("a plan");
    assert_eq!(
        file.to_string(),
        "submit:when=3:lose",
        "comments go, parts are put in order"
    );
}

#[test]
fn wrong_plans_say_what_would_be_right() {
    for (plan, expected) in [
        ("alloc:error=EIO", "known: info, cb_create, cb_destroy"),
        ("mem_alloc", "no verdict"),
        ("mem_alloc:error=EFOO", "the driver answers EPERM, ENOENT"),
        ("mem_alloc:error=EIO:reset", "a second verdict"),
        ("mem_alloc:lose", "submit:lose"),
        ("*:lose", "submit:lose"),
        ("submit:delay=10", "known: ns, us, ms, s"),
        ("submit:delay=3601s", "from 0 to 3600"),
        ("submit:when=0:lose", "from 1"),
        ("submit:when=5..3:lose", "from 5"),
        ("submit:when=1+0:lose", "from 1"),
        ("submit:p=101:lose", "from 0 to 100"),
        (
            "submit:often:lose",
            "known: when=, error=, delay=, lose, reset, p=, seed=",
        ),
        ("submit:lose:seed=1:seed=2", "a second seed"),
    ] {
        let text = refusal(plan);
        assert!(
            text.contains(expected),
            "{plan:?} must contain {expected:?}: {text}"
        );
    }
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
    let time: Arc<dyn Time> = Arc::new(VirtualTime::new());
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

fn rules() -> impl Strategy<Value = Rule> {
    let target = (0..=Operation::ALL.len()).prop_map(|index| match Operation::ALL.get(index) {
        Some(operation) => Target::Only(*operation),
        None => Target::Any,
    });
    let schedule = prop_oneof![
        Just(Schedule::ALWAYS),
        any::<u64>().prop_map(Schedule::nth),
        (any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(first, last, step)| Schedule::range(first, last, step)),
        (1..99_u64, 1..9_u64).prop_map(|(first, step)| Schedule::range(first, u64::MAX, step)),
    ];
    let verdict = prop_oneof![
        (1..134).prop_map(|raw| match Errno::from_raw(raw) {
            Errno::UnknownErrno => Verdict::Reset,
            errno => Verdict::Error(errno),
        }),
        (0..3_600_000_000_000_u64).prop_map(|ns| Verdict::Delay(Duration::from_nanos(ns))),
        Just(Verdict::Lose),
        Just(Verdict::Reset),
    ];
    (target, schedule, verdict, 0..=100_u8, any::<u64>()).prop_map(
        |(target, schedule, verdict, percent, seed)| Rule {
            target: match verdict {
                Verdict::Lose => Target::Only(Operation::Submit),
                _ => target,
            },
            schedule,
            verdict,
            percent,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn every_plan_prints_and_parses_back(rules in proptest::collection::vec(rules(), 0..8)) {
        let plan = Plan { rules };
        prop_assert_eq!(plan.to_string().parse::<Plan>(), Ok(plan));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(mem_alloc|submit|\\*|when|error|delay|lose|p|seed|[:;=.+0-9 \n#a-zE])*") {
        if let Ok(plan) = text.parse::<Plan>() {
            prop_assert_eq!(plan.to_string().parse::<Plan>(), Ok(plan));
        }
    }
}
