//! Random cases of the library under faults, beside the crate proptest-state-machine, which drives
//! the same operations on the same kind of world; and NICs in memory beside those with sockets.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaudi_faults::{Case, Kind, OPERATIONS, Op, Stack, Where, strategies};
use gaudi_seam::fault::{FieldRange, Filter, NicEvent, Plan, Rule, Schedule, Target, Verdict};
use gaudi_seam::{Error, RawMapping};
use gaudi_softnic::{Fabric, SoftNic, SoftNicConfig};
use gaudi_verbs::{Access, Context, QpInit, WorkCompletion};
use proptest::prelude::*;
use proptest::strategy::Union;
use proptest::test_runner::{Config, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use crate::harness::{Goal, Made, Row, Work};

/// The seed of every run.
const SEED: u64 = 18;
/// How long the rate on all processors is measured.
const RATE: Duration = Duration::from_secs(3);

/// Writes of a scenario of two NICs, and bytes of each.
const WRITES: u64 = 16;
const BYTES: usize = 512;
/// The data frame that is lost: the requester repeats from it, as the responder reports the gap. A
/// lost report would cost a timeout, whose length would be all that is measured.
const LOST: u64 = 9;

/// A case of 20 operations and up to three rules, with all invariants.
///
/// Two forms of the peer run it. One has a strategy for each kind of operation, as the crate's own
/// examples do. The other draws the words of an operation by one strategy that this project made
/// for speed: what remains is the crate's runner.
///
/// # Errors
/// Those of making a world.
pub fn rows() -> Made<Vec<Row<'static>>> {
    let ours = Row {
        name: format!("faults: a case of {OPERATIONS} operations, in memory"),
        peer: "proptest-state-machine".into(),
        ours: cases(Stack::new()?),
        theirs: Ok(machines::<true>(Stack::new()?)),
        probe: None,
        laps: None,
        bytes: 0,
        goal: Goal::AtMost(0.66),
        note: Box::new(|| rate(Case::generate, 2_000_000)),
    };
    let bare = Row {
        name: format!("faults: a case of {OPERATIONS} operations, drawn by one strategy"),
        peer: "proptest-state-machine".into(),
        ours: cases(Stack::new()?),
        theirs: Ok(machines::<false>(Stack::new()?)),
        probe: None,
        laps: None,
        bytes: 0,
        goal: Goal::AtMost(1.0),
        note: Box::new(String::new),
    };
    let mut stack = Stack::new()?;
    let mut number = 0;
    let descriptors = Row {
        name: format!("faults: a case of {OPERATIONS} operations, with descriptors"),
        peer: "-".into(),
        ours: Box::new(move |count| {
            for _ in 0..count {
                holds(&mut stack, &Case::with_descriptors(SEED, number));
                number += 1;
            }
        }),
        theirs: Err("the note has the goal".into()),
        probe: None,
        laps: None,
        bytes: 0,
        goal: Goal::AtMost(1.0),
        note: Box::new(|| rate(Case::with_descriptors, 250_000)),
    };
    Ok(vec![ours, bare, descriptors, nics()])
}

/// Two NICs in memory beside the same with sockets and threads.
fn nics() -> Row<'static> {
    let mut seed = 0;
    let in_memory = move |count: u32| {
        for _ in 0..count {
            seed += 1;
            in_fabric(seed).unwrap_or_else(|error| panic!("writes end: {error}"));
        }
    };
    let with_threads = |count: u32| {
        for _ in 0..count {
            let pair = SoftNic::pair(lossy());
            pair.and_then(|(a, b)| write_all(a, b))
                .unwrap_or_else(|error| panic!("writes end: {error}"));
        }
    };
    Row {
        name: format!("faults: {WRITES} writes between two NICs in memory, one frame lost"),
        peer: "softnic with sockets".into(),
        ours: Box::new(in_memory),
        theirs: Ok(Box::new(with_threads)),
        probe: None,
        laps: None,
        bytes: 0,
        goal: Goal::AtMost(1.0),
        note: Box::new(scenarios),
    }
}

/// The scenarios in memory a minute, in one thread.
fn scenarios() -> String {
    let (begin, mut count) = (Instant::now(), 0_u64);
    while begin.elapsed() < RATE {
        count += 1;
        in_fabric(count).unwrap_or_else(|error| panic!("writes end: {error}"));
    }
    let per_minute = count as f64 * 60.0 / begin.elapsed().as_secs_f64();
    format!("{per_minute:.0} a minute in one thread")
}

