//! Fault rules for the chip: each pair of an event and a verdict that the grammar allows has a case
//! here, but those of the firmware, which only a card across PCI has (`pci.rs`).

mod rig;

use std::sync::Arc;

use gaudi_model::{Chip, Event, Held, RunOutcome};
use gaudi_seam::engine::{ChipError, Reset};
use gaudi_seam::fault::{ChipEvent, ChipRules, Plan, Target, Verdict};
use gaudi_spec::gaudi2::DOORBELL_VA;
use gaudi_spec::gaudi2::packet::{EndianSwap, LinDma};
use gaudi_spec::gaudi2::queue::{PDMA_0_0, PDMA_0_1};
use gaudi_spec::gaudi2::sync::SobUpdate;
use gaudi_spec::{DeviceVa, QueueId};

use rig::{BUDGET, DRAM, HOST, Program, Rig, va};

const QUEUE: QueueId = PDMA_0_0;
const SOB: u32 = 1000;

/// A case that shows the pair of `target` and the verdict of form `form`.
struct Case {
    target: &'static str,
    form: &'static str,
    run: fn(),
}

macro_rules! cases {
    ($($target:literal $form:literal $run:expr,)*) => {
        &[$(Case { target: $target, form: $form, run: $run },)*]
    };
}

const CASES: &[Case] = cases! {
    "chip.packet" "lose" packet_lose,
    "chip.packet" "hang" packet_hang,
    "chip.packet" "ecc" || errors("chip.packet", Program::new().nop()),
    "chip.packet" "ecc=fatal" || errors("chip.packet", Program::new().nop()),
    "chip.packet" "heartbeat" || errors("chip.packet", Program::new().nop()),
    "chip.dma" "flip=BIT" dma_flip,
    "chip.dma" "torn=BYTES" dma_torn,
    "chip.dma" "stale" dma_stale,
    "chip.dma" "page_fault" dma_page_fault,
    "chip.dma" "razwi" dma_razwi,
    "chip.dma" "ecc" || errors("chip.dma", a_copy()),
    "chip.dma" "ecc=fatal" || errors("chip.dma", a_copy()),
    "chip.dma" "heartbeat" || errors("chip.dma", a_copy()),
    "chip.sob" "lose" sob_lose,
    "chip.sob" "duplicate" sob_duplicate,
    "chip.sob" "ecc" || errors("chip.sob", increments(1)),
    "chip.sob" "ecc=fatal" || errors("chip.sob", increments(1)),
    "chip.sob" "heartbeat" || errors("chip.sob", increments(1)),
    "chip.interrupt" "lose" interrupt_lose,
    "chip.interrupt" "duplicate" interrupt_duplicate,
    "chip.interrupt" "reorder" interrupt_reorder,
    "chip.interrupt" "late=N" interrupt_late,
    "chip.interrupt" "ecc" || errors("chip.interrupt", rings(&[])),
    "chip.interrupt" "ecc=fatal" || errors("chip.interrupt", rings(&[])),
    "chip.interrupt" "heartbeat" || errors("chip.interrupt", rings(&[])),
    "chip.walk" "page_fault" walk_page_fault,
    "chip.walk" "ecc" || errors("chip.walk:addr=0xfff0000000100000..0xfff0000000100000", a_copy()),
    "chip.walk" "ecc=fatal" || errors("chip.walk:addr=0xfff0000000100000..0xfff0000000100000", a_copy()),
    "chip.walk" "heartbeat" || errors("chip.walk:addr=0xfff0000000100000..0xfff0000000100000", a_copy()),
    "chip.completion" "lose" completion_lose,
    "chip.completion" "duplicate" completion_duplicate,
    "chip.completion" "reorder" completion_reorder,
    "chip.completion" "late=N" completion_late,
    "chip.completion" "ecc" || errors("chip.completion", Program::new().nop()),
    "chip.completion" "ecc=fatal" || errors("chip.completion", Program::new().nop()),
    "chip.completion" "heartbeat" || errors("chip.completion", Program::new().nop()),
};

