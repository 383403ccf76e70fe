//! `gaudi decode --html` and `--perfetto`: a capture as a timeline.

mod objects;

use std::collections::HashMap;

use gaudi_capture::decode::Decoded;
use gaudi_capture::names::Names;
use gaudi_capture::record::{Event, MarkKind};
use gaudi_capture::value::{Fields, Value};
use serde_json::{Value as Json, json};

use crate::operation::{OTHERS, name_of, queues};
use objects::{Life, Objects, Sort};

/// The page, with [`TITLE`] and [`DATA`] in place of the content.
const PAGE: &str = include_str!("picture/page.html");
const TITLE: &str = "@TITLE@";
const DATA: &str = "@DATA@";
/// The longest text of a record, in characters.
const LONGEST: usize = 160;
/// The most spans, marks, lanes, names, and submissions that have not completed.
const MOST_SPANS: usize = 1 << 20;
const MOST_MARKS: usize = 1 << 16;
const MOST_LANES: usize = 1 << 12;
const MOST_NAMES: usize = 1 << 12;
const MOST_PENDING: usize = 1 << 16;

/// What a lane shows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Lane {
    /// The calls of a thread: process and thread id.
    Thread(u32, u32),
    /// The submissions of a queue, from submission to completion.
    Queue(u64),
    /// The submissions of an engine, on any of its queues.
    Engine(String),
    /// The lives of objects.
    Objects(Sort, usize),
    /// What exceeds [`MOST_LANES`].
    Others,
}

impl Lane {
    /// The process that stands for the sort of lane in a viewer of processes and threads.
    const fn group(&self) -> u32 {
        match self {
            Self::Thread(..) | Self::Others => 0,
            Self::Queue(_) => 1,
            Self::Engine(_) => 2,
            Self::Objects(..) => 3,
        }
    }
}

/// How a span is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Done = 0,
    Failed = 1,
    /// The end is not in the capture.
    Open = 2,
    /// A call that waits for the device.
    Wait = 3,
    /// The life of an object.
    Life = 4,
}

#[derive(Debug)]
struct Span {
    lane: usize,
    start_ns: u64,
    end_ns: u64,
    name: usize,
    kind: Kind,
    text: String,
}

/// A vertical line over all lanes.
#[derive(Debug)]
struct Mark {
    time_ns: u64,
    kind: &'static str,
    text: String,
}

/// A submission that has not completed.
#[derive(Debug)]
struct Pending {
    start_ns: u64,
    lanes: Vec<Lane>,
    text: String,
}

/// A timeline under construction.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    title: String,
    lanes: Vec<Lane>,
    lane_of: HashMap<Lane, usize>,
    /// Names of threads, by thread id.
    thread_names: HashMap<u32, String>,
    names: Vec<String>,
    name_numbers: HashMap<String, usize>,
    spans: Vec<Span>,
    marks: Vec<Mark>,
    /// Submissions by process, descriptor and sequence number.
    pending: HashMap<(u32, i32, u64), Pending>,
    objects: Objects,
    /// Records that exceed a limit and are not drawn.
    omitted: u64,
    last_ns: u64,
    is_lost: bool,
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number(fields: &Fields, name: &str) -> Option<u64> {
    match fields.get(name)? {
        Value::Unsigned(number) | Value::Hex(number) => Some(*number),
        _ => None,
    }
}

