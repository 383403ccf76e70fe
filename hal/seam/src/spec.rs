//! [`DeviceSpec`]: one string that chooses a device and what stands around it.
//!
//! ```text
//! spec    = backend [":" selector] ["?" option *("&" option)] *("+" layer)
//! option  = key "=" value
//! layer   = name ["=" argument]          the leftmost layer is the innermost
//! ```
//! `kernel:0` · `kernel:0000:b3:00.0` · `kernel?module=3` · `map:2` ·
//! `mock:gaudi2?seed=7&dram=3GiB` · `replay:run.gcap?match=strict` · `vfio:0000:b3:00.0` ·
//! `mock:gaudi2+fault=plan.txt+trace=run.jsonl`
//!
//! `%`, `+`, `?`, `&`, `=`, `#`, white space and control characters inside a value are written as
//! `%XX`. Printing and parsing again gives the same spec.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use gaudi_spec::{ASICS, Asic, asic};

use crate::device_id::{Backend, DeviceId};
use crate::pci::{InvalidPciAddress, PciAddress};

/// A device and the layers around it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeviceSpec {
    /// What answers.
    pub backend: BackendSpec,
    /// What stands around it, innermost first.
    pub layers: Vec<LayerSpec>,
}

/// What answers behind a spec.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendSpec {
    /// The real driver.
    Kernel(KernelSelector),
    /// The nth entry of `GAUDI_MAPPING_TABLE`.
    Map(u32),
    /// A mock of this process.
    Mock(MockSpec),
    /// A device bound to vfio-pci.
    Vfio(PciAddress),
    /// A recording.
    Replay(ReplaySpec),
}

/// A recording that answers as the device that it was recorded from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplaySpec {
    /// The `.gcap` file.
    pub file: String,
    /// Which recorded call answers a request.
    pub how: ReplayMatch,
}

/// Which recorded call answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReplayMatch {
    /// The first unused one with the same arguments. Queries and waits can repeat.
    #[default]
    Best,
    /// The next one, which must have the same arguments. The first difference ends the replay.
    Strict,
}

/// How a device of the real driver is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelSelector {
    /// The first that no other process has open.
    FirstFree,
    /// N of `accelN`.
    Index(u32),
    /// PCI bus id.
    Bus(PciAddress),
    /// Module id on the server's board (`hl_info_hw_ip_info.module_id`).
    Module(u32),
}

/// Where a mock's time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Clock {
    /// `CLOCK_MONOTONIC`: waits wait.
    #[default]
    Monotonic,
    /// Time passes only when a wait has nothing else to wait for: no test sleeps.
    Virtual,
}

/// In which order a mock executes what is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// The submitter executes until its stream blocks.
    #[default]
    Running,
    /// A seed orders every packet of every stream; work proceeds only inside a wait.
    Stepped,
}

/// A mock device. It is private to its process and keyed there by name and index: a second open of
/// the same key meets the first's user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MockSpec {
    /// The chip, by its name in [`gaudi_spec::ASICS`].
    pub chip: &'static str,
    /// Key, with `index`; the same name means the same machine. Default `default`.
    pub name: String,
    /// N of the mock's `accelN`, below 256.
    pub index: u32,
    /// Seed of all that is random; 0 by default.
    pub seed: u64,
    /// User-visible device memory in bytes: a multiple of the chip's page.
    pub dram: u64,
    /// End the run at the first undefined packet or register instead of doing as the chip does.
    pub strict: bool,
    /// Whether the driver has the Gaudi3 header's `HL_MEM_OP_REG_DMABUF_FD`, which maps dma-bufs
    /// into the device. Mainline has not.
    pub import: bool,
    /// Where time comes from.
    pub clock: Clock,
    /// The order of the work.
    pub order: Order,
}

/// The name that [`MockSpec`] has when the spec gives none.
const DEFAULT_NAME: &str = "default";

impl Default for MockSpec {
    fn default() -> Self {
        Self::of(ASICS[0])
    }
}

/// Names of mocks in [`DeviceId`]s. An id is `Copy` and outlives its device, so a name is never
/// freed.
static NAMES: Mutex<BTreeMap<&'static str, &'static &'static str>> = Mutex::new(BTreeMap::new());
/// Most names of a process that ids have: a process may open any number of mocks.
const MOST_NAMES: usize = 4096;
/// Most bytes of a name that ids have.
const LONGEST_NAME: usize = 64;