#[test]
fn every_allowed_pair_is_injected() {
    for event in ChipEvent::ALL {
        let target = Target::Chip(*event);
        if *event == ChipEvent::Firmware {
            continue;
        }
        for kind in Verdict::KINDS
            .iter()
            .filter(|kind| kind.example.meets(target).is_ok())
        {
            let is_shown = |case: &&Case| case.target == target.name() && case.form == kind.form;
            let count = CASES.iter().filter(is_shown).count();
            assert_eq!(count, 1, "one case shows {target}:{}", kind.form);
        }
    }
    for case in CASES {
        eprintln!("{}:{}", case.target, case.form);
        (case.run)();
    }
    eprintln!("{} pairs of event and verdict", CASES.len());
}

fn armed(rig: &mut Rig, plan: &str) -> Arc<ChipRules> {
    let plan: Plan = plan.parse().unwrap_or_else(|error| panic!("{error}"));
    let rules = Arc::new(ChipRules::new(0, &plan, |_| ()));
    Chip::attach_faults(&mut rig.chip, &rules);
    rules
}

fn faulty(plan: &str) -> (Rig, Arc<ChipRules>) {
    let mut rig = Rig::new();
    rig.host.write(0, &pattern()).expect("inside");
    let rules = armed(&mut rig, plan);
    (rig, rules)
}

fn counts(rules: &ChipRules) -> Vec<(u64, u64)> {
    let counts = rules.counts().into_iter();
    counts.map(|count| (count.seen, count.fired)).collect()
}

const LEN: usize = 9000;

/// Bytes that are never 0.
fn pattern() -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 % 251) as u8 + 1).collect()
}

fn a_copy() -> Program {
    Program::new().copy(DRAM, HOST, LEN)
}

fn increments(count: usize) -> Program {
    (0..count).fold(Program::new(), |program, _| {
        program.sob(SOB, SobUpdate::add_signed(1))
    })
}

/// Writes vectors to the doorbell: 100, then `more`.
fn rings(more: &[u32]) -> Program {
    let first = Program::new().long(DOORBELL_VA, 100);
    more.iter()
        .fold(first, |program, &vector| program.long(DOORBELL_VA, vector))
}

fn done(tag: u64) -> Event {
    Event::CbDone { queue: QUEUE, tag }
}

fn interrupt(vector: u16) -> Event {
    Event::Interrupt { vector }
}

/// The chip reports each error once, and the event still happens.
fn errors(target: &str, program: Program) {
    let program = program.bytes();
    let run = |plan: &str| {
        let (mut rig, rules) = faulty(plan);
        rig.push(QUEUE, 7, &program);
        assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
        (rig.events(), counts(&rules))
    };
    let (plain, _) = run("");
    for (verdict, error) in [
        ("ecc", ChipError::CorrectedEcc),
        ("ecc=fatal", ChipError::Ecc),
        ("heartbeat", ChipError::Heartbeat),
    ] {
        let (mut events, counts) = run(&format!("{target}:when=1:{verdict}"));
        assert_eq!(events.remove(0), Event::Injected(error));
        assert_eq!(events, plain, "{target}:{verdict}");
        assert_eq!(counts[0].1, 1);
    }
}

fn packet_lose() {
    let (mut rig, rules) = faulty("chip.packet:queue=0..:when=2:lose");
    rig.run_ok(QUEUE, increments(3));
    assert_eq!(rig.value(0, SOB), Some(2));
    assert_eq!(counts(&rules), [(3, 1)]);
}

