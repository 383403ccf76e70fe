//! Packaged UCX 1.18, Open MPI 5 and libfabric move memory of one modelled card to another, over
//! soft-RoCE, and the example of libibverbs registers it.
//!
//! Nothing is staged: the plugin and libgaudi_copy count no copy. Each process has a card of its
//! own, except that libfabric's has both, and compares what arrived. Soft-RoCE's user library has
//! no `ibv_reg_dmabuf_mr`, so a library of the lab is preloaded that calls the kernel instead
//! (`examples/reg_dmabuf_mr.rs`).

mod first_card;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gaudi_lab::rxe::{self, Build, skips, skips_verbs};
use gaudi_lab::{card, kernel, skip};

use first_card::wait_until_free;

/// Where the lab puts the packages (tools/xtask/src/lab/ucx.rs).
const FOLDER: &str = "/opt/ucx";
/// The library with the registration that soft-RoCE's provider lacks.
const REG_DMABUF: &str = "/lab/bin/libreg_dmabuf_mr.so";
const PLUGIN: &str = "/opt/ucx/gaudi/libuct_gaudi.so.0";
/// Bytes of a message: 64 MiB.
const BYTES: &str = "bytes=67108864";
const CARDS: [&str; 2] = ["kernel:0", "kernel:1"];
/// The address of the NIC.
const ADDRESS: &str = "10.77.0.1";
/// How long a program may take.
const MAX_WAIT: Duration = Duration::from_secs(280);

fn skips_ucx(test: &str) -> bool {
    let old = "Linux 7.0 or newer: Debian's older kernels have no peer-to-peer DMA (CONFIG_PCI_P2PDMA)";
    let packages = "a machine that can fetch UCX and Open MPI of Debian 13";
    skips(test)
        || (kernel() < (7, 0) && skip(test, old))
        || (!Path::new(FOLDER).exists() && skip(test, packages))
}

/// As [`skips_ucx`], or since this guest has no libibverbs.
fn skips_ib(test: &str) -> bool {
    skips_verbs(test) || skips_ucx(test)
}

/// Both cards, free, and soft-RoCE. Returns the index of its GID.
fn ready() -> u8 {
    card::load(&[]);
    let (gid, _) = rxe::device(Build::Patched, "rxe0", "eth0", ADDRESS);
    for spec in CARDS {
        wait_until_free(&spec.parse().expect("a spec"));
    }
    gid
}

/// The words of the packages' own loader.
fn loader(preload: &[&str], program: &str) -> Vec<String> {
    let words = [
        "/opt/ucx/lib/ld-linux-x86-64.so.2",
        "--library-path",
        "/opt/ucx/lib",
        "--preload",
        &preload.join(":"),
        program,
    ];
    words.map(str::to_owned).to_vec()
}

