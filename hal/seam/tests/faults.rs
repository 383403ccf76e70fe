//! The text of fault plans: what parses, how it prints, and how an invalid plan is reported.

use std::path::Path;
use std::time::Duration;

use gaudi_seam::fault::{
    ChipEvent, Field, FieldRange, Filter, NicEvent, Plan, PlanError, Rule, Schedule, State, Target, Verdict,
};
use gaudi_seam::{AnyRequest, CsRequest, Errno, MapHost, MemAlloc, Operation};
use gaudi_uapi::cs::HlCsChunk;
use gaudi_uapi::memory::MemFlags;
use proptest::prelude::*;

fn refusal(plan: &str) -> PlanError {
    plan.parse::<Plan>().expect_err(plan)
}

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// Plans of tests, examples and pages from before filters, states and events were added.
#[test]
fn earlier_plans_parse_unchanged() {
    for plan in [
        "*:p=10:seed=0:error=EINVAL",
        "*:when=3+5:error=EBUSY",
        "*:when=3:reset",
        "cb_create:when=2:error=EIO",
        "cb_destroy:when=1:delay=500ms",
        "cb_info:when=5+:error=EPERM",
        "export_dmabuf:when=2+:error=EFAULT",
        "info:when=3..999:delay=1500ms",
        "mem_alloc:delay=10ms;*:delay=5us;mem_alloc:when=2:error=ENOMEM",
        "mem_alloc:error=ENOMEM:p=30:seed=1",
        "mem_alloc:when=2..6+2:error=ENOMEM",
        "mem_alloc:when=2:error=ENOMEM;submit:when=77:error=EIO",
        "mem_alloc:when=2:reset",
        "mem_free:when=1:error=EIO",
        "mem_map_device:when=1..2:error=EIO",
        "mem_map_host:error=ENOMEM",
        "mem_unmap:when=2..9+3:error=EINVAL:p=50:seed=7",
        "mmap:when=1:error=ENOMEM",
        "submit:delay=150us",
        "submit:error=EAGAIN;wait_cs:delay=2s",
        "submit:error=EIO:p=5:seed=9;wait_cs:when=2:reset;*:delay=1ms:p=1:seed=3",
        "submit:lose:p=50:seed=1",
        "submit:when=1..3:error=EINTR",
        "submit:when=2:lose;submit:when=3:reset",
        "submit:when=3..9+2:error=EAGAIN:p=50:seed=7",
        "submit:when=4..20+3:error=ENOMEM",
        "wait_cs:when=3+2:delay=1500us",
        "wait_cs:when=3+:delay=10ms",
    ] {
        let parsed: Plan = plan.parse().unwrap_or_else(|error| panic!("{error}"));
        let printed = parsed.to_string();
        assert_eq!(printed.parse::<Plan>().as_ref(), Ok(&parsed), "{plan}");
        // Parts in another order, and `*:p=10:error=…`, print in one order.
        assert_eq!(printed.len(), plan.len(), "{plan} prints as {printed}");
    }
    let file: Plan = "# the third submission\n  submit:lose:when=3 # is lost\n\n"
        .parse()
        .expect("a plan");
    assert_eq!(file.to_string(), "submit:when=3:lose");
    let half: Plan = "# half of them\r\nsubmit:p=50:lose\r\n".parse().expect("a plan");
    assert_eq!(half.to_string(), "submit:lose:p=50:seed=0");
    // The seed 0 is also one that differs from a plan's own.
    let printed = "submit:p=50:seed=0:lose"
        .parse::<Plan>()
        .expect("a plan")
        .to_string();
    assert_eq!(Plan::seeded(&printed, 7).expect("a plan").to_string(), printed);
}

#[test]
fn filters_states_and_events_round_trip() {
    for line in [
        "mem_alloc:device=1:size=4096..65535:when=2:error=ENOMEM",
        "submit:queue=3..5:addr=0x1000..0x1fff:flags=0x20:full=queue",
        "mem_unmap:while=exported:error=EBUSY",
        "info:id=5:after=reset:short=8",
        "wait_cs:while=busy:when=2+3:timeout",
        "chip.dma:queue=0:size=4096..:when=7:flip=12",
        "chip.interrupt:id=256:late=3:p=20:seed=4",
        "nic.packet:when=4:flip=77",
        "nic.post:queue=17:status=RNR_RETRY_EXC_ERR",
        "mem_alloc:reset=compute",
        "chip.packet:ecc=fatal",
        "chip.dma:addr=0x1000..0x1fff:razwi",
        "mem_alloc:when=2:razwi",
        "chip.packet:after=reset:when=2:hang",
    ] {
        assert_eq!(rule(line).to_string(), line);
    }
    assert_eq!(
        rule("chip.sob:lose:id=0x10").to_string(),
        "chip.sob:id=16:lose",
        "parts are put in order"
    );
}

