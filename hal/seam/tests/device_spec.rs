//! What a device spec means, how it prints, and how a wrong one is refused.

use gaudi_seam::{
    BackendSpec, Clock, DeviceSpec, KernelSelector, LayerSpec, MockSpec, Order, PciAddress, ReplayMatch,
    ReplaySpec,
};
use proptest::prelude::*;

fn parse(text: &str) -> DeviceSpec {
    text.parse()
        .unwrap_or_else(|error| panic!("{text:?} must parse: {error}"))
}

fn refusal(text: &str) -> String {
    text.parse::<DeviceSpec>().expect_err(text).to_string()
}

#[test]
fn documented_specs_round_trip() {
    for text in [
        "kernel",
        "kernel:0",
        "kernel:0000:b3:00.0",
        "kernel?module=3",
        "map:2",
        "vfio:0000:b3:00.0",
        "vfio:10000:01:00.0",
        "replay:run.gcap",
        "replay:run.gcap?match=strict",
        "mock:gaudi2",
        "mock:gaudi2?seed=7&dram=3GiB",
        "mock:gaudi2?name=b&index=1&strict=1&clock=virtual&order=stepped",
        "mock:gaudi2+fault=plan.txt+trace=run.jsonl",
    ] {
        assert_eq!(parse(text).to_string(), text);
    }
}

#[test]
fn short_forms_print_in_full() {
    assert_eq!(parse("mock").to_string(), "mock:gaudi2");
    assert_eq!(parse("kernel:b3:00.1").to_string(), "kernel:0000:b3:00.1");
    assert_eq!(
        parse("mock?dram=805306368").to_string(),
        "mock:gaudi2?dram=768MiB"
    );
}

#[test]
fn mock_id_has_its_name() {
    let id = |text: &str| match parse(text).backend {
        BackendSpec::Mock(mock) => mock.id(),
        other => panic!("{other:?} is not a mock"),
    };
    for (text, shown) in [
        ("mock", "mock0"),
        ("mock:gaudi2?name=default&index=3", "mock3"),
        ("mock:gaudi2?name=foo&seed=7", "mock0?name=foo"),
        ("mock:gaudi2?name=foo&index=1", "mock1?name=foo"),
        ("mock:gaudi2?name=a%0Ab", "mock0?name=a%0Ab"),
    ] {
        assert_eq!(id(text).to_string(), shown, "the id of {text}");
    }
    let (foo, bar) = ("mock:gaudi2?name=foo", "mock:gaudi2?name=bar");
    assert_eq!(id(foo), id(foo));
    assert_ne!(id(foo), id(bar));
    assert_ne!(id(foo), id("mock"));

    // The names of a process are bounded, so this test is the only one that uses them up.
    let id = |name: String| {
        let mock = MockSpec {
            name,
            ..MockSpec::default()
        };
        mock.id().to_string()
    };
    assert_eq!(id("n".repeat(64)).len(), "mock0?name=".len() + 64);
    assert_eq!(id("n".repeat(65)), "mock0", "a name of 65 bytes");
    let first = id("first".to_owned());
    for number in 0..4096 {
        id(format!("many-{number}"));
    }
    assert_eq!(id("late".to_owned()), "mock0", "a name past the limit");
    assert_eq!(id("first".to_owned()), first, "a name from before the limit");
}

#[test]
fn the_leftmost_layer_is_the_innermost() {
    let names: Vec<_> = parse("mock+fault=a+trace=b")
        .layers
        .into_iter()
        .map(|layer| layer.name)
        .collect();
    assert_eq!(names, ["fault", "trace"]);
}

#[test]
fn size_between_pages_names_both_neighbours() {
    let text = refusal("mock:gaudi2?dram=1GiB");
    assert!(text.contains("768MiB") && text.contains("1536MiB"), "{text}");
}