impl MockSpec {
    /// The default mock of a chip.
    pub fn of(asic: &Asic) -> Self {
        Self {
            chip: asic.name,
            name: DEFAULT_NAME.to_owned(),
            index: 0,
            seed: 0,
            dram: asic.dram_user_size(),
            strict: false,
            import: false,
            clock: Clock::default(),
            order: Order::default(),
        }
    }

    /// The id of this mock. It has the mock's name, unless the name is longer than 64 bytes or the
    /// process used 4096 other names before: then it is that of the unnamed mock.
    pub fn id(&self) -> DeviceId {
        DeviceId::new(Backend::Mock, self.index).named(self.interned_name())
    }

    fn interned_name(&self) -> Option<&'static &'static str> {
        if self.name == DEFAULT_NAME || self.name.len() > LONGEST_NAME {
            return None;
        }
        let name = Encoded(&self.name).to_string();
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name.as_str()) {
            return Some(*known);
        }
        if names.len() >= MOST_NAMES {
            return None;
        }
        let name: &'static str = name.leak();
        let id: &'static &'static str = Box::leak(Box::new(name));
        names.insert(name, id);
        Some(id)
    }
}

/// One layer: a wrapper over what stands to its left.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LayerSpec {
    /// One of [`LAYERS`].
    pub name: String,
    /// The layer's argument: a file, a plan.
    pub argument: Option<String>,
}

/// The layers' names.
pub const LAYERS: [&str; 4] = ["fault", "record", "trace", "validate"];

/// The backends' names.
pub const BACKENDS: [&str; 5] = ["kernel", "map", "mock", "replay", "vfio"];

/// Why a string is not a spec: the problem, its place, and what would be right.
///
/// `Debug` prints the message, which a `main` that returns the error shows.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("device spec: {problem} in {part:?}; {wanted}")]
pub struct SpecError {
    /// The part at fault, as it was written.
    pub part: String,
    /// The problem.
    pub problem: String,
    /// What would be right.
    pub wanted: String,
}

impl fmt::Debug for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn wrong<T>(part: &str, problem: impl Into<String>, wanted: impl Into<String>) -> Result<T, SpecError> {
    // A message is for a terminal: a spec of a megabyte is not repeated whole.
    let part = part.chars().take(80).collect();
    Err(SpecError {
        part,
        problem: problem.into(),
        wanted: wanted.into(),
    })
}

impl DeviceSpec {
    /// A spec with no layers.
    pub fn bare(backend: BackendSpec) -> Self {
        Self {
            backend,
            layers: Vec::new(),
        }
    }

    /// The default mock, of the first chip of [`gaudi_spec::ASICS`].
    pub fn mock() -> Self {
        Self::bare(BackendSpec::Mock(MockSpec::default()))
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parts = text.split('+');
        // `split` returns at least one part.
        let head = parts.next().unwrap_or_default();
        let backend = parse_backend(head)?;
        let layers = parts.map(parse_layer).collect::<Result<_, _>>()?;
        Ok(Self { backend, layers })
    }
}

fn parse_backend(head: &str) -> Result<BackendSpec, SpecError> {
    let (path, options) = head
        .split_once('?')
        .map_or((head, None), |(path, options)| (path, Some(options)));
    let (name, selector) = path
        .split_once(':')
        .map_or((path, None), |(name, selector)| (name, Some(selector)));
    let options = options.map_or(Ok(Vec::new()), parse_options)?;
    if !["mock", "kernel", "replay"].contains(&name) {
        if let Some((key, _)) = options.first() {
            return wrong(head, format!("{name} takes no option {key:?}"), "leave it out");
        }
    }
    let need = |what: &str| match selector {
        Some(selector) if !selector.is_empty() => decode(selector),
        _ => wrong(head, "nothing after the colon", what),
    };
    match name {
        "kernel" => parse_kernel(head, selector, &options).map(BackendSpec::Kernel),
        "mock" => parse_mock(head, selector, &options).map(BackendSpec::Mock),
        "map" => Ok(BackendSpec::Map(number(
            &need("write map:N, N the table's index")?,
            u32::MAX,
        )?)),
        "vfio" => need("write vfio:0000:b3:00.0")
            .and_then(|text| parse_bus(&text))
            .map(BackendSpec::Vfio),
        "replay" => parse_replay(head, need("write replay:FILE")?, &options).map(BackendSpec::Replay),
        _ => wrong(
            head,
            format!("unknown backend {name:?}"),
            format!("known: {}", BACKENDS.join(", ")),
        ),
    }
}