#[test]
fn invalid_plans_name_valid_form() {
    for (plan, expected) in [
        ("alloc:error=EIO", "known: info, cb_create, cb_destroy"),
        ("chip.unknown:lose", "chip.packet, chip.dma"),
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
            "known for submit: when=, error=ERRNO, delay=TIME, lose",
        ),
        ("submit:lose:seed=1:seed=2", "a second seed"),
        ("submit:lose:seed=1", "a seed without p="),
        (
            "mem_free:queue=1:error=EIO",
            "mem_free has no queue at column 10; known: device, id",
        ),
        ("mem_alloc:size=9..3:error=EIO", "before its start"),
        ("mem_alloc:size=+3:error=EIO", "not a number"),
        ("mem_alloc:flags=0:error=EIO", "at least one bit"),
        ("submit:full=disk", "known: queue, memory, space, fds"),
        (
            "submit:full=memory",
            "cannot happen to submit at column 8; it allocates no memory",
        ),
        ("chip.dma:error=EIO", "the chip reports no errno"),
        ("nic.packet:late=2", "write nic.packet:delay=TIME"),
        (
            "submit:while=asleep:lose",
            "while=exported, while=mapped, while=busy, after=reset",
        ),
        ("nic.packet:while=busy:lose", "leave out while="),
        ("chip.packet:while=busy:lose", "after=reset can stay"),
        ("chip.reset:hang", "an unknown operation or event"),
        ("nic.post:status=EIO", "known: LOC_PROT_ERR"),
    ] {
        let text = refusal(plan).to_string();
        assert!(
            text.contains(expected),
            "{plan:?} must contain {expected:?}: {text}"
        );
    }
}

#[test]
fn error_marks_its_column() {
    let error = refusal("submit:lose\n  mem_alloc:error=EIO ;\tinfo:p=7:error=EFOO:when=2 # why");
    assert_eq!((error.line, error.column), (2, 40), "{error}");
    let text = error.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with("fault plan: an unknown errno at line 2, column 40; "),
        "{text}"
    );
    assert_eq!(
        lines[1],
        "      mem_alloc:error=EIO ; info:p=7:error=EFOO:when=2 # why"
    );
    assert_eq!(lines[2].len(), 4 + 39 + 4, "{text}");
    assert_eq!(lines[2].trim_start(), "^^^^", "{text}");
}

#[test]
fn long_and_wide_lines_are_shortened() {
    let plan = format!(
        "{}submit:lose:ü=1;{}",
        "submit:lose;".repeat(50),
        "x".repeat(10_000)
    );
    let text = refusal(&plan).to_string();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[1].chars().count() <= 104, "{text}");
    let start = lines[2].find('^').expect("a mark");
    let marked: String = lines[1].chars().skip(start).take(3).collect();
    assert_eq!(marked, "ü=1", "{text}");
    assert_eq!(lines[2].trim_start(), "^^^", "{text}");
    let escape = refusal("submit:\u{1b}[2Jlose").to_string();
    assert!(!escape.contains('\u{1b}'), "{escape:?}");
    let rules = "submit:lose;".repeat(1025);
    assert!(refusal(&rules).problem.contains("too many rules"));
}

#[test]
fn filter_compares_request_fields() {
    let alloc = |size, flags| MemAlloc {
        size,
        page_size: 0,
        flags: MemFlags(flags),
    };
    let large = rule("mem_alloc:size=4096..8191:flags=0x3:error=ENOMEM");
    for (size, flags, expected) in [
        (4096, 3, true),
        (8191, 7, true),
        (8192, 3, false),
        (4096, 1, false),
    ] {
        let request = alloc(size, flags);
        assert_eq!(
            large.matches(0, AnyRequest::MemAlloc(&request)),
            expected,
            "{size} bytes, flags {flags}"
        );
    }
    let second = rule("mem_alloc:device=1:error=ENOMEM");
    let request = alloc(1, 0);
    assert!(second.matches(1, AnyRequest::MemAlloc(&request)));
    assert!(!second.matches(0, AnyRequest::MemAlloc(&request)));

    let chunk = |queue_index, cb_handle| HlCsChunk {
        queue_index,
        cb_handle,
        cb_size: 0x100,
        ..HlCsChunk::default()
    };
    let chunks = [chunk(1, 0x1000), chunk(2, 0x2000)];
    let submission = CsRequest::jobs(&chunks);
    for (text, expected) in [
        ("submit:queue=2:lose", true),
        ("submit:queue=3:lose", false),
        ("submit:addr=0x20ff:lose", true),
        ("submit:addr=0x2100:lose", false),
        ("submit:queue=1:addr=0x2000:lose", false),
    ] {
        let request = &submission;
        assert_eq!(
            rule(text).matches(0, AnyRequest::Submit(&request)),
            expected,
            "{text}"
        );
    }
    let host = MapHost {
        address: gaudi_seam::HostVa(u64::MAX - 10),
        size: u64::MAX,
        hint: None,
        flags: MemFlags::NONE,
    };
    assert!(
        rule("mem_map_host:addr=0xffffffffffffffff:error=EFAULT").matches(0, AnyRequest::MemMapHost(&host))
    );
}

