//! Recordings of the real driver, made in the lab, answer the session as the driver did.
//!
//! A kernel's recording is two files. `driver-X.txt` is the capture as text and `driver-X.answers`
//! is what the session printed. docs/src/how-to/lab.md shows the command that records them.

const RECORDINGS: [[&str; 2]; 2] = [
    ["6.12", include_str!("../fixtures/driver-6.12.answers")],
    ["7.3", include_str!("../fixtures/driver-7.3.answers")],
];

#[test]
fn drivers_recording_answers_as_the_driver() {
    for [kernel, answers] in RECORDINGS {
        for how in ["", "?match=strict"] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");
            let spec = format!("replay:{folder}/driver-{kernel}.txt{how}");
            let io = gaudi_hal::open(&spec.parse().expect("a spec")).expect("a replay");
            let replayed =
                gaudi_conformance::session(&io).unwrap_or_else(|failure| panic!("{spec}: {failure}"));
            let recorded: Vec<_> = answers.lines().collect();
            assert_eq!(replayed, recorded, "Linux {kernel}, {spec}");
        }
    }
}

/// The mock gives the answers that do not depend on the machine.
#[test]
fn mock_runs_the_session() {
    let io = gaudi_hal::open(&"mock:gaudi2?name=session".parse().expect("a spec")).expect("a mock");
    let answers = gaudi_conformance::session(&io).expect("the session runs");
    for [kernel, recorded] in RECORDINGS {
        let names = |lines: &[String]| -> Vec<String> {
            let name = |line: &String| line.split(':').next().unwrap_or_default().to_owned();
            lines.iter().map(name).collect()
        };
        let recorded: Vec<_> = recorded.lines().map(str::to_owned).collect();
        assert_eq!(names(&answers), names(&recorded), "Linux {kernel}");
        // The mock knows why it rejects an operation, so kinds of errors can differ.
        let errno = |line: &String| {
            let (name, error) = line.split_once(": Err((")?;
            Some((name.to_owned(), error.split_once(", ")?.1.to_owned()))
        };
        let errnos = [&answers, &recorded].map(|lines| lines.iter().filter_map(errno).collect::<Vec<_>>());
        assert_eq!(errnos[0], errnos[1], "Linux {kernel}");
        assert!(errnos[0].len() > 10, "{answers:?}");
    }
}