fn parse_options(text: &str) -> Result<Vec<(String, String)>, SpecError> {
    let mut options: Vec<(String, String)> = Vec::new();
    for option in text.split('&') {
        let Some((key, value)) = option.split_once('=') else {
            return wrong(
                text,
                format!("the option {option:?} without a value"),
                "write key=value",
            );
        };
        let (key, value) = (decode(key)?, decode(value)?);
        if options.iter().any(|(known, _)| *known == key) {
            return wrong(text, format!("the option {key:?} stands twice"), "give it once");
        }
        options.push((key, value));
    }
    Ok(options)
}

fn parse_kernel(
    head: &str,
    selector: Option<&str>,
    options: &[(String, String)],
) -> Result<KernelSelector, SpecError> {
    match (selector, options) {
        (None, []) => Ok(KernelSelector::FirstFree),
        (None, [(key, value)]) if key == "module" => Ok(KernelSelector::Module(number(value, 255)?)),
        (Some(selector), []) => {
            let selector = decode(selector)?;
            if selector.contains(':') {
                parse_bus(&selector).map(KernelSelector::Bus)
            } else {
                number(&selector, 255).map(KernelSelector::Index)
            }
        }
        _ => wrong(
            head,
            "a kernel device is chosen in one way",
            "write kernel, kernel:N, kernel:BUS or kernel?module=N",
        ),
    }
}

fn parse_replay(head: &str, file: String, options: &[(String, String)]) -> Result<ReplaySpec, SpecError> {
    let mut replay = ReplaySpec {
        file,
        how: ReplayMatch::default(),
    };
    for (key, value) in options {
        if key != "match" {
            return wrong(head, format!("unknown option {key:?}"), "known: match");
        }
        set(&mut replay.how, choice(value, MATCHES))?;
    }
    Ok(replay)
}

const MATCHES: [(&str, ReplayMatch); 2] = [("best", ReplayMatch::Best), ("strict", ReplayMatch::Strict)];

fn parse_mock(
    head: &str,
    selector: Option<&str>,
    options: &[(String, String)],
) -> Result<MockSpec, SpecError> {
    let name = selector.unwrap_or(ASICS[0].name);
    let Some(asic) = asic(name) else {
        let known = ASICS.map(|asic| asic.name).join(", ");
        return wrong(
            head,
            format!("unknown ASIC {name:?}"),
            format!("known to the mock: {known}"),
        );
    };
    let mut mock = MockSpec::of(asic);
    for (key, value) in options {
        let Some((.., set)) = OPTIONS.iter().find(|(known, ..)| known == key) else {
            let known = OPTIONS.map(|(known, ..)| known).join(", ");
            return wrong(head, format!("unknown option {key:?}"), format!("known: {known}"));
        };
        set(&mut mock, value)?;
    }
    Ok(mock)
}

/// An option of a mock: its key, its text unless it has the default, and what sets it.
type MockOption = (
    &'static str,
    fn(&MockSpec) -> Option<String>,
    fn(&mut MockSpec, &str) -> Result<(), SpecError>,
);