fn brief(decoded: &Decoded) -> String {
    let line = decoded.to_string();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// `ENODEV`: the driver answers it once the device was removed.
const ENODEV: i64 = -19;

impl Picture {
    /// A timeline with the name of the capture.
    pub(crate) fn new(title: String) -> Self {
        Self {
            title,
            ..Self::default()
        }
    }

    fn lane(&mut self, mut lane: Lane) -> usize {
        if self.lanes.len() >= MOST_LANES && !self.lane_of.contains_key(&lane) {
            lane = Lane::Others;
        }
        if let Some(&known) = self.lane_of.get(&lane) {
            return known;
        }
        self.lanes.push(lane.clone());
        self.lane_of.insert(lane, self.lanes.len() - 1);
        self.lanes.len() - 1
    }

    fn name(&mut self, mut name: String) -> usize {
        if self.names.len() >= MOST_NAMES && !self.name_numbers.contains_key(&name) {
            name = OTHERS.to_owned();
        }
        if let Some(&known) = self.name_numbers.get(&name) {
            return known;
        }
        self.names.push(name.clone());
        self.name_numbers.insert(name, self.names.len() - 1);
        self.names.len() - 1
    }

    fn span(&mut self, span: Span) {
        if self.spans.len() < MOST_SPANS {
            self.spans.push(span);
        } else {
            self.omitted += 1;
        }
    }

    fn life(&mut self, life: Life) {
        let lane = self.lane(Lane::Objects(life.sort, life.row));
        let name = self.name(life.sort.name().to_owned());
        self.span(Span {
            lane,
            start_ns: life.start_ns,
            end_ns: life.end_ns,
            name,
            kind: Kind::Life,
            text: life.text,
        });
    }

    /// Adds an event. `names` are those of the decoder after it.
    pub(crate) fn add(&mut self, event: &Event, decoded: &Decoded, names: &Names) {
        let end_ns = decoded.time_ns.saturating_add(decoded.duration_ns.unwrap_or(0));
        self.last_ns = self.last_ns.max(end_ns);
        let text = brief(decoded);
        for life in self.objects.add(event, decoded, end_ns, &text) {
            self.life(life);
        }
        match event {
            Event::Mark(mark) => {
                let kind = match mark.kind {
                    MarkKind::Fault => "fault",
                    MarkKind::DeviceLost => "lost",
                    MarkKind::Reset => "reset",
                    MarkKind::Note => return,
                };
                self.is_lost |= mark.kind == MarkKind::DeviceLost;
                self.mark(mark.time_ns, kind, lossy(&mark.text));
                return;
            }
            Event::Lost { time_ns, count, .. } => {
                self.mark(*time_ns, "missing", format!("{count} events are missing"));
                return;
            }
            Event::Process(process) => {
                let name = decoded.request.get("name");
                if let Some(Value::Text { bytes, .. }) =
                    name.filter(|_| self.thread_names.len() < MOST_PENDING)
                {
                    self.thread_names.insert(process.tid, lossy(bytes));
                }
                return;
            }
            _ => {}
        }
        let Some((pid, tid)) = decoded.thread else {
            return;
        };
        if decoded.duration_ns.is_none() {
            return;
        }
        let failed = decoded.result.is_some_and(|result| (-4095..0).contains(&result));
        let lane = self.lane(Lane::Thread(pid, tid));
        let name = self.name(name_of(decoded));
        let kind = match decoded.call.as_str() {
            _ if failed => Kind::Failed,
            "HL_IOCTL_WAIT_CS" => Kind::Wait,
            _ => Kind::Done,
        };
        self.span(Span {
            lane,
            start_ns: decoded.time_ns,
            end_ns,
            name,
            kind,
            text,
        });
        if decoded.result == Some(ENODEV) && !self.is_lost {
            self.is_lost = true;
            self.mark(
                end_ns,
                "lost",
                "the first call that failed with ENODEV".to_owned(),
            );
        }
        self.submission(pid, decoded, end_ns, names);
    }

    fn mark(&mut self, time_ns: u64, kind: &'static str, text: String) {
        self.last_ns = self.last_ns.max(time_ns);
        if self.marks.len() < MOST_MARKS {
            self.marks.push(Mark { time_ns, kind, text });
        } else {
            self.omitted += 1;
        }
    }

    /// Follows a submission from its call to the wait that reported its completion.
    fn submission(&mut self, pid: u32, decoded: &Decoded, end_ns: u64, names: &Names) {
        let Some((fd, _)) = decoded.fd else {
            return;
        };
        match decoded.call.as_str() {
            "HL_IOCTL_CS" if decoded.result == Some(0) => {
                let mut numbers = Vec::new();
                queues(&decoded.request, &mut numbers);
                numbers.sort_unstable();
                numbers.dedup();
                let engines = numbers.iter().filter_map(|&queue| names.engine(pid, fd, queue));
                let mut lanes: Vec<Lane> = engines.map(Lane::Engine).collect();
                lanes.extend(numbers.iter().map(|&queue| Lane::Queue(queue)));
                lanes.sort_unstable();
                lanes.dedup();
                if self.pending.len() >= MOST_PENDING {
                    self.omitted += 1;
                } else if let Some(seq) = number(&decoded.answer, "seq") {
                    let pending = Pending {
                        start_ns: decoded.time_ns,
                        lanes,
                        text: format!("submission {seq}: {}", brief(decoded)),
                    };
                    self.pending.insert((pid, fd, seq), pending);
                }
            }
            "HL_IOCTL_WAIT_CS" => {
                let status = decoded.answer.get("status").map(ToString::to_string);
                let kind = match (status.as_deref(), decoded.result) {
                    (Some("COMPLETED"), Some(0)) => Kind::Done,
                    (Some("BUSY"), _) => return,
                    _ => Kind::Failed,
                };
                if let Some(seq) = number(&decoded.request, "seq") {
                    if let Some(pending) = self.pending.remove(&(pid, fd, seq)) {
                        self.complete(pending, end_ns, kind);
                    }
                }
            }
            _ => {}
        }
    }

    fn complete(&mut self, pending: Pending, end_ns: u64, kind: Kind) {
        for lane in pending.lanes {
            let name = self.name(self.lane_name(&lane));
            let lane = self.lane(lane);
            self.span(Span {
                lane,
                start_ns: pending.start_ns,
                // The times of a capture can be in any order.
                end_ns: end_ns.max(pending.start_ns),
                name,
                kind,
                text: pending.text.clone(),
            });
        }
    }

    /// Ends what has no end in the capture, and sorts the spans.
    fn finish(&mut self) {
        let mut open: Vec<_> = self.pending.drain().collect();
        open.sort_unstable_by_key(|(at, _)| *at);
        for (_, pending) in open {
            self.complete(pending, self.last_ns, Kind::Open);
        }
        for mut life in self.objects.end_all(self.last_ns, ..) {
            life.text.push_str(" (not released)");
            self.life(life);
        }
        self.omitted += std::mem::take(&mut self.objects.omitted);
        self.spans.sort_by_key(|span| (span.lane, span.start_ns));
    }

    fn lane_name(&self, lane: &Lane) -> String {
        match lane {
            Lane::Thread(pid, tid) => {
                let name = self.thread_names.get(tid).or(self.thread_names.get(pid));
                let name = name.map_or("thread", String::as_str);
                format!("{name} {tid}")
            }
            Lane::Queue(queue) => format!("queue {queue}"),
            Lane::Engine(engine) => format!("engine {engine}"),
            Lane::Objects(sort, row) => format!("{} {row}", sort.name()),
            Lane::Others => OTHERS.to_owned(),
        }
    }

    /// Returns the page: complete in one file, without references to others.
    pub(crate) fn html(mut self) -> String {
        self.finish();
        let first_ns = self.first_ns();
        let mut order: Vec<usize> = (0..self.lanes.len()).collect();
        order.sort_by_key(|&lane| &self.lanes[lane]);
        let mut places = vec![0; order.len()];
        for (place, &lane) in order.iter().enumerate() {
            places[lane] = place;
        }
        let data = json!({
            "lanes": order.iter().map(|&lane| self.lane_name(&self.lanes[lane])).collect::<Vec<_>>(),
            "names": self.names,
            "omitted": self.omitted,
            "spans": self.spans.iter().map(|span| json!([
                places[span.lane],
                span.start_ns - first_ns,
                span.end_ns - span.start_ns,
                span.name,
                span.kind as u8,
                span.text,
            ])).collect::<Vec<_>>(),
            "marks": self.marks.iter().map(|mark| json!([
                mark.time_ns.saturating_sub(first_ns), mark.kind, mark.text,
            ])).collect::<Vec<_>>(),
        });
        // Without `<`, no text ends the script element.
        let data = data.to_string().replace('<', "\\u003c");
        PAGE.replacen(TITLE, &escaped(&self.title), 1)
            .replacen(DATA, &data, 1)
    }

    fn first_ns(&self) -> u64 {
        let spans = self.spans.iter().map(|span| span.start_ns);
        let marks = self.marks.iter().map(|mark| mark.time_ns);
        spans.chain(marks).min().unwrap_or(0)
    }

    /// Returns the trace event format of Chrome, which Perfetto reads.
    pub(crate) fn perfetto(mut self) -> Json {
        self.finish();
        let microseconds = |ns: u64| ns as f64 / 1e3;
        let mut events = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            let process = lane.group();
            events.push(json!({
                "ph": "M", "name": "thread_name", "pid": process, "tid": number,
                "args": { "name": self.lane_name(lane) },
            }));
        }
        for span in &self.spans {
            let process = self.lanes[span.lane].group();
            events.push(json!({
                "ph": "X", "name": self.names[span.name], "pid": process, "tid": span.lane,
                "ts": microseconds(span.start_ns), "dur": microseconds(span.end_ns - span.start_ns),
                "args": { "text": span.text, "failed": span.kind == Kind::Failed },
            }));
        }
        for mark in &self.marks {
            events.push(json!({
                "ph": "i", "s": "g", "name": format!("{}: {}", mark.kind, mark.text), "pid": 0, "tid": 0,
                "ts": microseconds(mark.time_ns),
            }));
        }
        json!({ "displayTimeUnit": "ns", "traceEvents": events })
    }
}