fn lossy() -> SoftNicConfig {
    let rule = Rule {
        filter: Filter {
            size: FieldRange::new(BYTES as u64, u64::MAX),
            ..Filter::NONE
        },
        schedule: Schedule::nth(LOST),
        ..Rule::new(Target::Nic(NicEvent::Packet), Verdict::Lose)
    };
    SoftNicConfig {
        faults: Plan { rules: vec![rule] },
        ..SoftNicConfig::default()
    }
}

fn in_fabric(seed: u64) -> gaudi_seam::Result<()> {
    let fabric = Fabric::new(seed);
    let (a, b) = (fabric.nic("a", lossy())?, fabric.nic("b", lossy())?);
    fabric.join(&a, &b)?;
    write_all(a, b)
}

/// Connects two NICs, and writes from one to the other.
fn write_all(a: Arc<SoftNic>, b: Arc<SoftNic>) -> gaudi_seam::Result<()> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let end = |nic: Arc<SoftNic>| {
        let pd = Context::open(nic)?.alloc_pd()?;
        let cq = pd.context().create_cq(64)?;
        let memory = RawMapping::anonymous(BYTES * 16, false);
        let memory = memory.map_err(|errno| Error::from_errno("mmap", errno))?;
        let mr = pd.reg_mapping(Arc::new(memory), access)?;
        let qp = pd.create_qp(&QpInit::new(&cq))?;
        Ok::<_, Error>((qp, mr, cq))
    };
    let ((mut from, source, cq), (mut to, target, _to_cq)) = (end(a)?, end(b)?);
    let (at_from, at_to) = (from.address()?, to.address()?);
    from.connect(&at_to, access)?;
    to.connect(&at_from, access)?;
    for number in 0..WRITES {
        let offset = number * BYTES as u64;
        let local = [source.sge(offset, BYTES as u32)?];
        let remote = target.remote().at(offset, BYTES as u64)?;
        from.post_send(number).write(&local, remote).post()?;
    }
    let (mut done, mut wc) = (0, [WorkCompletion::EMPTY; 16]);
    while done < WRITES {
        let count = cq.wait(&mut wc, Duration::from_secs(60))?;
        assert!(wc[..count].iter().all(WorkCompletion::is_success), "{wc:?}");
        done += count as u64;
    }
    Ok(())
}

/// Generates and runs one case after the other.
fn cases(mut stack: Stack) -> Work<'static> {
    let mut number = 0;
    Box::new(move |count| {
        for _ in 0..count {
            let case = Case::generate(SEED, number);
            number += 1;
            holds(&mut stack, &case);
        }
    })
}

/// Runs a case. Returns whether a fault was injected into it.
fn holds(stack: &mut Stack, case: &Case) -> bool {
    let outcome = stack
        .run(case)
        .unwrap_or_else(|error| panic!("a world opens: {error}"));
    assert!(outcome.violations.is_empty(), "{:?}\n{case}", outcome.violations);
    !outcome.met.is_empty()
}

/// The cases a minute on all processors, and how many of them had a fault.
fn rate(generate: fn(u64, u64) -> Case, goal: u64) -> String {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let begin = Instant::now();
    let counts: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let work = |first: u64| {
            move || {
                let mut stack = Stack::new().unwrap_or_else(|error| panic!("a world is made: {error}"));
                let (mut number, mut faulty) = (0, 0);
                while begin.elapsed() < RATE {
                    for _ in 0..64 {
                        let case = generate(SEED + first, number);
                        faulty += u64::from(holds(&mut stack, &case));
                        number += 1;
                    }
                }
                (number, faulty)
            }
        };
        let running: Vec<_> = (0..threads as u64)
            .map(|first| scope.spawn(work(first)))
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| panic!("a case holds")))
            .collect()
    });
    let (cases, faulty) = counts
        .iter()
        .fold((0, 0), |(cases, faulty), one| (cases + one.0, faulty + one.1));
    let per_minute = cases as f64 * 60.0 / begin.elapsed().as_secs_f64();
    let verdict = if per_minute >= goal as f64 {
        "met"
    } else {
        "MISSED"
    };
    format!(
        "{per_minute:.0} a minute on {threads} threads, goal {goal}: {verdict}; faults in {:.0} %",
        faulty as f64 * 100.0 / cases.max(1) as f64
    )
}