#[test]
fn every_verdict_meets_something() {
    for kind in Verdict::KINDS {
        assert!(
            Target::all().any(|target| kind.example.meets(target).is_ok()),
            "{} meets nothing",
            kind.form
        );
        assert_eq!(kind.example.kind(), kind);
    }
    for target in Target::all() {
        assert!(
            Verdict::KINDS
                .iter()
                .any(|kind| kind.example.meets(target).is_ok()),
            "nothing meets {target}"
        );
    }
}

/// A verdict that every operation meets is a verdict of `*`, and the other way round.
#[test]
fn star_meets_what_every_operation_meets() {
    for kind in Verdict::KINDS {
        let every = Operation::ALL
            .iter()
            .all(|&operation| kind.example.meets(Target::Only(operation)).is_ok());
        assert_eq!(kind.example.meets(Target::Any).is_ok(), every, "{}", kind.form);
    }
}

/// The page's tables, from the types: `SNAPSHOTS=overwrite` updates them.
#[test]
fn page_has_generated_tables() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/faults.md");
    let text = std::fs::read_to_string(&page).expect("the page is read");
    let mut wanted = text.clone();
    for (name, table) in [("verdicts", verdicts()), ("fields", fields())] {
        let (start, end) = (
            format!("<!-- generated: {name} -->\n"),
            format!("<!-- end: {name} -->\n"),
        );
        let from = wanted.find(&start).expect("the start of the table") + start.len();
        let to = wanted.find(&end).expect("the end of the table");
        wanted.replace_range(from..to, &table);
    }
    if std::env::var("SNAPSHOTS").as_deref() == Ok("overwrite") {
        std::fs::write(&page, &wanted).expect("the page is written");
        return;
    }
    assert!(
        text == wanted,
        "docs/src/reference/faults.md is out of date; SNAPSHOTS=overwrite updates it"
    );
}

/// The names of those targets that meet a verdict, or why none does.
fn met(verdict: Verdict, targets: &[Target]) -> String {
    let names: Vec<_> = targets
        .iter()
        .filter(|target| verdict.meets(**target).is_ok())
        .map(|target| format!("`{target}`"))
        .collect();
    match (names.len(), targets.first()) {
        (0, Some(&first)) => format!("no: {}", verdict.meets(first).expect_err("none is met")),
        (all, _) if all == targets.len() && targets.contains(&Target::Any) => {
            "every operation, `*`".to_owned()
        }
        _ => names.join(" "),
    }
}

fn verdicts() -> String {
    let of = |is: fn(&Target) -> bool| Target::all().filter(is).collect::<Vec<_>>();
    let operations = of(|target| matches!(target, Target::Any | Target::Only(_)));
    let chip = of(|target| matches!(target, Target::Chip(_)));
    let nic = of(|target| matches!(target, Target::Nic(_)));
    let mut table = String::from("\n| verdict | effect | operations | chip | NIC |\n|---|---|---|---|---|\n");
    for kind in Verdict::KINDS {
        // A reason of `*` names no operation.
        let operations = met(kind.example, &operations).replace(
            "no: not every operation can meet it: name one",
            &met(kind.example, &[Target::Only(Operation::CbDestroy)]),
        );
        table += &format!(
            "| `{}` | {} | {operations} | {} | {} |\n",
            kind.form,
            kind.effect,
            met(kind.example, &chip),
            met(kind.example, &nic)
        );
    }
    table + "\n"
}

fn fields() -> String {
    let mut table = String::from("\n| target | fields | `id` is |\n|---|---|---|\n");
    for target in Target::all() {
        let names: Vec<_> = Field::ALL
            .into_iter()
            .filter(|field| field.is_of(target))
            .map(|field| format!("`{}`", field.name()))
            .collect();
        let id = Field::number_of(target).unwrap_or("");
        table += &format!("| `{target}` | {} | {id} |\n", names.join(" "));
    }
    table + "\n"
}

