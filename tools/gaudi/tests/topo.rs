//! `gaudi topo` as a user meets it, on trees of machines that are elsewhere. Golden files as in
//! `cli.rs`.

use snapbox::cmd::Command;
use snapbox::{Assert, Data, file};

/// The trees that the rule is tested with.
const TREES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dmabuf/tests/reach/fixtures");

fn topo(arguments: &[&str]) -> Command {
    let assert = Assert::new().action_env(snapbox::assert::DEFAULT_ACTION_ENV);
    Command::new(snapbox::cmd::cargo_bin!("gaudi"))
        .with_assert(assert)
        .current_dir(TREES)
        .env_remove("GAUDI_DEVICE")
        .env_remove("GAUDI_MAPPING_TABLE")
        .env_remove("GAUDI_LOG")
        .env_remove("CLICOLOR_FORCE")
        .arg("topo")
        .args(arguments)
}

fn shows(arguments: &[&str], golden: Data) {
    topo(arguments).assert().success().stdout_eq(golden);
}

fn json(arguments: &[&str]) -> serde_json::Value {
    let output = topo(arguments)
        .arg("--json")
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    serde_json::from_slice(&output).expect("standard output is one JSON document")
}

fn answer<'a>(document: &'a serde_json::Value, exporter: &str, nic: &str) -> &'a serde_json::Value {
    let answers = document["reach"].as_array().expect("answers");
    let found = answers
        .iter()
        .find(|row| row["exporter"] == exporter && row["nic"] == nic);
    found.unwrap_or_else(|| panic!("{exporter} and {nic} are judged: {document}"))
}

#[test]
fn trees_and_matrices_are_drawn() {
    shows(&["--help"], file!["golden/topo-help.txt"]);
    shows(&["--example"], file!["golden/topo-example.txt"]);
    shows(&["--sysfs", "client-acs.tree"], file!["golden/topo-refused.txt"]);
    shows(
        &["--sysfs", "hls2-acs.tree", "-d", "kernel:0"],
        file!["golden/topo-redirected.txt"],
    );
    shows(
        &["--sysfs", "hls2-user.tree", "-d", "kernel:0000:18:00.0"],
        file!["golden/topo-user.txt"],
    );
    shows(
        &["--sysfs", "q35-switch.tree", "--all"],
        file!["golden/topo-switch.txt"],
    );
    shows(&["--sysfs", "epyc.tree"], file!["golden/topo-epyc.txt"]);
}

#[test]
fn machine_without_card_shows_an_example() {
    let output = topo(&["--sysfs", "nothing.tree"]).assert().success();
    let stderr = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(
        stderr.contains("no Habana accelerator in nothing.tree") && stderr.contains("gaudi topo --example"),
        "{stderr}"
    );
    // This machine, whatever it has.
    topo(&[]).assert().success();
}

#[test]
fn mock_has_no_bus_address() {
    let output = topo(&["-d", "mock:gaudi2"]).assert().code(1);
    let stderr = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(
        stderr.contains("a mock has no PCI topology") && stderr.contains("gaudi topo --example"),
        "{stderr}"
    );
}

#[test]
fn missing_device_has_its_code() {
    for (arguments, code, word) in [
        (
            &["--sysfs", "epyc.tree", "-d", "kernel:7"][..],
            3,
            "kernel:7 is not on the PCI bus",
        ),
        (
            &["--sysfs", "epyc.tree", "--exporter", "0000:09:00.0"],
            3,
            "no PCI function 0000:09:00.0",
        ),
        (
            &["--sysfs", "epyc.tree", "--exporter", "x"],
            2,
            "not a PCI address",
        ),
        (
            &["--sysfs", "epyc.tree", "-d", "kernel?module=3"],
            2,
            "topo takes",
        ),
        (&["--sysfs", "."], 2, "has no folder `sys`"),
        (&["--sysfs", "/nowhere/at-all"], 1, "cannot read /nowhere/at-all"),
        (&["--sysfs", "/dev/null", "--example"], 2, "cannot be used with"),
        (&["--sysfs", "../main.rs"], 1, "line 1:"),
    ] {
        let output = topo(arguments).assert().code(code);
        let stderr = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert!(stderr.contains(word), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_document_has_every_answer() {
    let document = json(&["--sysfs", "client-acs.tree"]);
    assert_eq!(
        (&document["schema"], &document["version"]),
        (&"gaudi.topo".into(), &1.into())
    );
    let refused = answer(&document, "0000:05:00.0", "mlx5_1");
    assert_eq!(
        (&refused["answer"], &refused["refusal"]),
        (&"refused".into(), &"host_bridge".into())
    );
    assert_eq!(
        refused["redirects"],
        serde_json::json!(["0000:04:01.0", "0000:04:02.0"])
    );
    assert_eq!(document["best"][0]["nic"], serde_json::Value::Null);

    let document = json(&["--example"]);
    let near = answer(&document, "0000:18:00.0", "mlx5_0");
    assert_eq!(
        (&near["via"], &near["bridge"], &near["distance"]),
        (&"same_switch".into(), &"0000:16:00.0".into(), &4.into())
    );
    let far = answer(&document, "0000:18:00.0", "mlx5_3");
    assert_eq!(
        (&far["via"], &far["numa_distance"]),
        (&"whitelisted_host_bridge".into(), &20.into())
    );
    let card = document["functions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["address"] == "0000:18:00.0")
        .unwrap();
    assert_eq!(card["bars"][2]["size_bytes"], 128_u64 << 30);
    assert_eq!(
        card["bars"][2]["start"], "0x202000000000",
        "64-bit addresses are texts"
    );

    let document = json(&["--sysfs", "q35-max.tree", "--exporter", "0000:00:1f.2"]);
    assert_eq!(answer(&document, "0000:00:1f.2", "rxe1")["refusal"], "not_pci");
    assert_eq!(
        answer(&document, "0000:00:1f.2", "rxe0")["refusal"],
        "host_bridge"
    );
}

#[test]
fn a_capture_shows_the_same_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server.tree");
    let file = file.to_str().unwrap();
    let mut here = json(&["--sysfs", "hls2-acs.tree", "--capture", file]);
    let mut there = json(&["--sysfs", file]);
    assert_eq!(there["source"].take(), file);
    here["source"].take();
    assert_eq!(here, there);
}

#[test]
fn the_page_shows_what_the_example_prints() {
    let printed = topo(&["--example"])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let printed = String::from_utf8(printed).unwrap();
    let (_, matrix) = printed.split_once("\n\nNIC").expect("a matrix behind the tree");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/how-to/topology.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains(&format!("```text\nNIC{matrix}```")),
        "the page shows:\nNIC{matrix}"
    );
}

#[test]
fn the_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    Command::new(snapbox::cmd::cargo_bin!("gaudi"))
        .args(["man", path])
        .assert()
        .success();
    let page = std::fs::read_to_string(folder.path().join("gaudi-topo.1")).unwrap();
    assert!(page.contains("capture") && page.contains("exporter"), "{page}");
}