#[test]
fn wrong_specs_say_what_would_be_right() {
    for (text, expected) in [
        ("", "known: kernel, map, mock, replay, vfio"),
        ("gpu:0", "unknown backend \"gpu\""),
        ("mock:gaudi9", "known to the mock: gaudi2"),
        ("mock?seed", "write key=value"),
        ("mock?seed=1&seed=2", "stands twice"),
        (
            "mock?speed=1",
            "known: name, index, seed, dram, strict, import, clock, order",
        ),
        ("mock?seed=-1", "decimal number"),
        ("mock?seed=99999999999999999999", "decimal number"),
        ("mock?dram=1TB", "known: B, KiB (k), MiB (m), GiB (g)"),
        ("mock?dram=999999GiB", "not a memory size of gaudi2"),
        ("mock?clock=sundial", "known: monotonic, virtual"),
        ("mock+speedup", "known: fault, record, trace, validate"),
        ("mock+trace=%zz", "%25"),
        ("kernel:0?module=1", "one way"),
        ("kernel:256", "up to 255"),
        ("kernel:0000:b3:00.8", "0000:b3:00.0"),
        ("kernel:123456789:b3:00.0", "0000:b3:00.0"),
        ("kernel:000:b3:00.0", "0000:b3:00.0"),
        ("kernel:0000:b3:20.0", "0000:b3:00.0"),
        ("vfio:", "write vfio:0000:b3:00.0"),
        ("replay:x?a=b", "unknown option \"a\""),
        ("replay:x?match=loose", "known: best, strict"),
    ] {
        let refused = refusal(text);
        assert!(
            refused.contains(expected),
            "{text:?} must be refused with {expected:?}, not {refused:?}"
        );
    }
}

fn any_spec() -> impl Strategy<Value = DeviceSpec> {
    let pci = || {
        (any::<u32>(), any::<u8>(), 0u8..32, 0u8..8).prop_map(|(domain, bus, device, function)| PciAddress {
            domain,
            bus,
            device,
            function,
        })
    };
    let mock = (
        "\\PC{1,8}",
        0u32..256,
        any::<u64>(),
        1u64..128,
        any::<[bool; 4]>(),
    )
        .prop_map(
            |(name, index, seed, pages, [strict, import, real, running])| MockSpec {
                chip: "gaudi2",
                name,
                index,
                seed,
                dram: pages * (768 << 20),
                strict,
                import,
                clock: if real { Clock::Monotonic } else { Clock::Virtual },
                order: if running { Order::Running } else { Order::Stepped },
            },
        );
    let backend = prop_oneof![
        Just(BackendSpec::Kernel(KernelSelector::FirstFree)),
        (0u32..256).prop_map(|n| BackendSpec::Kernel(KernelSelector::Index(n))),
        (0u32..256).prop_map(|n| BackendSpec::Kernel(KernelSelector::Module(n))),
        pci().prop_map(|bus| BackendSpec::Kernel(KernelSelector::Bus(bus))),
        any::<u32>().prop_map(BackendSpec::Map),
        mock.prop_map(BackendSpec::Mock),
        pci().prop_map(BackendSpec::Vfio),
        ("(?s).{1,20}", any::<bool>()).prop_map(|(file, strict)| {
            let how = if strict {
                ReplayMatch::Strict
            } else {
                ReplayMatch::Best
            };
            BackendSpec::Replay(ReplaySpec { file, how })
        }),
    ];
    let layer = (
        prop::sample::select(&gaudi_seam::spec::LAYERS[..]),
        prop::option::of("(?s).{0,20}"),
    )
        .prop_map(|(name, argument)| LayerSpec {
            name: name.to_owned(),
            argument,
        });
    (backend, prop::collection::vec(layer, 0..4)).prop_map(|(backend, layers)| DeviceSpec { backend, layers })
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn specs_round_trip(spec in any_spec()) {
        prop_assert_eq!(parse(&spec.to_string()), spec);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "(?s).{0,60}") {
        if let Ok(spec) = text.parse::<DeviceSpec>() {
            prop_assert_eq!(parse(&spec.to_string()), spec);
        }
    }

    #[test]
    fn near_specs_are_parsed_or_refused(text in "(kernel|mock|map|vfio|replay|x)?[:?&=+%a-f0-9.GiB]{0,24}") {
        if let Ok(spec) = text.parse::<DeviceSpec>() {
            prop_assert_eq!(parse(&spec.to_string()), spec);
        }
    }
}

#[test]
fn sizes_have_fractions_and_short_units() {
    use gaudi_seam::spec::parse_bytes;
    for (text, bytes) in [
        ("4096", 4096),
        ("64k", 64 << 10),
        ("64KiB", 64 << 10),
        ("1.5MiB", 3 << 19),
        ("0.5k", 512),
        ("2.000g", 2 << 30),
        ("18446744073709551615", u64::MAX),
        ("3b", 3),
    ] {
        assert_eq!(parse_bytes(text).ok(), Some(bytes), "{text}");
    }
    for text in [
        "",
        ".",
        "k",
        "1.",
        ".5k",
        "1.5",
        "0.3k",
        "1MB",
        "1kB",
        "-1",
        "+1",
        "1e3",
        "1 k",
        "1.5.5k",
        "٣k",
        "17179869184GiB",
        "1.0000000000000000001g",
    ] {
        assert!(parse_bytes(text).is_err(), "{text:?} is rejected");
    }
}
