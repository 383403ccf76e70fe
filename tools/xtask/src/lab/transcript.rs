//! [`Transcript`]: what a guest writes, as lines of tests.

use super::channel::Message;
use crate::test::report::test_line;

/// What the guest's programs printed, in the form that the report of cargo's own tests reads.
#[derive(Debug, Default)]
pub(super) struct Transcript {
    kernel: String,
    program: String,
    pub(super) lines: Vec<String>,
    /// The newest line, for the log.
    pub(super) last: Option<String>,
    pub(super) skips: String,
    pub(super) ended: Vec<String>,
    pub(super) worst: i32,
    /// The case that a suite of conformance began last.
    case: Option<String>,
    /// The cases that passed their deadline, each with what its program reported about it.
    pub(super) hung: Vec<(String, Vec<String>)>,
}

impl Transcript {
    /// Nothing yet; `kernel` is the guest's name.
    pub(super) fn of(kernel: &str) -> Transcript {
        Transcript {
            kernel: kernel.to_owned(),
            ..Transcript::default()
        }
    }

    /// Takes a message. Returns the line for the terminal: one for each test, and how a program
    /// died.
    pub(super) fn hear(&mut self, message: &Message) -> Option<String> {
        self.last = None;
        let (word, text) = match message {
            Message::Begin(name) => {
                self.program.clone_from(name);
                self.case = None;
                self.last = Some(format!("== {name}"));
                return None;
            }
            Message::Out(line) | Message::Err(line) => {
                self.last = Some(line.clone());
                self.lines.push(line.clone());
                self.hear_case(line);
                let (test, verdict) = test_line(line)?;
                match verdict.split([',', ' ']).next() {
                    Some("ok") => ("ok  ", test.to_owned()),
                    Some("ignored") => ("skip", test.to_owned()),
                    _ => ("FAIL", test.to_owned()),
                }
            }
            Message::Skip(line) => {
                self.skips += &format!("{line}\n");
                ("skip", line.clone())
            }
            Message::End { status, seconds } => {
                self.ended.push(self.program.clone());
                self.last = Some(format!("-- status {status} at {seconds} s"));
                self.worst = self.worst.max(*status);
                if *status == 0 {
                    return None;
                }
                // As cargo prints it, so that a program that died without a result is counted.
                let rerun = format!("`{} in the lab`", self.program);
                self.lines
                    .push(format!("error: test failed, to rerun pass {rerun}"));
                ("FAIL", format!("ended with status {status}"))
            }
            Message::Noise(line) => return Some(format!("?     {}  {line}", self.kernel)),
            Message::Boot(_) | Message::Done(_) => return None,
        };
        Some(format!("{word}  {}  {}  {text}", self.kernel, self.program))
    }

    /// Follows the lines of gaudi-harness's `Watch`.
    fn hear_case(&mut self, line: &str) {
        let case = line.strip_prefix("case ");
        if let Some(name) = case.and_then(|rest| rest.strip_suffix(" begins")) {
            self.case = Some(name.to_owned());
        } else if let Some((name, _)) = case.and_then(|rest| rest.split_once(" did not end in ")) {
            self.hung.push((name.to_owned(), Vec::new()));
        }
        // The report of a case that hangs is the last of its program.
        if let Some((_, report)) = self.hung.last_mut() {
            report.push(line.to_owned());
        }
    }

    /// The program that began last, and its case if it names cases.
    pub(super) fn place(&self) -> String {
        match (self.program.as_str(), &self.case) {
            ("", _) => "nothing".to_owned(),
            (program, None) => program.to_owned(),
            (program, Some(case)) => format!("{program}, case {case}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Row;
    use crate::run::Outcome;
    use crate::test::report::{Report, skips};

    fn transcript(messages: &[Message]) -> (Transcript, Vec<String>) {
        let mut transcript = Transcript::of("7.3");
        let shown = messages
            .iter()
            .filter_map(|message| transcript.hear(message))
            .collect();
        (transcript, shown)
    }

    fn program(name: &str, lines: &[&str], status: i32) -> Vec<Message> {
        let mut messages = vec![Message::Begin(name.into())];
        messages.extend(lines.iter().map(|line| Message::Out((*line).into())));
        messages.push(Message::End { status, seconds: 1.0 });
        messages
    }

    #[test]
    fn each_test_prints_one_line() {
        let lines = [
            "running 1 test",
            "test maps ... ok",
            "test later ... ignored, needs a NIC",
            "test bad ... FAILED",
        ];
        let (_, shown) = transcript(&program("gaudi-lab/dmabuf", &lines, 0));
        assert_eq!(
            shown,
            [
                "ok    7.3  gaudi-lab/dmabuf  maps",
                "skip  7.3  gaudi-lab/dmabuf  later",
                "FAIL  7.3  gaudi-lab/dmabuf  bad"
            ],
            "other lines stay in the log"
        );
    }

    #[test]
    fn crashed_program_is_a_failure() {
        let (transcript, shown) = transcript(&program("gaudi-sys/lib", &["test a ... ok"], 139));
        assert_eq!(transcript.worst, 139, "the status is kept");
        assert!(
            shown.iter().any(|line| line.contains("status 139")),
            "it is shown: {shown:?}"
        );
        let mut row = Row::default();
        let outcome = Outcome {
            code: Some(139),
            timed_out: false,
            log: std::path::PathBuf::new(),
        };
        Report::read(transcript.lines.into_iter()).into_row(&mut row, "the guest", &outcome);
        assert_eq!(row.counts.failed, 1, "it is counted: {row:?}");
        assert!(
            row.failures[0].contains("gaudi-sys/lib"),
            "it is named: {:?}",
            row.failures
        );
    }

    #[test]
    fn last_case_and_hung_case_are_named() {
        let begin = Message::Begin("gaudi-lab/card_resets".into());
        let lines = ["case a.first begins", "case b.second begins"].map(|line| Message::Err(line.into()));
        let (mut heard, _) = transcript(&[&[begin], &lines[..]].concat());
        assert_eq!(heard.place(), "gaudi-lab/card_resets, case b.second");
        assert!(heard.hung.is_empty(), "none passed its deadline");
        for line in ["case b.second did not end in 300 s", "thread 7 waits"] {
            heard.hear(&Message::Err(line.into()));
        }
        let (case, report) = &heard.hung[0];
        assert_eq!(
            (case.as_str(), report.len()),
            ("b.second", 2),
            "the case and its report"
        );
        heard.hear(&Message::Begin("gaudi-lab/card".into()));
        assert_eq!(heard.place(), "gaudi-lab/card", "another program names no case");
    }

    #[test]
    fn skips_in_the_guest_are_read() {
        let (transcript, _) = transcript(&[Message::Skip("SKIP maps: a Gaudi".into())]);
        assert_eq!(
            skips(&transcript.skips)[0].need,
            "a Gaudi",
            "as it would be read from the file"
        );
    }
}