fn environment(command: &mut Command, gid: u8) {
    command
        .env("UCX_TLS", "rc_verbs,gaudi,tcp,self")
        .env("UCX_NET_DEVICES", "rxe0:1,eth0,lo")
        .env("UCX_IB_GID_INDEX", gid.to_string())
        // Soft-RoCE reports so slow a link that UCX takes a copy for free.
        .env("UCX_RNDV_THRESH", "8k")
        .env("UCX_ZCOPY_THRESH", "8k")
        .env("UCX_PROTO_INFO", "y")
        .env("UCX_GAUDI_STATS", "y")
        .env("UCX_WARN_UNUSED_ENV_VARS", "n")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// An example in C on libgaudi_copy; `None` if the lab has none, which is a counted skip.
fn example(test: &str, name: &str) -> Option<Command> {
    let program = format!("{FOLDER}/bin/{name}");
    if !Path::new(&program).exists() {
        skip(
            test,
            "a machine that can fetch libfabric and libibverbs of Debian 13, and a C compiler",
        );
        return None;
    }
    let words = loader(&[REG_DMABUF], &program);
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Some(command)
}

/// A program on UCX, with the plugin and a card.
fn ucx(gid: u8, program: &str, device: &str) -> Command {
    let words = loader(
        &[REG_DMABUF, "/opt/ucx/lib/libucp.so.0", PLUGIN],
        &format!("{FOLDER}/bin/{program}"),
    );
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env("GAUDI_DEVICE", device);
    environment(&mut command, gid);
    command
}

/// Waits for a program's end, requires that it succeeded, and returns what it wrote.
fn ends(what: &str, mut child: Child) -> String {
    let begin = Instant::now();
    // Both programs write little, less than a pipe holds.
    while child.try_wait().expect("it is a child").is_none() {
        if begin.elapsed() > MAX_WAIT {
            child.kill().expect("it is a child");
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = child.wait_with_output().expect("it ended");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    println!(
        "{what}: {}, {:.1} s\n{text}",
        output.status,
        begin.elapsed().as_secs_f64()
    );
    assert!(output.status.success(), "{what}: {}\n{text}", output.status);
    text
}

/// Requires that each process exported memory and copied none.
fn copies_nothing(text: &str, processes: usize) {
    let stats: Vec<_> = text
        .lines()
        .filter(|line| line.contains("libuct_gaudi: stats"))
        .collect();
    assert_eq!(stats.len(), processes, "each process prints its counters: {text}");
    for line in stats {
        assert!(
            line.contains(" copies=0 copied_bytes=0 "),
            "no staging copy: {line}"
        );
        assert!(!line.contains(" exports=0 "), "a dma-buf was exported: {line}");
    }
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn ib_domain_registers_our_dma_bufs() {
    if skips_ib("ib_domain_registers_our_dma_bufs") {
        return;
    }
    let gid = ready();
    let mut command = ucx(gid, "ucx_info", CARDS[0]);
    let text = ends("ucx_info -d", command.arg("-d").spawn().expect("ucx_info runs"));
    let block = text.split("# Memory domain: rxe0\n").nth(1);
    let block = block.expect("a memory domain of the NIC");
    let block = block.split("# Memory domain:").next().unwrap_or(block);
    // The domain registers every type of memory that another domain exports as dma-bufs: ours.
    let register = block.lines().find(|line| line.contains("register:"));
    let register = register.expect("what it registers");
    assert!(register.contains(", dmabuf"), "dma-bufs: {register}");
    let ours = text
        .split("# Memory domain: gaudi_copy\n")
        .nth(1)
        .expect("our memory domain");
    let types = ours
        .lines()
        .find(|line| line.contains("memory types:"))
        .expect("types");
    assert!(
        types.contains("ze-device (access,alloc,reg,cache,detect,dmabuf)"),
        "{types}"
    );
    assert!(text.contains("nodes=0"), "no compute node opened: {text}");
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn ucx_moves_card_memory_without_copies() {
    if skips_ib("ucx_moves_card_memory_without_copies") {
        return;
    }
    let gid = ready();
    let socket = "/tmp/cards-ucx";
    let _ = fs::remove_file(socket); // of an earlier run, if there was one
    // One message from card 0 to card 1 (put and tag), and one from card 1 to card 0 (get).
    let protocols = [BYTES, "put", "get", "tag"];
    let start = |role: &str, device: &str| {
        let mut command = ucx(gid, "ucp-check", device);
        command.arg(format!("{role}={socket}")).args(protocols);
        command.spawn().expect("ucp-check runs")
    };
    let (passive, active) = (start("listen", CARDS[1]), start("connect", CARDS[0]));
    let text = ends("the active process", active);
    let other = ends("the passive process", passive);
    for protocol in ["put", "get", "tag"] {
        assert!(text.contains(&format!("ok {protocol}: 1 transfers")), "{text}");
    }
    copies_nothing(&text, 1);
    copies_nothing(&other, 1);
}

/// Writes a script for a program that others start.
fn script(name: &str, words: &[String]) {
    let text = format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" "));
    let file = Path::new("/tmp").join(name);
    fs::write(&file, text).expect("a script");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it may run");
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn open_mpi_moves_card_memory_without_copies() {
    if skips_ib("open_mpi_moves_card_memory_without_copies") {
        return;
    }
    let gid = ready();
    for name in ["prterun", "prted"] {
        let program = format!("{FOLDER}/bin/{name}");
        let mut words = loader(&[], &program);
        words.drain(3..5); // no preload
        words.splice(3..3, ["--argv0".to_owned(), format!("/tmp/{name}")]);
        script(name, &words);
    }
    // The component brings the plugin. A rank takes the card of its number.
    let check = loader(&[REG_DMABUF], &format!("{FOLDER}/bin/mpi-check"));
    let mut words = vec!["env".to_owned(), "GAUDI_DEVICE=kernel:$PMIX_RANK".to_owned()];
    words.extend(check);
    script("mpi-check", &words);
    let components = "/tmp/components";
    fs::create_dir_all(components).expect("a folder");
    let link = format!("{components}/mca_accelerator_gaudi.so");
    let _ = fs::remove_file(&link); // of an earlier run, if there was one
    std::os::unix::fs::symlink(PLUGIN, &link).expect("a link");

    let mut command = Command::new("/tmp/prterun");
    command.args(["--personality", "ompi", "--allow-run-as-root", "--oversubscribe"]);
    command.args(["-np", "2", "/tmp/mpi-check", "libmpi.so.40", BYTES, "send", "put"]);
    let path = std::env::var("PATH").expect("the guest has one");
    command.env("PATH", format!("/tmp:{path}"));
    for (name, value) in [
        ("OPAL_PREFIX", FOLDER),
        ("PRTE_PREFIX", FOLDER),
        ("PMIX_PREFIX", FOLDER),
        ("OMPI_MCA_mca_base_component_path", components),
        ("OMPI_MCA_pml", "ucx"),
        ("OMPI_MCA_osc", "ucx"),
        ("OMPI_MCA_opal_common_ucx_tls", "any"),
        ("OMPI_MCA_opal_common_ucx_devices", "any"),
        ("PMIX_MCA_pcompress_base_silence_warning", "1"),
        ("PMIX_MCA_gds", "hash"),
        ("TMPDIR", "/tmp"),
    ] {
        command.env(name, value);
    }
    environment(&mut command, gid);
    let text = ends("mpirun -np 2", command.spawn().expect("prterun runs"));
    for operation in ["send", "put"] {
        for rank in 0..2 {
            assert!(text.contains(&format!("ok {operation} rank {rank}: ")), "{text}");
        }
    }
    copies_nothing(&text, 2);
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn libfabric_moves_card_memory_without_copies() {
    let test = "libfabric_moves_card_memory_without_copies";
    if skips_ib(test) {
        return;
    }
    ready();
    // libfabric's provider makes its connections through the kernel's connection manager.
    gaudi_lab::modprobe("rdma_ucm");
    let Some(mut command) = example(test, "libfabric") else {
        return;
    };
    command
        .args(CARDS)
        // The guest has no name service, so libfabric gets the NIC's address.
        .args(["67108864", ADDRESS])
        .env("FI_LOG_LEVEL", "warn")
        // Soft-RoCE has few and short queues.
        .env("FI_UNIVERSE_SIZE", "2")
        .env("FI_OFI_RXM_MSG_TX_SIZE", "64")
        .env("FI_OFI_RXM_MSG_RX_SIZE", "64");
    let text = ends("libfabric", command.spawn().expect("the example runs"));
    let wrote =
        "wrote 67108864 bytes from device memory to device memory by verbs;ofi_rxm: copies=0 exports=2";
    let lines = text.lines().filter(|line| *line == wrote);
    assert_eq!(lines.count(), 2, "one line each way: {text}");
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn verbs_example_registers_card_memory() {
    let test = "verbs_example_registers_card_memory";
    if skips_ib(test) {
        return;
    }
    ready();
    let Some(mut command) = example(test, "verbs") else {
        return;
    };
    command.env("GAUDI_DEVICE", CARDS[0]);
    ends("verbs", command.spawn().expect("the example runs"));
}

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn each_card_is_a_memory_domain() {
    if skips_ucx("each_card_is_a_memory_domain") {
        return;
    }
    let gid = ready();
    let mut command = ucx(gid, "ucx_info", CARDS[0]);
    command.env_remove("GAUDI_DEVICE");
    let text = ends("ucx_info -d", command.arg("-d").spawn().expect("ucx_info runs"));
    for index in 0..CARDS.len() {
        let block = text
            .split(&format!("# Memory domain: gaudi_copy{index}\n"))
            .nth(1);
        let block = block.unwrap_or_else(|| panic!("a memory domain of card {index}: {text}"));
        let block = block.split("# Memory domain:").next().unwrap_or(block);
        assert!(block.contains(&format!("Device: gaudi{index}\n")), "{block}");
        let system = block.lines().find(|line| line.contains("System device:"));
        let system = system.expect("a line with the system device");
        assert!(!system.contains("unknown"), "its PCI function is known: {system}");
    }
    assert!(text.contains("nodes=0"), "no compute node opened: {text}");
    let mut command = ucx(gid, "ucx_info", CARDS[0]);
    command.env_remove("GAUDI_DEVICE");
    let text = ends("ucx_info -T", command.arg("-T").spawn().expect("ucx_info runs"));
    // The first row is the heading, and the second the distances of the first card.
    let rows: Vec<_> = text.lines().filter(|line| line.contains(" gaudi0 ")).collect();
    let [heading, first, ..] = rows[..] else {
        panic!("a table of distances: {text}");
    };
    let cells = |line: &str| {
        line.split('|')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let at = cells(heading).iter().position(|cell| cell == "gaudi1");
    let distance = cells(first)[at.expect("a column of the second card")].parse::<f64>();
    assert!(distance.is_ok_and(|rate| rate > 0.0), "a bandwidth: {first}");
}