const OPTIONS: [MockOption; 8] = [
    (
        "name",
        |mock| (mock.name != DEFAULT_NAME).then(|| Encoded(&mock.name).to_string()),
        |mock, text| match text {
            "" => wrong(text, "an empty name", "give a name or leave it out"),
            name => set(&mut mock.name, Ok(name.to_owned())),
        },
    ),
    (
        "index",
        |mock| unless_zero(mock.index.into()),
        |mock, text| set(&mut mock.index, number(text, 255)),
    ),
    (
        "seed",
        |mock| unless_zero(mock.seed),
        |mock, text| set(&mut mock.seed, number(text, u64::MAX)),
    ),
    (
        "dram",
        // A chip that the table lacks has no default.
        |mock| (asic(mock.chip).map(Asic::dram_user_size) != Some(mock.dram)).then(|| size(mock.dram)),
        |mock, text| match asic(mock.chip) {
            Some(asic) => set(&mut mock.dram, parse_dram(text, asic)),
            None => unreachable!("a parsed mock has a chip of the table"),
        },
    ),
    (
        "strict",
        |mock| unless_zero(mock.strict.into()),
        |mock, text| set(&mut mock.strict, choice(text, SWITCH)),
    ),
    (
        "import",
        |mock| unless_zero(mock.import.into()),
        |mock, text| set(&mut mock.import, choice(text, SWITCH)),
    ),
    (
        "clock",
        |mock| (mock.clock == Clock::Virtual).then(|| "virtual".to_owned()),
        |mock, text| {
            let known = [("monotonic", Clock::Monotonic), ("virtual", Clock::Virtual)];
            set(&mut mock.clock, choice(text, known))
        },
    ),
    (
        "order",
        |mock| (mock.order == Order::Stepped).then(|| "stepped".to_owned()),
        |mock, text| {
            let known = [("running", Order::Running), ("stepped", Order::Stepped)];
            set(&mut mock.order, choice(text, known))
        },
    ),
];

const SWITCH: [(&str, bool); 2] = [("0", false), ("1", true)];

fn unless_zero(number: u64) -> Option<String> {
    (number != 0).then(|| number.to_string())
}

fn set<T>(field: &mut T, value: Result<T, SpecError>) -> Result<(), SpecError> {
    *field = value?;
    Ok(())
}

/// Parses a number of bytes: a decimal number, whole or not, and a unit.
///
/// `k`, `m`, `g` and `KiB`, `MiB`, `GiB` are powers of 1024, in any case: `4096`, `64k`, `1.5MiB`,
/// `3GiB`. `kB` and `MB` are rejected: programs disagree whether they are powers of 1000 or 1024.
///
/// # Errors
/// The text is not such a number, is not a whole number of bytes, or is 2^64 and more.
pub fn parse_bytes(text: &str) -> Result<u64, SpecError> {
    const NOT_WHOLE: &str = "not a whole number of bytes";
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let written = &text[digits.len()..];
    let unit: u64 = match written.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => {
            return wrong(
                text,
                format!("unknown unit {written:?}"),
                "known: B, KiB (k), MiB (m), GiB (g)",
            );
        }
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let fraction = match fraction.trim_end_matches('0') {
        "" if !fraction.is_empty() => "0",
        rest => rest,
    };
    // 2^30 parts of a byte have 30 decimals at most, and 18 fit a word.
    if fraction.len() > 18 {
        return wrong(text, NOT_WHOLE, "wanted at most 18 decimals");
    }
    let scale = 10_u128.pow(fraction.len() as u32);
    let (whole, fraction): (u64, u64) = (number(whole, u64::MAX)?, number(fraction, u64::MAX)?);
    let parts = u128::from(fraction) * u128::from(unit);
    if parts % scale != 0 {
        return wrong(text, NOT_WHOLE, "wanted a multiple of 1 byte");
    }
    let bytes = u128::from(whole) * u128::from(unit) + parts / scale;
    u64::try_from(bytes).or_else(|_| wrong(text, "too many bytes", "wanted fewer than 2^64"))
}

/// User-visible device memory: a multiple of the chip's page.
fn parse_dram(text: &str, asic: &Asic) -> Result<u64, SpecError> {
    let (page, most) = (asic.dram_page, asic.dram_user_size());
    let bytes = parse_bytes(text)?;
    if bytes == 0 || bytes > most {
        return wrong(
            text,
            format!("not a memory size of {}", asic.name),
            format!("wanted {} to {}", size(page), size(most)),
        );
    }
    if bytes % page != 0 {
        let (below, above) = (bytes / page * page, bytes.next_multiple_of(page));
        let wanted = match below {
            0 => format!("the nearest is {}", size(above)),
            _ => format!("the nearest are {} and {}", size(below), size(above)),
        };
        return wrong(
            text,
            format!("not a multiple of the chip's page of {}", size(page)),
            wanted,
        );
    }
    Ok(bytes)
}