fn ranges() -> impl Strategy<Value = FieldRange> {
    prop_oneof![
        3 => Just(FieldRange::ALL),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(first, last)| FieldRange::new(first, last)),
        1 => (0..99_u64).prop_map(|first| FieldRange::new(first, u64::MAX)),
    ]
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let matches = prop_oneof![
        Just(Schedule::ALWAYS),
        any::<u64>().prop_map(Schedule::nth),
        (any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(first, last, step)| Schedule::range(first, last, step)),
        (1..99_u64, 1..9_u64).prop_map(|(first, step)| Schedule::range(first, u64::MAX, step)),
    ];
    let state = proptest::option::of(proptest::sample::select(&State::ALL[..]));
    (matches, 0..=100_u8, any::<u64>(), state).prop_map(|(matches, percent, seed, state)| {
        let mut schedule = matches.with_chance(percent, seed);
        schedule.state = state;
        schedule
    })
}

/// A kind of verdict with any value in it.
fn verdict(kind: Verdict, value: u64) -> Verdict {
    match kind {
        Verdict::Error(_) => Verdict::Error(match Errno::from_raw((value % 134) as i32) {
            Errno::UnknownErrno => Errno::EIO,
            errno => errno,
        }),
        Verdict::Delay(_) => Verdict::Delay(Duration::from_nanos(value % 3_600_000_000_000)),
        Verdict::Late(_) => Verdict::Late(1 + value % 4096),
        Verdict::Short(_) => Verdict::Short(value),
        Verdict::Flip(_) => Verdict::Flip(value),
        Verdict::Torn(_) => Verdict::Torn(value),
        other => other,
    }
}

fn rules() -> impl Strategy<Value = Rule> {
    let met: Vec<_> = Target::all()
        .flat_map(|target| {
            let kinds = Verdict::KINDS.iter().map(|kind| kind.example);
            kinds
                .filter(move |kind| kind.meets(target).is_ok())
                .map(move |kind| (target, kind))
        })
        .collect();
    let fields = [ranges(), ranges(), ranges(), ranges(), ranges()];
    (
        proptest::sample::select(met),
        fields,
        any::<u32>(),
        schedules(),
        any::<u64>(),
    )
        .prop_map(
            |((target, kind), [device, queue, address, size, id], flags, mut schedule, value)| {
                let if_of = |field: Field, range| {
                    if field.is_of(target) {
                        range
                    } else {
                        FieldRange::ALL
                    }
                };
                if target.is_nic() || (target.is_chip() && schedule.state != Some(State::AfterReset)) {
                    schedule.state = None;
                }
                Rule {
                    target,
                    filter: Filter {
                        device: if_of(Field::Device, device),
                        queue: if_of(Field::Queue, queue),
                        address: if_of(Field::Address, address),
                        size: if_of(Field::Size, size),
                        id: if_of(Field::Id, id),
                        flags: if Field::Flags.is_of(target) {
                            flags.into()
                        } else {
                            0
                        },
                    },
                    schedule,
                    verdict: verdict(kind, value),
                }
            },
        )
}

proptest! {
    #![proptest_config(gaudi_random::config(512))]

    #[test]
    fn every_plan_prints_and_parses_back(rules in proptest::collection::vec(rules(), 0..8)) {
        let plan = Plan { rules };
        let printed = plan.to_string();
        let parsed = printed.parse::<Plan>();
        prop_assert_eq!(parsed, Ok(plan), "{}", printed);
    }

    #[test]
    fn no_text_makes_the_parser_panic(
        text in "(mem_alloc|submit|chip.dma|nic.packet|\\*|when|while|error|delay|lose|size|addr|flip|p|seed|0x|\
                 [:;=.+0-9 \n\r#a-zEü\u{1b}\t])*",
    ) {
        match text.parse::<Plan>() {
            Ok(plan) => prop_assert_eq!(plan.to_string().parse::<Plan>(), Ok(plan)),
            Err(error) => {
                let line = text.lines().nth(error.line - 1).unwrap_or_default();
                prop_assert!(error.column <= line.chars().count() + 1, "{error}");
                prop_assert!(error.to_string().lines().count() == 3, "{error}");
            }
        }
    }
}

#[test]
fn events_have_distinct_names() {
    let chip = ChipEvent::ALL.iter().map(|event| event.name());
    let nic = NicEvent::ALL.iter().map(|event| event.name());
    let mut names: Vec<_> = chip.chain(nic).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(ChipEvent::of_name("chip.walk"), Some(ChipEvent::PageWalk));
    assert_eq!(NicEvent::of_name("nic.state"), Some(NicEvent::State));
}