/// Escapes text for HTML.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // A placeholder of the page.
            '@' => escaped.push_str("&#64;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use gaudi_capture::Limits;
    use gaudi_capture::decode::Decoder;
    use gaudi_capture::record::{IoctlRecord, MarkRecord, ProcessChange, ProcessRecord};
    use proptest::prelude::*;

    use super::*;

    fn picture(name: &[u8], text: &[u8]) -> Picture {
        let mut picture = Picture::new(lossy(name));
        let mut decoder = Decoder::new(Limits::LINE);
        let events = [
            Event::Process(ProcessRecord {
                time_ns: 1,
                pid: 7,
                tid: 7,
                change: ProcessChange::Start {
                    parent: 0,
                    shares_files: false,
                    name: name.to_vec(),
                },
            }),
            Event::Ioctl(IoctlRecord {
                time_ns: 10,
                duration_ns: 5,
                pid: 7,
                tid: 7,
                request: 0xc018_6440,
                ..IoctlRecord::default()
            }),
            Event::Mark(MarkRecord {
                time_ns: 12,
                pid: 7,
                tid: 7,
                kind: MarkKind::Fault,
                text: text.to_vec(),
            }),
        ];
        for event in &events {
            let decoded = decoder.decode(event);
            picture.add(event, &decoded, decoder.names());
        }
        picture
    }

    /// Returns the data of a page.
    fn data(page: &str) -> Json {
        let start = page.find("const DATA = ").expect("the data") + "const DATA = ".len();
        let end = start + page[start..].find(";\n").expect("its end");
        serde_json::from_str(&page[start..end]).expect("JSON")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 1000 } else { 1_000_000 }))]

        #[test]
        fn no_text_leaves_its_place(
            name in prop_oneof![Just(b"</script><script>alert(1)</script>".to_vec()), Just(b"@DATA@".to_vec()), prop::collection::vec(any::<u8>(), 0..40)],
            text in prop_oneof![Just(b"</SCRIPT >".to_vec()), Just(b"<!--".to_vec()), prop::collection::vec(any::<u8>(), 0..40)],
        ) {
            let page = picture(&name, &text).html();
            let plain = picture(b"plain", b"plain").html();
            prop_assert_eq!(page.matches('<').count(), plain.matches('<').count());
            prop_assert_eq!(page.to_lowercase().matches("</script").count(), 1);
            let data = data(&page);
            prop_assert_eq!(&data["lanes"][0], &json!(format!("{} 7", lossy(&name))));
            prop_assert_eq!(&data["marks"][0][2], &json!(lossy(&text)));
        }
    }

    #[test]
    fn page_refers_to_no_other_file() {
        let page = picture(b"program", b"text").html();
        for part in ["src=", "href=", "http:", "https:", "@import", "url("] {
            assert!(!page.contains(part), "{part}");
        }
        let data = data(&page);
        assert_eq!(data["spans"][0], json!([0, 0, 5, 0, 0, data["spans"][0][5]]));
        assert_eq!(data["marks"][0][0], 2);
    }

    #[test]
    fn perfetto_has_every_span() {
        let trace = picture(b"program", b"text").perfetto();
        let events = trace["traceEvents"].as_array().expect("events");
        let kinds: Vec<_> = events.iter().map(|event| event["ph"].as_str()).collect();
        assert_eq!(kinds, [Some("M"), Some("X"), Some("i")]);
    }
}