fn packet_hang() {
    let (mut rig, rules) = faulty("chip.packet:id=0..:when=2:hang");
    rig.push(QUEUE, 1, &increments(3).bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    assert_eq!(rig.events(), [], "it never ends, without a word");
    assert_eq!(
        (rig.value(0, SOB), rig.chip.held(QUEUE)),
        (Some(1), Some(Held::Halted))
    );
    // Other queues run on, and a reset ends it.
    rig.run_beside(PDMA_0_1, increments(1));
    rig.chip.reset(Reset::Soft).expect("reset");
    rig.run_ok(QUEUE, increments(1));
    assert_eq!(counts(&rules), [(4, 1)]);
}

fn dma_flip() {
    let bit = 8 * 5000 + 6;
    let (mut rig, rules) = faulty(&format!(
        "chip.dma:size=9000:when=1:flip={bit};chip.dma:when=2:flip=72000"
    ));
    rig.run_ok(QUEUE, a_copy());
    let mut wanted = pattern();
    wanted[5000] ^= 1 << 6;
    assert_eq!(rig.dram_bytes(0, LEN), wanted, "exactly that bit");
    assert_eq!(rig.host_bytes(0, LEN), pattern(), "the source is unchanged");
    rig.run_ok(QUEUE, a_copy());
    assert_eq!(rig.dram_bytes(0, LEN), pattern());
    assert_eq!(counts(&rules), [(2, 1), (2, 0)], "the chunk has no bit 72000");
}

/// Copies, copies that turn bytes round, and fills that arrive only in part.
fn dma_torn() {
    let swapped = LinDma::copy(DRAM, HOST, LEN as u32).with_swap(EndianSwap::Two);
    let turned: Vec<u8> = pattern()
        .chunks(2)
        .flat_map(|pair| pair.iter().rev().copied().collect::<Vec<_>>())
        .collect();
    for (program, whole) in [
        (a_copy(), pattern()),
        (Program::new().dma(swapped), turned),
        (
            Program::new().dma(LinDma::memset(DRAM, 0x0101_0101, LEN as u32)),
            vec![1; LEN],
        ),
    ] {
        let (mut rig, rules) = faulty("chip.dma:when=1:torn=1001");
        rig.run_ok(QUEUE, program);
        let mut wanted = whole;
        // A chunk of a turned copy has 4096 bytes.
        let end = match wanted[0] == pattern()[1] {
            true => 4096,
            false => LEN,
        };
        wanted[1001..end].fill(0);
        assert_eq!(rig.dram_bytes(0, LEN), wanted);
        assert_eq!(counts(&rules)[0].1, 1);
    }
}

fn dma_stale() {
    let (mut rig, rules) = faulty(&format!("chip.dma:addr={:#x}:stale", DRAM.0 + 20_000));
    rig.run_ok(QUEUE, a_copy().copy(va(DRAM, 20_000), HOST, LEN));
    assert_eq!(rig.dram_bytes(0, LEN), pattern(), "the first");
    assert_eq!(rig.dram_bytes(20_000, LEN), vec![0; LEN], "not the second");
    assert_eq!(counts(&rules), [(1, 1)]);
}

fn dma_page_fault() {
    let (mut rig, rules) = faulty(&format!("chip.dma:queue={}:page_fault", QUEUE.0));
    rig.run_beside(PDMA_0_1, Program::new().nop());
    rig.push(QUEUE, 1, &a_copy().bytes());
    rig.chip.run(BUDGET);
    let events = rig.events();
    assert!(
        matches!(events[..], [Event::PageFault(fault)] if fault.address == DRAM && fault.queue == QUEUE),
        "{events:?}"
    );
    assert_eq!(rig.dram_bytes(0, LEN), vec![0; LEN]);
    assert_eq!(counts(&rules), [(1, 1)]);
}

fn dma_razwi() {
    let (mut rig, rules) = faulty("chip.dma:when=2:razwi");
    let second = va(DRAM, 20_000);
    rig.push(
        QUEUE,
        1,
        &a_copy().copy(second, HOST, LEN).copy(DRAM, HOST, 1).bytes(),
    );
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    let (queue, address) = (QUEUE, second);
    assert_eq!(rig.events(), [Event::Razwi { queue, address }]);
    assert_eq!(rig.dram_bytes(0, LEN), pattern(), "the write before");
    assert_eq!(rig.dram_bytes(20_000, LEN), vec![0; LEN], "the write is ignored");
    rig.run_beside(PDMA_0_1, increments(1));
    rig.chip.reset(Reset::Soft).expect("reset");
    rig.run_ok(QUEUE, increments(1));
    assert_eq!(counts(&rules), [(2, 1)]);
}

fn sob_lose() {
    let (mut rig, rules) = faulty(&format!("chip.sob:id={SOB}:when=2:lose"));
    rig.run_ok(QUEUE, increments(3).sob(SOB + 1, SobUpdate::set(9)));
    assert_eq!((rig.value(0, SOB), rig.value(0, SOB + 1)), (Some(2), Some(9)));
    // A write of the driver is not of an engine.
    rig.chip.set_sob(0, SOB, SobUpdate::set(0)).expect("an object");
    assert_eq!(counts(&rules), [(3, 1)], "and none of another object");
}

fn sob_duplicate() {
    let (mut rig, rules) = faulty("chip.sob:when=1:duplicate");
    rig.run_ok(QUEUE, increments(2));
    assert_eq!(rig.value(0, SOB), Some(3));
    assert_eq!(counts(&rules), [(2, 1)]);
}

fn run_rings(plan: &str, more: &[u32]) -> Vec<Event> {
    let (mut rig, rules) = faulty(plan);
    rig.push(QUEUE, 7, &rings(more).bytes());
    rig.chip.run(BUDGET);
    let events = rig.events();
    assert!(counts(&rules).iter().all(|(_, fired)| *fired == 1), "{plan}");
    events
}

fn interrupt_lose() {
    let events = run_rings("chip.interrupt:id=101:lose", &[101, 102]);
    assert_eq!(events, [interrupt(100), interrupt(102), done(7)]);
}

fn interrupt_duplicate() {
    let events = run_rings("chip.interrupt:when=1:duplicate", &[101]);
    let wanted = [interrupt(100), interrupt(101), done(7)];
    assert_eq!(events.len(), 4, "{events:?}");
    assert!(wanted.iter().all(|event| events.contains(event)));
    assert_eq!(events.iter().filter(|event| **event == interrupt(100)).count(), 2);
}

fn interrupt_reorder() {
    let events = run_rings("chip.interrupt:when=1:reorder", &[101, 102]);
    assert_eq!(events, [interrupt(101), interrupt(100), interrupt(102), done(7)]);
    // Nothing follows it: it comes when the chip is idle.
    let events = run_rings("chip.interrupt:when=1:reorder", &[]);
    assert_eq!(events, [done(7), interrupt(100)]);
}

fn interrupt_late() {
    let events = run_rings("chip.interrupt:when=1:late=2", &[101, 102, 103]);
    assert_eq!(
        events,
        [
            interrupt(101),
            interrupt(102),
            interrupt(100),
            interrupt(103),
            done(7)
        ]
    );
}

/// Four command buffers, with tags from 0.
fn run_four(plan: &str) -> (Rig, Vec<Event>) {
    let (mut rig, rules) = faulty(plan);
    for tag in 0..4 {
        rig.push(QUEUE, tag, &Program::new().nop().bytes());
    }
    rig.chip.run(BUDGET);
    let events = rig.events();
    assert_eq!(counts(&rules)[0].1, 1);
    (rig, events)
}

fn completion_lose() {
    let (rig, events) = run_four("chip.completion:id=1:lose");
    assert_eq!(events, [done(0), done(2), done(3)]);
    assert!(rig.chip.queue_is_idle(QUEUE), "it is executed");
}

fn completion_duplicate() {
    let (_, events) = run_four("chip.completion:id=1:duplicate");
    let twice = Event::DoneTwice { queue: QUEUE, tag: 1 };
    assert_eq!(events, [done(0), done(1), twice, done(2), done(3)]);
}

fn completion_reorder() {
    let (_, events) = run_four("chip.completion:id=1:reorder");
    assert_eq!(events, [done(0), done(2), done(1), done(3)]);
}

fn completion_late() {
    let (_, events) = run_four("chip.completion:when=1:late=2");
    assert_eq!(events, [done(1), done(2), done(0), done(3)]);
    let (_, events) = run_four("chip.completion:when=1:late=4000");
    assert_eq!(
        events,
        [done(1), done(2), done(3), done(0)],
        "when the chip is idle"
    );
}

fn walk_page_fault() {
    let source = HOST.0;
    let (mut rig, rules) = faulty(&format!(
        "chip.walk:addr={source:#x}..{:#x}:page_fault",
        source + LEN as u64
    ));
    rig.push(QUEUE, 1, &a_copy().bytes());
    rig.chip.run(BUDGET);
    let events = rig.events();
    assert!(
        matches!(events[..], [Event::PageFault(fault)] if fault.address == HOST),
        "{events:?}"
    );
    assert_eq!(counts(&rules), [(1, 1)]);
    // A word's target, too.
    let word = va(HOST, 64);
    let (mut rig, _rules) = faulty(&format!("chip.walk:addr={:#x}:when=1:page_fault", word.0));
    rig.push(QUEUE, 1, &Program::new().long(word, 5).bytes());
    rig.chip.run(BUDGET);
    assert!(matches!(rig.events()[..], [Event::PageFault(fault)] if fault.address == word));
    let fetched = "chip.walk:page_fault";
    let (mut rig, _rules) = faulty(fetched);
    let at: DeviceVa = rig.push(QUEUE, 1, &Program::new().nop().bytes());
    rig.chip.run(BUDGET);
    assert!(matches!(rig.events()[..], [Event::PageFault(fault)] if fault.address == at));
}

/// A packet that waits for a fence, or a copy of several turns, is one event.
#[test]
fn hook_of_transfer_counts_no_walk() {
    let walks = |plan: &str| {
        let (mut rig, rules) = faulty(&format!("chip.walk:when=999999:ecc{plan}"));
        rig.push(QUEUE, 1, &a_copy().bytes());
        assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
        let counts = counts(&rules);
        assert!(counts.iter().skip(1).all(|&(_, fired)| fired > 0), "{plan}");
        counts[0].0
    };
    let plain = walks("");
    for verdict in ["flip=77", "torn=1", "stale"] {
        assert_eq!(walks(&format!(";chip.dma:{verdict}")), plain, "{verdict}");
    }
}

#[test]
fn repeated_packet_is_counted_once() {
    let (mut rig, rules) = faulty("chip.packet:when=900:lose");
    rig.push(QUEUE, 1, &Program::new().fence(2, 1, 1).nop().bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Blocked);
    let release = Program::new().long(rig::fence_address(QUEUE, 2), 1);
    rig.push(PDMA_0_1, 2, &release.bytes());
    assert_eq!(rig.chip.run(BUDGET), RunOutcome::Idle);
    assert_eq!(counts(&rules), [(3, 0)], "the fence, the message, the NOP");
    let (mut rig, rules) = faulty("chip.packet:when=900:lose");
    let size = 20 << 20;
    rig.run_ok(QUEUE, Program::new().dma(LinDma::memset(DRAM, 1, size)));
    assert_eq!(counts(&rules), [(1, 0)]);
}

#[test]
fn rules_end_with_their_layer() {
    let (mut rig, rules) = faulty("chip.packet:lose");
    rules.close();
    rig.run_ok(QUEUE, increments(2));
    assert_eq!((rig.value(0, SOB), counts(&rules)), (Some(2), vec![(0, 0)]));
    let again = armed(&mut rig, "chip.packet:when=1:lose");
    rig.run_ok(QUEUE, increments(2));
    assert_eq!((rig.value(0, SOB), counts(&again)), (Some(3), vec![(2, 1)]));
}

#[test]
fn rules_wait_for_a_reset() {
    let (mut rig, rules) = faulty("chip.packet:after=reset:when=1:lose;chip.packet:device=1:lose");
    rig.run_ok(QUEUE, increments(1));
    assert_eq!(counts(&rules), [(0, 0); 2]);
    rig.chip.reset(Reset::Soft).expect("reset");
    rig.run_ok(QUEUE, increments(2));
    assert_eq!(counts(&rules), [(2, 1), (0, 0)], "none of another device");
    assert_eq!(rig.value(0, SOB), Some(1));
}

/// A reset discards what rules hold back.
#[test]
fn reset_discards_late_events() {
    let (mut rig, _rules) = faulty("chip.interrupt:late=9");
    rig.push(QUEUE, 7, &rings(&[101]).bytes());
    rig.chip.run(BUDGET);
    rig.chip.reset(Reset::Soft).expect("reset");
    assert_eq!(rig.events(), []);
}