thread_local! {
    static WORLD: RefCell<Option<Rc<RefCell<Stack>>>> = const { RefCell::new(None) };
    /// The number of the peer's next case: it chooses the order of the chip's work, and whether all
    /// bytes are compared at the end.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Plans with as many rules as those of our cases, and as certain a fault.
fn plans() -> impl Strategy<Value = Plan> {
    let rules = |count: usize| prop::collection::vec(strategies::rule(), count);
    prop_oneof![1 => rules(0), 9 => rules(1), 6 => rules(2), 4 => rules(3)].prop_map(
        |mut rules: Vec<Rule>| {
            if let Some(first) = rules.first_mut() {
                first.schedule = Schedule::nth(1);
            }
            Plan { rules }
        },
    )
}

/// Operations of one kind.
fn of_kind(kind: Kind) -> impl Strategy<Value = Op> {
    any::<(u16, u16, u16)>().prop_map(move |(a, b, c)| Op { kind, a, b, c })
}

/// What `prop_oneof!` makes of a strategy for each kind.
fn by_kind() -> impl Strategy<Value = Op> {
    let kinds = Kind::IN_MEMORY.iter();
    Union::new_weighted(
        kinds
            .map(|&(kind, weight)| (weight, of_kind(kind).boxed()))
            .collect(),
    )
}

/// The model of the sequence: the plan, and the number of operations so far. If `BY_KIND`, each
/// kind of operation has a strategy.
#[derive(Debug, Clone)]
struct Sequence<const BY_KIND: bool> {
    plan: Plan,
    len: usize,
}

impl<const BY_KIND: bool> ReferenceStateMachine for Sequence<BY_KIND> {
    type State = Self;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<Self> {
        plans().prop_map(|plan| Self { plan, len: 0 }).boxed()
    }

    fn transitions(state: &Self) -> BoxedStrategy<Op> {
        // As in our cases, the first operations make memory.
        match FIRST.with(|first| first.get(state.len).copied()) {
            Some(kind) => of_kind(kind).boxed(),
            None if BY_KIND => by_kind().boxed(),
            None => strategies::operation().boxed(),
        }
    }

    fn apply(state: Self, _: &Op) -> Self {
        Self {
            len: state.len + 1,
            ..state
        }
    }
}

thread_local! {
    static FIRST: Vec<Kind> = Case::generate(SEED, 0).ops.iter().take(5).map(|(_, op)| op.kind).collect();
}

/// The operations of a sequence, which run in one world when the sequence is complete.
struct Driven<const BY_KIND: bool> {
    case: Case,
    world: Rc<RefCell<Stack>>,
}

impl<const BY_KIND: bool> StateMachineTest for Driven<BY_KIND> {
    type SystemUnderTest = Self;
    type Reference = Sequence<BY_KIND>;

    fn init_test(state: &Self::Reference) -> Self {
        let world = WORLD.with_borrow(|world| world.clone());
        Self {
            case: Case {
                seed: SEED,
                number: NUMBER.replace(NUMBER.get() + 1),
                place: Where::Memory,
                plan: state.plan.clone(),
                ops: Vec::with_capacity(OPERATIONS),
            },
            world: world.unwrap_or_else(|| unreachable!("the world is set")),
        }
    }

    fn apply(mut state: Self, reference: &Self::Reference, op: Op) -> Self {
        state.case.ops.push((reference.len, op));
        state
    }

    fn teardown(state: Self) {
        holds(&mut state.world.borrow_mut(), &state.case);
    }
}

/// As [`cases`], by the peer: its runner generates each sequence and drives it, as its macro
/// `prop_state_machine!` makes it.
fn machines<const BY_KIND: bool>(stack: Stack) -> Work<'static> {
    let world = Rc::new(RefCell::new(stack));
    let strategy = Sequence::<BY_KIND>::sequential_strategy(OPERATIONS);
    Box::new(move |count| {
        WORLD.set(Some(Rc::clone(&world)));
        let config = Config {
            cases: count,
            failure_persistence: None,
            ..Config::default()
        };
        let mut runner = TestRunner::new(config.clone());
        let ran = runner.run(&strategy, |(state, transitions, seen)| {
            Driven::<BY_KIND>::test_sequential(config.clone(), state, transitions, seen);
            Ok(())
        });
        ran.unwrap_or_else(|why| panic!("every case holds: {why}"));
        WORLD.set(None);
    })
}
