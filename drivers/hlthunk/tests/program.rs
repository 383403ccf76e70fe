//! Programs that use the library on the mock: each test runs itself again in a separate process
//! with its own environment.

#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "the functions under test are C's; each call passes memory that the test owns, or an address that only the kernel accesses"
)]

use std::ffi::{CStr, c_int};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};
use std::ptr::null;

use gaudi_sys::Errno;
use hl_thunk::*;
use nix::libc;

/// The environment variable that marks the second run.
const MARK: &str = "HLTHUNK_TEST_PROGRAM";

/// Returns whether this is the second run of the test.
fn is_program() -> bool {
    std::env::var_os(MARK).is_some()
}

/// A test as a program, without the library's variables.
fn command(program: &Path, test: &str) -> Command {
    let mut command = Command::new(program);
    command.args([test, "--exact", "--nocapture"]).env(MARK, "1");
    for name in [
        "GAUDI_DEVICE",
        "GAUDI_TRACE",
        "GAUDI_FAULT",
        "HABANA_SHIM_DISABLE",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs a test as a program.
fn run(test: &str, environment: &[(&str, &str)]) -> Output {
    let program = std::env::current_exe().expect("this program");
    let mut command = command(&program, test);
    command.envs(environment.iter().copied());
    let output = command.output().expect("a program");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{test}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{test} ran: {text}");
    output
}

/// Runs a test as a program on the mock.
fn run_on_mock(test: &str) {
    run(test, &[("GAUDI_DEVICE", "mock:gaudi2")]);
}

fn errno() -> Errno {
    Errno::last()
}

fn open() -> c_int {
    unsafe { hlthunk_open(HlthunkDeviceName::DONT_CARE, null()) }
}

fn usage(fd: c_int) -> c_int {
    let mut usage = HlthunkDramUsageInfo {
        dram_free_mem: 0,
        ctx_dram_mem: 0,
    };
    unsafe { hlthunk_get_dram_usage(fd, &raw mut usage) }
}

const EBUSY: c_int = -(Errno::EBUSY as c_int);

#[test]
fn mock_has_one_user() {
    if !is_program() {
        return run_on_mock("mock_has_one_user");
    }
    unsafe {
        assert_eq!(hlthunk_get_device_count(HlthunkDeviceName::GAUDI2), 1);
        assert_eq!(hlthunk_get_device_count(HlthunkDeviceName::GAUDI), 0);
        let fd = open();
        assert!(fd > 2, "{fd}");
        assert_eq!((open(), errno()), (-1, Errno::EBUSY));
        let mut address = [0; 13];
        assert_eq!(hlthunk_get_pci_bus_id_from_fd(fd, address.as_mut_ptr(), 13), 0);
        let address = address.as_ptr();
        assert_eq!(CStr::from_ptr(address), c"ffff:00:00.0");
        assert_eq!(hlthunk_open(HlthunkDeviceName::DONT_CARE, address), EBUSY);
        assert_eq!(hlthunk_open_by_module_id(0), EBUSY);
        assert_eq!(hlthunk_get_device_index_from_pci_bus_id(address), 0);
        for control in [
            hlthunk_open_control(0, null()),
            hlthunk_open_control(9, address),
            hlthunk_open_control_by_module_id(0),
            hlthunk_open_control_by_bus_id(address),
            hlthunk_open_control_by_name(HlthunkDeviceName::GAUDI2, null()),
        ] {
            assert_eq!(hlthunk_get_device_id_from_fd(control), 0x1020, "{control}");
            assert_eq!(hlthunk_notifier_create(control), -(Errno::EOPNOTSUPP as c_int));
            assert_eq!(hlthunk_close(control), 0);
        }
        assert_eq!(hlthunk_open_control(1, null()), -(Errno::ENOENT as c_int));
        assert_eq!(hlthunk_open(HlthunkDeviceName::GOYA, null()), -1);
        assert_eq!(errno(), Errno::ENOENT);
        let copy = libc::dup(fd);
        assert_eq!(hlthunk_close(fd), 0);
        assert_eq!(usage(copy), 0, "a duplicate refers to the same device");
        assert_eq!(open(), -1, "the duplicate keeps the device open");
        // Close without calling the library.
        assert_eq!(libc::close(copy), 0);
        assert_eq!(usage(copy), -(Errno::EBADF as c_int));
        let again = open();
        assert!(again > 2, "{again} {}", errno());
        assert_eq!(hlthunk_close(again), 0);
    }
}

#[test]
fn fork_child_gets_enodev() {
    if !is_program() {
        return run_on_mock("fork_child_gets_enodev");
    }
    let fd = open();
    let enodev = -(Errno::ENODEV as c_int);
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut address = [0; 13];
        let is_nodev = |code| code == -1 && errno() == Errno::ENODEV;
        let failed = usage(fd) == enodev
            && is_nodev(open())
            && is_nodev(unsafe { hlthunk_get_pci_bus_id_from_fd(fd, address.as_mut_ptr(), 13) });
        let other =
            std::fs::File::open("/dev/null").map(|file| usage(std::os::fd::AsRawFd::as_raw_fd(&file)));
        let raw = other.is_ok_and(|value| value == -(Errno::ENOTTY as c_int));
        unsafe { libc::_exit(c_int::from(!(failed && raw)) * 3) };
    }
    let mut status = 0;
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child's checks pass");
    assert_eq!(usage(fd), 0, "the parent's device is unaffected");
}

#[test]
fn invalid_pointers_for_the_kernel_are_efault() {
    if !is_program() {
        return run_on_mock("invalid_pointers_for_the_kernel_are_efault");
    }
    let fd = open();
    let efault = -(Errno::EFAULT as c_int);
    unsafe {
        assert_eq!(hlthunk_get_info(fd, std::ptr::without_provenance_mut(8)), efault);
        assert_eq!(hlthunk_get_info(fd, std::ptr::null_mut()), efault);
        assert_eq!(hlthunk_debug(fd, std::ptr::without_provenance_mut(8)), efault);
        assert_eq!(
            hlthunk_get_dram_usage(fd, std::ptr::without_provenance_mut(8)),
            efault
        );
        assert_eq!(
            hlthunk_get_time_sync_info(fd, std::ptr::without_provenance_mut(usize::MAX)),
            efault
        );
        let mut input = HlthunkCsIn {
            chunks_restore: std::ptr::null_mut(),
            chunks_execute: std::ptr::without_provenance_mut(8),
            num_chunks_restore: 0,
            num_chunks_execute: 1,
            flags: 0,
        };
        let mut out = std::mem::zeroed();
        assert_eq!(
            hlthunk_command_submission(fd, &raw mut input, &raw mut out),
            efault
        );
        assert_eq!(errno(), Errno::EFAULT);
    }
}

#[test]
fn dangling_pointers_are_efault_on_mock() {
    if !is_program() {
        return run_on_mock("dangling_pointers_are_efault_on_mock");
    }
    let fd = open();
    let efault = -(Errno::EFAULT as c_int);
    // Unmapped, non-canonical, and read-only addresses.
    static READ_ONLY: u64 = 7;
    let nowhere = [8, 1 << 60, usize::MAX - 7];
    for address in nowhere {
        unsafe {
            let (inside, out) = (
                std::ptr::without_provenance_mut(address),
                std::ptr::without_provenance_mut(address),
            );
            assert_eq!(
                hlthunk_command_submission(fd, inside, out),
                efault,
                "{address:#x}"
            );
            let status = std::ptr::without_provenance_mut(address);
            assert!(hlthunk_wait_for_cs(fd, 1, 0, status) < 0, "{address:#x}");
            let handle = std::ptr::without_provenance_mut(address);
            assert_eq!(hlthunk_request_command_buffer(fd, 4096, handle), efault);
            let text = std::ptr::without_provenance(address);
            assert_eq!(hlthunk_open(HlthunkDeviceName::DONT_CARE, text), efault);
        }
    }
    let read_only = (&raw const READ_ONLY).cast_mut();
    let written = unsafe { hlthunk_request_command_buffer(fd, 4096, read_only) };
    assert_eq!((written, READ_ONLY), (efault, 7));
}

/// A program compiled with the 2023 header has a struct of 16 bytes.
#[test]
fn old_time_struct_is_not_overrun() {
    if !is_program() {
        return run_on_mock("old_time_struct_is_not_overrun");
    }
    let fd = open();
    let mut words = [u64::MAX; 3];
    assert_eq!(
        unsafe { hlthunk_get_time_sync_info(fd, words.as_mut_ptr().cast()) },
        0
    );
    assert_ne!(words[1], u64::MAX, "host time is written");
    assert_eq!(words[2], u64::MAX, "the word past the struct is unchanged");
}

#[test]
fn trace_contains_the_programs_calls() {
    if is_program() {
        let fd = open();
        assert_eq!(usage(fd), 0);
        let mut handle = 0;
        let code = unsafe { hlthunk_request_command_buffer(fd, 4096, &raw mut handle) };
        assert_eq!(code, -(Errno::ENOMEM as c_int), "the fault's errno");
        // The device is still open at exit.
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let trace = dir.path().join("trace.jsonl");
    let name = trace.to_str().expect("text");
    let environment = [
        ("GAUDI_DEVICE", "mock:gaudi2"),
        ("GAUDI_TRACE", name),
        ("GAUDI_FAULT", "cb_create:error=ENOMEM"),
    ];
    run("trace_contains_the_programs_calls", &environment);
    let text = std::fs::read_to_string(&trace).expect("a trace");
    assert!(text.contains("DRAM_USAGE") || text.contains("dram"), "{text}");
    assert!(text.contains("ENOMEM"), "the trace is outside the faults: {text}");
    let last = text.lines().last().expect("a line");
    assert!(last.contains("\"end\""), "the trace is completed at exit: {last}");
}

#[test]
fn invalid_variables_are_einval() {
    if is_program() {
        assert_eq!((open(), errno()), (-1, Errno::EINVAL));
        assert_eq!(
            unsafe { hlthunk_get_device_count(HlthunkDeviceName::DONT_CARE) },
            -(Errno::EINVAL as c_int)
        );
        return;
    }
    let output = run("invalid_variables_are_einval", &[("GAUDI_DEVICE", "mook")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("libhl-thunk: ") && text.contains("mook"),
        "the cause is printed: {text}"
    );
}

/// A group that this process may give a file to and that is not its own.
fn other_group() -> Option<u32> {
    let own = nix::unistd::getegid().as_raw();
    if nix::unistd::geteuid().is_root() {
        return Some(own + 1);
    }
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
    let mut groups = groups.split_whitespace().filter_map(|group| group.parse().ok());
    groups.find(|&group| group != own)
}

/// A set-group-ID copy of this program: the kernel starts it with `AT_SECURE`.
fn secure_copy(dir: &Path) -> Option<std::path::PathBuf> {
    let Some(group) = other_group() else {
        gaudi_harness::skip_named("hlthunk.at-secure", "a user with a second group, or root");
        return None;
    };
    let copy = dir.join("program");
    std::fs::copy(std::env::current_exe().expect("this program"), &copy).expect("a copy");
    std::os::unix::fs::chown(&copy, None, Some(group)).expect("the copy's group");
    // After the change of the group, which clears the bit.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o2755);
    std::fs::set_permissions(&copy, mode).expect("the copy's mode");
    Some(copy)
}

#[test]
fn variables_are_ignored_under_at_secure() {
    const TEST: &str = "variables_are_ignored_under_at_secure";
    if is_program() {
        let fd = open();
        let cause = (fd < 0).then(errno);
        let mut bus: [std::ffi::c_char; 13] = [0; 13];
        let is_mock = fd >= 0
            && unsafe { hlthunk_get_pci_bus_id_from_fd(fd, bus.as_mut_ptr(), 13) } == 0
            && bus[0] == b'f' as std::ffi::c_char;
        println!(
            "secure {} mock {is_mock} invalid {}.",
            gaudi_hal::is_secure(),
            cause == Some(Errno::EINVAL)
        );
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let Some(secure) = secure_copy(dir.path()) else {
        return;
    };
    let plain = std::env::current_exe().expect("this program");
    // What each does where it is read: it opens a mock, or fails with a line on standard error.
    let values = [
        ("GAUDI_DEVICE", &b"mock:gaudi2"[..], "mock true invalid false."),
        ("GAUDI_DEVICE", b"mook", "mock false invalid true."),
        ("GAUDI_TRACE", b"\xff", "mock false invalid true."),
        ("GAUDI_FAULT", b"\xff", "mock false invalid true."),
    ];
    for (name, value, read) in values {
        let [plain, secure] = [&plain, &secure].map(|program| {
            let value = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(value);
            let output = command(program, TEST)
                .env(name, value)
                .output()
                .expect("a program");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (text(&output.stdout), text(&output.stderr))
        });
        assert!(
            plain.0.contains(&format!("secure false {read}")),
            "{name}: {plain:?}"
        );
        if secure.0.contains("secure false") {
            return gaudi_harness::skip_named(
                "hlthunk.at-secure",
                "a folder for temporary files that is not mounted nosuid",
            );
        }
        assert!(
            secure.0.contains("secure true mock false invalid false."),
            "{name}: {secure:?}"
        );
        assert!(!secure.1.contains("libhl-thunk"), "{name}: {secure:?}");
    }
}

/// A profiler in C: it counts opens and closes, and prints the counts at its end.
const PROFILER: &str = r#"
#include <stdio.h>
static void *slots[53], **originals;
static int opens, closes, lookups;
static int open_hook(unsigned name, const char *busid)
{
    opens++;
    return ((int (*)(unsigned, const char *))originals[1])(name, busid);
}
static int close_hook(int fd)
{
    closes++;
    return ((int (*)(int))originals[2])(fd);
}
void *ShimGetFunctions(int api, void *table)
{
    lookups++;
    originals = table;
    if (api != 1)
        return table;
    /* Only these slots: the others are null. */
    slots[1] = open_hook;
    slots[2] = close_hook;
    return slots;
}
void ShimFinish(int api)
{
    printf("profiler %d: %d lookups, %d opens, %d closes\n", api, lookups, opens, closes);
    fflush(stdout);
}
"#;

fn build_profiler(dir: &Path) {
    let source = dir.join("profiler.c");
    let mut file = std::fs::File::create(&source).expect("a file");
    file.write_all(PROFILER.as_bytes()).expect("a file");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .arg(dir.join("libhl_shim.so"))
        .arg(&source)
        .status();
    assert!(
        built
            .expect("a C compiler: the workspace needs one to link")
            .success()
    );
}

#[test]
fn profiler_replaces_functions() {
    if is_program() {
        let fd = open();
        assert_eq!(usage(fd), 0, "a null slot uses the original function");
        assert_eq!(unsafe { hlthunk_close(fd) }, 0);
        let fd = unsafe { hlthunk_open_by_module_id(0) };
        assert_eq!(unsafe { hlthunk_memory_unmap(fd, 0) }, -(Errno::EINVAL as c_int));
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    build_profiler(dir.path());
    let path = dir.path().to_str().expect("text");
    let environment = [("GAUDI_DEVICE", "mock:gaudi2"), ("LD_LIBRARY_PATH", path)];
    let output = run("profiler_replaces_functions", &environment);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("profiler 1: 1 lookups, 2 opens, 1 closes"),
        "{text}"
    );
    let disabled = [environment[0], environment[1], ("HABANA_SHIM_DISABLE", "1")];
    let output = run("profiler_replaces_functions", &disabled);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("profiler 1"));
}

#[test]
fn many_threads_share_one_device() {
    if !is_program() {
        return run_on_mock("many_threads_share_one_device");
    }
    let fd = open();
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| unsafe {
                for _ in 0..50 {
                    let mut handle = 0;
                    assert_eq!(hlthunk_request_command_buffer(fd, 4096, &raw mut handle), 0);
                    assert_eq!(hlthunk_destroy_command_buffer(fd, handle), 0);
                    assert_eq!(open(), -1);
                }
            });
        }
    });
    assert_eq!(unsafe { hlthunk_close(fd) }, 0);
}