/// The largest binary unit that gives a whole number.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes % (1 << 30) == 0 => format!("{}GiB", bytes >> 30),
        _ if bytes % (1 << 20) == 0 => format!("{}MiB", bytes >> 20),
        _ => bytes.to_string(),
    }
}

fn parse_layer(text: &str) -> Result<LayerSpec, SpecError> {
    let (name, argument) = match text.split_once('=') {
        Some((name, argument)) => (name, Some(decode(argument)?)),
        None => (text, None),
    };
    if !LAYERS.contains(&name) {
        return wrong(
            text,
            format!("unknown layer {name:?}"),
            format!("known: {}", LAYERS.join(", ")),
        );
    }
    Ok(LayerSpec {
        name: name.to_owned(),
        argument,
    })
}

fn number<T: TryFrom<u64> + Copy + Into<u64>>(text: &str, most: T) -> Result<T, SpecError> {
    let most: u64 = most.into();
    let value = gaudi_sys::parse::decimal(text).filter(|&value| value <= most);
    match value.and_then(|value| T::try_from(value).ok()) {
        Some(value) => Ok(value),
        None => wrong(
            text,
            "not a number in range",
            format!("wanted a decimal number up to {most}"),
        ),
    }
}

fn choice<T, const N: usize>(text: &str, known: [(&str, T); N]) -> Result<T, SpecError> {
    let names = known.each_ref().map(|(name, _)| *name).join(", ");
    match known.into_iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(value),
        None => wrong(text, format!("unknown value {text:?}"), format!("known: {names}")),
    }
}

fn reserved(c: char) -> bool {
    matches!(c, '%' | '+' | '?' | '&' | '=' | '#') || c.is_control() || c.is_whitespace()
}

fn decode(text: &str) -> Result<String, SpecError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let hex = |digit: Option<u8>| digit.and_then(|digit| char::from(digit).to_digit(16));
        match (hex(rest.next()), hex(rest.next())) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => return wrong(text, "a % without two hex digits", "write %25 for a %"),
        }
    }
    String::from_utf8(bytes).map_or_else(|_| wrong(text, "bytes that are no UTF-8", "encode UTF-8"), Ok)
}

struct Encoded<'a>(&'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if !reserved(c) {
                fmt::Write::write_char(f, c)?;
            } else {
                let mut buffer = [0; 4];
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    write!(f, "%{byte:02X}")?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.backend {
            BackendSpec::Kernel(KernelSelector::FirstFree) => write!(f, "kernel")?,
            BackendSpec::Kernel(KernelSelector::Index(index)) => write!(f, "kernel:{index}")?,
            BackendSpec::Kernel(KernelSelector::Bus(bus)) => write!(f, "kernel:{bus}")?,
            BackendSpec::Kernel(KernelSelector::Module(module)) => write!(f, "kernel?module={module}")?,
            BackendSpec::Map(index) => write!(f, "map:{index}")?,
            BackendSpec::Mock(mock) => write!(f, "{mock}")?,
            BackendSpec::Vfio(bus) => write!(f, "vfio:{bus}")?,
            BackendSpec::Replay(replay) => write!(f, "{replay}")?,
        }
        for layer in &self.layers {
            write!(f, "+{}", layer.name)?;
            if let Some(argument) = &layer.argument {
                write!(f, "={}", Encoded(argument))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for ReplaySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replay:{}", Encoded(&self.file))?;
        match self.how {
            ReplayMatch::Best => Ok(()),
            ReplayMatch::Strict => f.write_str("?match=strict"),
        }
    }
}

impl fmt::Display for MockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mock:{}", self.chip)?;
        let shown = OPTIONS
            .iter()
            .filter_map(|(key, text, _)| Some((key, text(self)?)));
        for (at, (key, text)) in shown.enumerate() {
            let separator = if at == 0 { '?' } else { '&' };
            write!(f, "{separator}{key}={text}")?;
        }
        Ok(())
    }
}

fn parse_bus(text: &str) -> Result<PciAddress, SpecError> {
    let parsed = text.parse();
    parsed.or_else(|InvalidPciAddress| wrong(text, InvalidPciAddress::PROBLEM, InvalidPciAddress::WANTED))
}
