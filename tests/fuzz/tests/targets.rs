//! Every target on its seeds, on mutations of them, and on random bytes; and the folder `fuzz/`.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use gaudi_fuzz::{Input, TARGETS, Target, as_text, seeds};
use gaudi_random::Rng;

/// Returns the text of a seed file that shows the failure.
fn report(target: &Target, bytes: &[u8]) -> String {
    let (ending, text) = as_text(target, bytes);
    format!(
        "{} fails; as fuzz/seeds/{}/NAME.{ending}:\n{text}",
        target.name, target.name
    )
}

fn run(target: &Target, bytes: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))) {
        eprintln!("{}", report(target, bytes));
        std::panic::resume_unwind(panic);
    }
}

/// Changes an input in one to four places: bits, bytes, words, parts removed, doubled or replaced.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    const NUMBERS: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u32::MAX as u64, u64::MAX];
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        let len = (rng.below(16) as usize).min(bytes.len() - at);
        match rng.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            1 if at < bytes.len() => bytes[at] = rng.below(256) as u8,
            2 => {
                bytes.drain(at..at + len);
            }
            3 => {
                let part = bytes[at..at + len].to_vec();
                bytes.splice(at..at, part);
            }
            4 => {
                let number = rng.pick(&NUMBERS).to_le_bytes();
                let width = 1 << rng.below(4);
                let end = (at + width).min(bytes.len());
                bytes.splice(at..end, number[..width].iter().copied());
            }
            5 => {
                let other = &others[rng.below(others.len() as u64) as usize];
                let from = rng.below(other.len() as u64 + 1) as usize;
                let end = (from + 64).min(other.len());
                bytes.splice(at..at + len, other[from..end].iter().copied());
            }
            _ => bytes.insert(at, rng.below(256) as u8),
        }
    }
    bytes.truncate(8192);
}

/// Runs a target on its seeds and on `cases` inputs made of them.
fn check(name: &str) {
    let target = TARGETS
        .iter()
        .find(|target| target.name == name)
        .expect("a target");
    let seeds = seeds(target).expect("seeds");
    assert!(!seeds.is_empty(), "{name} has no seed");
    for seed in &seeds {
        run(target, &seed.bytes);
    }
    let all: Vec<Vec<u8>> = seeds.into_iter().map(|seed| seed.bytes).collect();
    let (seed, cases) = (gaudi_random::seed(), gaudi_random::cases(target.cases));
    println!(
        "{name}: {} seeds, {cases} cases, GAUDI_TEST_SEED={seed}",
        all.len()
    );
    for case in 0..cases {
        let mut rng = Rng::of_case(seed, case.into());
        let mut bytes = match rng.below(8) {
            0 => (0..rng.below(200)).map(|_| rng.below(256) as u8).collect(),
            _ => all[rng.below(all.len() as u64) as usize].clone(),
        };
        mutate(&mut rng, &mut bytes, &all);
        if target.input == Input::Text {
            bytes = String::from_utf8_lossy(&bytes).into_owned().into_bytes();
        }
        run(target, &bytes);
    }
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

tests! {
    device_spec fault_plan mapping_table sysfs trace gcap gcap_frame capture_text codec packets
    model registers vfio_user nic_wire keys operations
}

#[test]
fn each_target_has_file_and_seeds() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let names = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(fuzz.join(folder)).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").path());
        names
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect()
    };
    let wanted: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names("fuzz_targets"), wanted, "fuzz/fuzz_targets");
    assert_eq!(names("seeds"), wanted, "fuzz/seeds");
    let tested: BTreeSet<String> = TESTED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(tested, wanted, "tests of this file");
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).expect("a manifest");
    for name in &wanted {
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "fuzz/Cargo.toml has no {name}"
        );
        let file = fs::read_to_string(fuzz.join(format!("fuzz_targets/{name}.rs"))).expect("a file");
        assert!(
            file.contains(&format!("gaudi_fuzz::{name}(")),
            "{name}.rs runs another body"
        );
    }
}
